// SPDX-License-Identifier: Apache-2.0
// The control process's view on what an executor's threads are doing (broker/call_table.hpp): finds the call that never returns, and after a
// crash the call in which it happened.
// Time is counted in looks, a limit is kLooks of them, evenly spaced: a broker that was itself stopped for a while takes nobody to hang.
// Owned by ManagedExecutor, one a life; the control process's thread. The table is written by our own executor; a crashing one may leave nonsense.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <optional>

#include "broker/call_table.hpp"
#include "proto/segment.hpp"

namespace mpsshim::broker::control {

class CallWatch {
 public:
  static constexpr unsigned kLooks = 8;  // that a prompt call must outlast
  static constexpr unsigned kPatientLooks = 12 * kLooks;

  CallWatch() = default;
  explicit CallWatch(proto::Mapping table) : memory_(std::move(table)) {}

  [[nodiscard]] static std::chrono::milliseconds interval(std::chrono::milliseconds limit) {
    return std::max(limit / kLooks, std::chrono::milliseconds(1));
  }
  // One look, `interval` after the one before. The call that has outlasted its limit, if there is one.
  [[nodiscard]] std::optional<PublishedCall> look();
  // A call that is being made: as long as it is found again, it is the same one.
  struct Instance {
    std::uint32_t slot = 0;
    std::uint32_t count = 0;
    friend bool operator==(const Instance&, const Instance&) = default;
  };
  [[nodiscard]] std::optional<Instance> find(CallName name) const;
  // In which call a thread raised the signal that the process died of.
  [[nodiscard]] std::optional<PublishedCall> crashed() const;

 private:
  struct Seen {
    std::uint64_t call = 0;
    std::uint32_t count = 0;
    unsigned looks = 0;
  };
  [[nodiscard]] const CallTable& table() const { return *reinterpret_cast<const CallTable*>(memory_.data()); }

  proto::Mapping memory_;
  std::array<Seen, kCallSlots> seen_{};
};

}  // namespace mpsshim::broker::control
