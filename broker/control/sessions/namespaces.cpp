// SPDX-License-Identifier: Apache-2.0
#include "broker/control/sessions/namespaces.hpp"

#include <algorithm>

#include "proto/provision.hpp"

namespace mpsshim::broker::control {

const Namespace* Namespaces::find(const Key& key) const {
  const auto found = all_.find(key);
  return found != all_.end() ? &found->second : nullptr;
}

Namespace* Namespaces::find_or_make(const Key& key) {
  if (const auto found = all_.find(key); found != all_.end()) return &found->second;
  if (all_.size() >= kMost) return nullptr;
  Namespace& made = all_[key];
  made.id = ++last_;
  return &made;
}

std::uint64_t Namespaces::requested_besides(const Namespace* own) const {
  std::uint64_t bytes = 0;
  for (const auto& [key, of] : all_) bytes += &of != own ? of.memory_request_bytes : 0;
  return bytes;
}

void Namespaces::save(StateWriter& state) const {
  state.number(last_);
  state.number(all_.size());
  for (const auto& [key, of] : all_) {
    state.number(key.first);
    state.text(key.second);
    state.number(of.id);
    state.number(of.memory_limit_bytes);
    state.number(of.thread_percentage);
    state.number(of.client_priority ? 1 + *of.client_priority : 0);
    state.number(of.memory_request_bytes);
    state.number(of.has_own_executor ? 1 : 0);
    state.number(of.thread_percentage_request);
    state.number(of.has_directory ? 1 : 0);
  }
}

void Namespaces::restore(StateReader& state) {
  last_ = state.number();
  for (std::uint64_t left = state.number(); left > 0 && state.ok(); --left) {
    const auto user = static_cast<uid_t>(state.number());
    const std::string name = state.text();
    Namespace of;
    of.id = state.number();
    of.memory_limit_bytes = state.number();
    of.thread_percentage = static_cast<std::uint32_t>(state.number());
    if (const std::uint64_t priority = state.number(); priority != 0) of.client_priority = static_cast<std::uint32_t>(priority - 1);
    if (state.version() >= 12) of.memory_request_bytes = state.number();
    if (state.version() >= 14) of.has_own_executor = state.number() != 0;
    if (state.version() >= 15)
      of.thread_percentage_request = static_cast<std::uint32_t>(std::min<std::uint64_t>(state.number(), proto::kWholePercentage));
    if (state.version() >= 16) of.has_directory = state.number() != 0;
    all_.emplace(Key{user, name}, of);
  }
}

}  // namespace mpsshim::broker::control
