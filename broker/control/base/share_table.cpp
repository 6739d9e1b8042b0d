// SPDX-License-Identifier: Apache-2.0
#include "broker/control/base/share_table.hpp"

#include <iterator>

#include <sys/random.h>

namespace mpsshim::broker::control {

std::optional<proto::MemoryName> ShareTable::name(const Shared& shared) {
  const auto known = by_object_.find({shared.session, shared.object});
  if (known != by_object_.end()) return known->second;
  const auto first = by_object_.lower_bound({shared.session, 0});
  const auto end = by_object_.lower_bound({shared.session + 1, 0});
  if (static_cast<std::size_t>(std::distance(first, end)) >= kMostOfSession) return std::nullopt;
  proto::MemoryName name;
  if (getrandom(name.word, sizeof name.word, 0) != static_cast<ssize_t>(sizeof name.word)) return std::nullopt;
  by_name_.emplace(Key{name.word[0], name.word[1]}, shared);
  by_object_.emplace(Key{shared.session, shared.object}, name);
  return name;
}

std::optional<ShareTable::Shared> ShareTable::find(const proto::MemoryName& name) const {
  const auto found = by_name_.find({name.word[0], name.word[1]});
  return found != by_name_.end() ? std::optional(found->second) : std::nullopt;
}

void ShareTable::forget(const Shared& shared) {
  const auto found = by_object_.find({shared.session, shared.object});
  if (found == by_object_.end()) return;
  by_name_.erase({found->second.word[0], found->second.word[1]});
  by_object_.erase(found);
}

void ShareTable::forget_session(std::uint64_t session) {
  const auto first = by_object_.lower_bound({session, 0});
  const auto end = by_object_.lower_bound({session + 1, 0});
  for (auto entry = first; entry != end; ++entry) by_name_.erase({entry->second.word[0], entry->second.word[1]});
  by_object_.erase(first, end);
}

}  // namespace mpsshim::broker::control
