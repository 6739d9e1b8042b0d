// SPDX-License-Identifier: Apache-2.0
// The end of an executor. A fatal error of the context cannot be undone in this process: whoever meets it first reports it, and the process
// stands still; the control process decides by the progress table who was busy, starts the next executor and ends this one when that does
// not hold it up (docs/recovery.md, "Faults").
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "broker/driver/driver.hpp"

namespace mpsshim::broker {

class ControlLink;

// True for errors after which the context answers nothing else (illegal address, launch failure, assert, ...).
[[nodiscard]] bool is_fatal(CUresult result);

class FaultReporter {
 public:
  FaultReporter(const Driver& driver, ControlLink& control) : driver_(driver), control_(control) {}
  // Passes `result` through if it is not fatal; otherwise reports and does not return. `session`: whose call met it (not proof of guilt), 0 if none.
  CUresult check(CUresult result, std::uint64_t session, const char* call) const {
    if (is_fatal(result)) [[unlikely]]
      report_and_stop(result, session, call);
    return result;
  }
  // Called with the error before it is reported, by whatever thread has met it.
  void set_last_words(std::function<void(CUresult)> last_words) { last_words_ = std::move(last_words); }
  [[noreturn]] void report_and_stop(CUresult result, std::uint64_t session, const char* call) const;

 private:
  const Driver& driver_;
  ControlLink& control_;
  std::function<void(CUresult)> last_words_;
};

}  // namespace mpsshim::broker
