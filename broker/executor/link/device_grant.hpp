// SPDX-License-Identifier: Apache-2.0
// Leave to have device memory, where the session's user has a limit of it (--user-device-mib): asked of the control process, which alone knows what
// the user's clients have in all executors. Given back with the grant, unless the memory is one that the control process keeps and counts itself.
// Asking waits for an answer, some tens of microseconds: helpers ask.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

#include "broker/executor/link/control_link.hpp"

namespace mpsshim::broker {

class DeviceGrant {
 public:
  DeviceGrant() = default;  // where there is no limit
  DeviceGrant(ControlLink& control, std::uint64_t session, std::uint64_t number) : control_(&control), session_(session), number_(number) {}
  DeviceGrant(DeviceGrant&& other) noexcept
      : control_(std::exchange(other.control_, nullptr)), session_(other.session_), number_(std::exchange(other.number_, 0)) {}
  DeviceGrant& operator=(DeviceGrant&& other) noexcept {
    if (this == &other) return *this;
    give_back();
    control_ = std::exchange(other.control_, nullptr);
    session_ = other.session_;
    number_ = std::exchange(other.number_, 0);
    return *this;
  }
  ~DeviceGrant() { give_back(); }

  // For ChunkCreated: the memory is told of with this number, and not given back. 0: none was needed.
  [[nodiscard]] std::uint64_t spend() {
    control_ = nullptr;
    return std::exchange(number_, 0);
  }

 private:
  void give_back() {
    if (control_ != nullptr) control_->give_memory_back(session_, number_);
    control_ = nullptr;
  }

  ControlLink* control_ = nullptr;
  std::uint64_t session_ = 0;
  std::uint64_t number_ = 0;
};

// Of one session.
class DeviceLimit {
 public:
  // `limit_bytes`: of its user; 0: none.
  DeviceLimit(ControlLink& control, std::uint64_t session, std::uint64_t limit_bytes)
      : control_(control), session_(session), limit_bytes_(limit_bytes) {}
  [[nodiscard]] bool is_set() const { return bytes() != 0; }
  [[nodiscard]] std::uint64_t bytes() const { return limit_bytes_.load(std::memory_order_relaxed); }
  // By the session's worker: a helper that asks meanwhile goes by the one or the other.
  void change(std::uint64_t limit_bytes) { limit_bytes_.store(limit_bytes, std::memory_order_relaxed); }
  // CUDA_ERROR_OUT_OF_MEMORY: it is reached, which the control process has logged.
  [[nodiscard]] CUresult ask(std::uint64_t size_bytes, DeviceGrant& grant) const {
    if (!is_set() || size_bytes == 0) return CUDA_SUCCESS;
    const ControlLink::MemoryAnswer answer = control_.ask_for_memory(session_, size_bytes);
    if (answer.status == CUDA_SUCCESS) grant = DeviceGrant(control_, session_, answer.number);
    return answer.status;
  }
  // How much its user may have yet.
  [[nodiscard]] CUresult left(std::uint64_t& bytes) const {
    const ControlLink::MemoryAnswer answer = control_.ask_for_memory(session_, 0);
    bytes = answer.left_bytes;
    return answer.status;
  }

 private:
  ControlLink& control_;
  const std::uint64_t session_;
  std::atomic<std::uint64_t> limit_bytes_;
};

}  // namespace mpsshim::broker
