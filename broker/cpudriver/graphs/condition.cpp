// SPDX-License-Identifier: Apache-2.0
#include "broker/cpudriver/graphs/condition.hpp"

namespace mpsshim::cpudriver {

Conditions& Conditions::get() {
  static Conditions& conditions = *new Conditions;
  return conditions;
}

Condition::~Condition() {
  Conditions& conditions = Conditions::get();
  const std::lock_guard lock(conditions.mutex_);
  conditions.conditions_.erase(handle_);
}

std::shared_ptr<Condition> Conditions::make(std::uint32_t default_value, bool is_assigned) {
  const std::lock_guard lock(mutex_);
  std::uint64_t handle = 1;
  for (auto known = conditions_.begin(); known != conditions_.end() && known->first == handle; ++known) ++handle;
  auto condition = std::make_shared<Condition>(handle, default_value, is_assigned);
  conditions_[handle] = condition;
  return condition;
}

bool Conditions::set(std::uint64_t handle, std::uint32_t value) {
  std::shared_ptr<Condition> condition;  // outlives the lock, which its end takes
  {
    const std::lock_guard lock(mutex_);
    const auto found = conditions_.find(handle);
    if (found != conditions_.end()) condition = found->second.lock();
  }
  if (condition == nullptr) return false;
  condition->set(value);
  return true;
}

}  // namespace mpsshim::cpudriver
