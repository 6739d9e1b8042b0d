// SPDX-License-Identifier: Apache-2.0
// What the GPU's kernel module says about faults: "NVRM: Xid" lines of the kernel log. Where /dev/kmsg may not be read (most users, containers)
// there is nothing to be had, and nothing is said about it.
// Owned by SessionManager; the control process's thread. Lines are others' text: parsed, never trusted further than a guess at the address.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <sys/types.h>

#include "proto/segment.hpp"

namespace mpsshim::broker::control {

struct XidLine {
  unsigned number = 0;                   // 31: memory fault; 13: exception in a kernel; 43: a channel was stopped
  pid_t pid = -1;                        // of the process that holds the context; -1: not said
  std::optional<std::uint64_t> address;  // of a memory fault
  std::string text;                      // from "Xid" on, without control characters
};

// "NVRM: Xid (PCI:0000:17:00): 31, pid=4711, name=app, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @
// 0x7f0c_7fe00000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ", with whatever stands before it. nullopt for every other line.
[[nodiscard]] std::optional<XidLine> parse_xid(std::string_view line);

class KernelLog {
 public:
  explicit KernelLog(const char* path = "/dev/kmsg");  // from its present end on
  // Reads on, and returns the last line about process `pid`, preferably one with an address.
  [[nodiscard]] std::optional<XidLine> find(pid_t pid);

 private:
  proto::FileDescriptor file_;
};

}  // namespace mpsshim::broker::control
