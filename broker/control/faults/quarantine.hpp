// SPDX-License-Identifier: Apache-2.0
// Which programs fault again and again. Each fault is worth 1, divided among its suspects: a guilty client bears it alone, eight suspects an
// eighth each, so that a program all of whose clients are suspects bears it whole. An executor that had to be replaced for work that a client
// has left behind counts as a fault of it.
// A program is what a user runs, by content: a copy, a link or another name is the same one, another user's is another. The first words of its
// command line belong to it (ProgramIdentity::command), so that a script which faults stands for itself, and not for its interpreter.
// In quarantine (a Ward) is
//   a command   whose share of the faults within `window` has come to `faults`;
//   a program   of which so many different commands have faulted, two at least: with other arguments it is the same one;
//   a user      so many different programs of whom have faulted, two at least: then all that have not ended without a fault before.
// What is in quarantine has its newcomers served apart from the others. It leaves after `window` without a share in a fault.
// On probation (a Ward as well) is, where it is asked for, every program of which no client is known that has done without a fault.
// Owned by FaultLedger; the control process's thread. Free of sockets and processes; time is the caller's.
#pragma once

#include <chrono>
#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include <sys/types.h>

#include "proto/content_hash.hpp"

namespace mpsshim::broker::control {

class StateReader;
class StateWriter;

struct ProgramIdentity {
  uid_t uid = static_cast<uid_t>(-1);
  proto::ContentDigest digest{};  // of the executable's content (program_reader.hpp); zeros: it cannot be read, as of others
  std::string command;            // the words behind its name, up to the first that is no option: which script, module or input it runs
  std::string path;               // for the log; anybody may give a program any
  friend auto operator<=>(const ProgramIdentity& a, const ProgramIdentity& b) {
    return std::tie(a.uid, a.digest, a.command) <=> std::tie(b.uid, b.digest, b.command);
  }
  friend bool operator==(const ProgramIdentity& a, const ProgramIdentity& b) { return std::is_eq(a <=> b); }
};

// All that is in quarantine together: of the program, `command` is blank where it does not matter, and `digest`.
struct Ward {
  enum class Extent : std::uint8_t { command, program, user, newcomers, group, trials };
  Extent extent = Extent::command;
  ProgramIdentity program;
  std::uint64_t group = 0;
  // The members of a group that has executors of its own (Namespaces), whatever they run; not in quarantine.
  static Ward of_group(std::uint64_t group);
  [[nodiscard]] bool is_group() const { return extent == Extent::group; }
  static Ward of_trials();  // whoever may have caused a fault, one after the other (Trials); not in quarantine
  [[nodiscard]] bool is_trials() const { return extent == Extent::trials; }
  static Ward of(Extent extent, const ProgramIdentity& program);
  [[nodiscard]] bool holds(const ProgramIdentity& other) const { return of(extent, other) == *this; }
  [[nodiscard]] bool is_probation() const { return extent == Extent::newcomers; }  // of that user's programs; not in quarantine
  [[nodiscard]] bool is_quarantine() const { return extent == Extent::command || extent == Extent::program || extent == Extent::user; }
  [[nodiscard]] std::string name() const;  // "Program /bin/app train.py (uid 1000)"
  friend auto operator<=>(const Ward&, const Ward&) = default;
};

struct QuarantineLimits {
  unsigned faults = 3;  // 0: nobody is ever in quarantine
  std::chrono::seconds window{300};
  unsigned executors = 1;  // of a device and user that serve such clients, at most; the rest is for the others
  std::chrono::seconds probation{0};  // 0: nobody is on probation
};

class Quarantine {
 public:
  using Clock = std::chrono::steady_clock;
  explicit Quarantine(const QuarantineLimits& limits) : limits_(limits) {}

  // One fault, or what is worth `weight` of them, with the programs of its suspects, one entry each. What is in quarantine from now on.
  [[nodiscard]] std::vector<Ward> note_fault(std::span<const ProgramIdentity> suspects, Clock::time_point now, double weight = 1);
  // A client of it has ended without an error, or was served for as long as probation takes.
  void note_good(const ProgramIdentity& program);
  // The smallest that the program is in; the user's newcomers if that is none and nothing good is known of it.
  [[nodiscard]] std::optional<Ward> ward_of(const ProgramIdentity& program) const;
  // Whether anything of that user is in quarantine, or may be on probation, so that it matters what a newcomer is.
  [[nodiscard]] bool concerns(uid_t uid) const;
  // Those whose time is over.
  [[nodiscard]] std::vector<Ward> release(Clock::time_point now);
  // When release() will have something to do; max(): never, as things are.
  [[nodiscard]] Clock::time_point next_release() const;
  // For another program in the same process (handover.hpp), which has limits of its own; the clock goes on.
  void save(StateWriter& state) const;
  void restore(StateReader& state);

 private:
  struct Share {
    Clock::time_point when;
    double part = 0;
  };
  using Shares = std::vector<Share>;  // oldest first, never empty

  [[nodiscard]] double sum_of(const Shares& shares, Clock::time_point now) const;
  [[nodiscard]] double different(const Ward& whole, Ward::Extent parts, Clock::time_point now) const;
  void make_room();

  const QuarantineLimits limits_;
  std::map<ProgramIdentity, Shares> records_;
  std::set<Ward> wards_;
  std::map<ProgramIdentity, std::uint64_t> good_;  // the older the lower
  std::uint64_t last_good_ = 0;
};

}  // namespace mpsshim::broker::control
