// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/memory/managed_advice.hpp"

#include <iterator>

#include "interposer/local/acting_session.hpp"

namespace mpsshim::interposer::forward {

ManagedAdvice& ManagedAdvice::instance() {
  return PerSession<ManagedAdvice>::get([] { return new ManagedAdvice(); });
}

void ManagedAdvice::split(std::uint64_t at) {
  auto part = parts_.lower_bound(at);
  if (part == parts_.begin() || (part != parts_.end() && part->first == at)) return;
  --part;
  if (part->second.end <= at) return;
  parts_.emplace(at, part->second);
  part->second.end = at;
}

void ManagedAdvice::forget(AddressRange pages) {
  const std::lock_guard lock(mutex_);
  split(pages.address);
  split(pages.end());
  parts_.erase(parts_.lower_bound(pages.address), parts_.lower_bound(pages.end()));
}

}  // namespace mpsshim::interposer::forward
