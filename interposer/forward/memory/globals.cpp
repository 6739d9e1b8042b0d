// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/memory/globals.hpp"

#include <mutex>

#include "interposer/local/acting_session.hpp"

namespace mpsshim::interposer::forward {

Globals& Globals::instance() {
  return PerSession<Globals>::get([] { return new Globals(); });
}

void Globals::add(proto::ModuleId module, std::uint64_t address, std::uint64_t size_bytes) {
  const std::unique_lock lock(mutex_);
  variables_.emplace(address, Variable{size_bytes, module});
}

void Globals::remove(proto::ModuleId module) {
  const std::unique_lock lock(mutex_);
  std::erase_if(variables_, [&](const auto& entry) { return entry.second.module == module; });
}

std::optional<AddressRange> Globals::find(std::uint64_t address) const {
  const std::shared_lock lock(mutex_);
  auto after = variables_.upper_bound(address);
  if (after == variables_.begin()) return std::nullopt;
  --after;
  const AddressRange range{after->first, after->second.size_bytes};
  return range.holds(address, 1) ? std::optional(range) : std::nullopt;
}

}  // namespace mpsshim::interposer::forward
