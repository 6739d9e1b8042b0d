// SPDX-License-Identifier: Apache-2.0
// One fault beside bystanders, and what became of all of them.
//
// A Stage is set up afresh for each scenario: bystanders attach, hold what their kind says, the guilty client attaches, and Fault::strike does
// its worst. A fault is one entry of all_faults() (faults.cpp), a kind of bystander one of all_bystanders() (scenario.cpp); nothing else needs
// to know of either. Idle bystanders disturb nobody, so all of them are on stage at once; one that works is there alone with the guilty one,
// since who faulted is not certain where several were at work.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tests/process/client.hpp"
#include "tests/reliability/sides.hpp"

namespace mpsshim::test {

// Nanoseconds of CLOCK_MONOTONIC, in all processes alike.
using Stamp = std::int64_t;
[[nodiscard]] Stamp now_stamp();

class Stage {
 public:
  explicit Stage(Side& where) : side(where) {}
  Side& side;
  std::optional<Client> guilty;
  Stamp struck_at = 0;       // set by strike(), as close before the fault as can be
  std::string guilty_error;  // what the guilty one's wait gave: "700 CUDA_ERROR_ILLEGAL_ADDRESS"; empty: nothing was asked of it
};

struct Fault {
  std::string name;
  std::function<void(Stage&)> strike;
  // What the guilty client's calls give from then on, where it was the only one at work; empty: it is gone, or there is none.
  std::vector<int> errors;
  bool needs_server = false;  // natively there is none
  bool needs_broker = false;  // has no counterpart under NVIDIA MPS either
  bool lives_on = false;      // the executor goes on for a moment, and who calls then is at work in it
};
[[nodiscard]] const std::vector<Fault>& all_faults();

enum class Promise {
  goes_on,               // as if nothing had happened
  goes_on_or_mps_error,  // or an error of MPS's own, sticky; never the guilty one's error, never wrong data
};

struct Bystander {
  std::string kind;  // an argument of the client's commands
  std::string name;
  Promise promise = Promise::goes_on;
  bool is_idle = true;
  bool is_kept_at_rest = false;  // what it holds is copied once it has been idle for some 50 ms
};
[[nodiscard]] const std::vector<Bystander>& all_bystanders();

struct Result {
  std::string fault;
  std::string bystander;      // empty: the guilty one itself
  std::string answer;         // "ok", or what failed
  double until_next_ms = -1;  // from the fault to the bystander's next completed launch; of one at work: its longest pause. -1: none
  bool is_kept = false;       // what the table promises
  std::string log;            // the broker's and the client's words, where it is not kept, or late
  [[nodiscard]] bool is_late() const { return until_next_ms > 500; }
};

// All bystanders' outcomes and the guilty one's, each scenario on a side of its own. Through mpsshim it throws where a
// scenario could not be set up.
[[nodiscard]] std::vector<Result> play(SideKind kind, const Fault& fault);

}  // namespace mpsshim::test
