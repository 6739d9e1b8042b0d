// SPDX-License-Identifier: Apache-2.0
// Which programs fault again and again. A program is an executable of a user. Each fault is worth 1, divided among its suspects: a guilty
// client bears it alone, eight suspects an eighth each, so that a program all of whose clients are suspects bears it whole.
// A program whose share of the faults within `window` has come to `faults` is in quarantine: its newcomers are served by an executor of
// their own. It leaves after `window` without a share in a fault.
// Owned by SessionManager; the control process's thread. Free of sockets and processes; time is the caller's.
#pragma once

#include <chrono>
#include <compare>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <sys/types.h>

namespace mpsshim::broker::control {

// The executable by path, device and inode: another build is another program, and may do better.
struct Program {
  std::string path;
  dev_t device = 0;
  ino_t inode = 0;
  uid_t uid = static_cast<uid_t>(-1);
  auto operator<=>(const Program&) const = default;
};

struct QuarantineLimits {
  unsigned faults = 3;  // 0: nobody is ever in quarantine
  std::chrono::seconds window{300};
};

class Quarantine {
 public:
  using Clock = std::chrono::steady_clock;
  explicit Quarantine(const QuarantineLimits& limits) : limits_(limits) {}

  // One fault, with the programs of its suspects, one entry each. Those that are in quarantine from now on.
  [[nodiscard]] std::vector<Program> note_fault(std::span<const Program> suspects, Clock::time_point now);
  [[nodiscard]] bool contains(const Program& program) const;
  // Those whose time is over.
  [[nodiscard]] std::vector<Program> release(Clock::time_point now);
  // When release() will have something to do; max(): never, as things are.
  [[nodiscard]] Clock::time_point next_release() const;

 private:
  struct Share {
    Clock::time_point when;
    double part = 0;
  };
  struct Record {
    std::vector<Share> shares;  // oldest first
    bool is_quarantined = false;
  };

  const QuarantineLimits limits_;
  std::map<Program, Record> records_;
};

}  // namespace mpsshim::broker::control
