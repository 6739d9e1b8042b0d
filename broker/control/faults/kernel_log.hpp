// SPDX-License-Identifier: Apache-2.0
// What the GPU's kernel module says about faults: "NVRM: Xid" lines of the kernel log. Where /dev/kmsg may not be read (most users, containers)
// there is nothing to be had, and nothing is said about it.
// When a line comes says when the fault was, far better than the driver's report (docs/experiments/2026-11-22-who-tells-of-a-fault.md): within
// milliseconds, except for memory faults, which the kernel module itself learns of late.
// Owned by Investigation; the control process's thread. Lines are others' text: parsed, never trusted further than a guess at address and time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <sys/types.h>

#include "broker/control/base/event_loop.hpp"
#include "broker/seen_end.hpp"
#include "proto/segment.hpp"

namespace mpsshim::broker::control {

inline constexpr unsigned kXidException = 13;  // the first lines about one say where it was, not whose kernel
inline constexpr unsigned kXidStopped = 43;

struct XidLine {
  unsigned number = 0;                   // 31: memory fault; 13: exception in a kernel; 43: a channel was stopped, by a trap or an assertion
  pid_t pid = -1;                        // of the process that holds the context; -1: not said
  std::optional<std::uint64_t> address;  // of a memory fault
  std::string text;                      // from "Xid" on, without control characters
};

// "NVRM: Xid (PCI:0000:17:00): 31, pid=4711, name=app, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @
// 0x7f0c_7fe00000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ", with whatever stands before it. nullopt for every other line.
[[nodiscard]] std::optional<XidLine> parse_xid(std::string_view line);

class KernelLog {
 public:
  explicit KernelLog(const char* path = "/dev/kmsg");                               // from its present end on
  explicit KernelLog(proto::FileDescriptor records) : file_(std::move(records)) {}  // a record a read, as there
  KernelLog(const KernelLog&) = delete;
  // Reads each line when it comes, and calls `told` with it. Otherwise lines come when somebody asks.
  void listen(EventLoop& loop, std::function<void(const XidLine&)> told);
  // The first line about process `pid` with an address, or else its last; its lines are forgotten then. A fault may have others as consequences.
  [[nodiscard]] std::optional<XidLine> find(pid_t pid);
  // When its first line of late came; nullopt without listen().
  [[nodiscard]] std::optional<ProgressTick> first_heard(pid_t pid);

 private:
  static constexpr std::size_t kMostProcesses = 64;
  struct Heard {
    XidLine line;
    ProgressTick first = 0;
    ProgressTick last = 0;
  };
  void read_on();
  void note(XidLine line);

  proto::FileDescriptor file_;
  EventLoop::Watch watch_;
  std::function<void(const XidLine&)> told_;
  std::map<pid_t, Heard> heard_;
};

}  // namespace mpsshim::broker::control
