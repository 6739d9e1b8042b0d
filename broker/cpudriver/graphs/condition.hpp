// SPDX-License-Identifier: Apache-2.0
//
// Values that conditional nodes go by. Kernels know them by number, and the number of one that has ended is given to the
// next: programs that make the same ones in the same order have the same numbers. Any thread may call.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>

#include "proto/mutex.hpp"

namespace mpsshim::cpudriver {

class Condition {
 public:
  Condition(std::uint64_t handle, std::uint32_t default_value, bool is_assigned)
      : handle_(handle), default_(default_value), is_assigned_(is_assigned), value_(default_value) {}
  ~Condition();
  Condition(const Condition&) = delete;
  Condition& operator=(const Condition&) = delete;

  std::uint64_t handle() const { return handle_; }
  std::uint32_t value() const { return value_.load(); }
  void set(std::uint32_t value) { value_.store(value); }
  // A launch of its graph begins.
  void begin_launch() {
    if (is_assigned_) value_.store(default_);
  }

 private:
  const std::uint64_t handle_;
  const std::uint32_t default_;
  const bool is_assigned_;
  std::atomic<std::uint32_t> value_;
};

class Conditions {
 public:
  static Conditions& get();

  std::shared_ptr<Condition> make(std::uint32_t default_value, bool is_assigned);
  // False: there is no such handle.
  bool set(std::uint64_t handle, std::uint32_t value);

 private:
  friend class Condition;
  Mutex mutex_;
  std::map<std::uint64_t, std::weak_ptr<Condition>> conditions_ GUARDED_BY(mutex_);
};

}  // namespace mpsshim::cpudriver
