// SPDX-License-Identifier: Apache-2.0
// How this process's touches of managed memory are noticed: pages are closed, a touch of them is an event, and whoever touched waits until they are
// open. Two mechanisms, the first that the system allows:
//
//   userfaultfd  closed pages are not mapped. Nothing of the program is changed; where the kernel lets this process handle its own faults too
//                (/dev/userfaultfd, CAP_SYS_PTRACE or vm.unprivileged_userfaultfd), buffers given to system calls are noticed as well.
//   a handler    closed pages are protected, and a handler of SIGSEGV is put in front of the program's, which gets every fault of other memory.
//                System calls fail with EFAULT on closed pages.
//
// The memory is a shared mapping of a file whose pages are all there, and which has another mapping that is never closed. One thread takes events,
// and it must never touch closed pages; the rest is called under the owner's lock.
#pragma once

#include <cstdint>
#include <memory>

#include "interposer/forward/memory/address_range.hpp"
#include "interposer/forward/memory/coherence.hpp"

namespace mpsshim::interposer::forward {

class TouchWatch {
 public:
  struct Touch {
    std::uint64_t address = 0;
    bool is_write = false;
    std::uint32_t waiter = 0;  // the mechanism's own
  };

  // Null: neither mechanism can be had.
  [[nodiscard]] static std::unique_ptr<TouchWatch> make();
  virtual ~TouchWatch() = default;

  // Whether buffers of system calls may be closed pages.
  [[nodiscard]] virtual bool notices_system_calls() const { return false; }

  // Whether pages can be open for reading alone.
  [[nodiscard]] virtual bool tells_writes() const = 0;
  // Before work is posted: what the program may have changed since is put right.
  virtual void refresh() {}
  // Whole pages, mapped so far with all access. False: they cannot be watched.
  [[nodiscard]] virtual bool add(AddressRange pages) = 0;
  virtual void remove(AddressRange pages) = 0;
  // False: the program may still touch them unnoticed.
  [[nodiscard]] virtual bool close(AddressRange pages) = 0;
  // Wakes whoever waits there. False: they are still closed.
  [[nodiscard]] virtual bool open(AddressRange pages, HostAccess access) = 0;
  // Whoever has touched does so again, or, where the address is none of ours, is left to the program's own handler.
  virtual void answer(const Touch& touch, bool is_ours) = 0;

  // The next event; false if there is none.
  [[nodiscard]] virtual bool next(Touch& touch) = 0;
  // Sleeps until there is one, `most_us` at most.
  virtual void sleep(std::uint64_t most_us) = 0;
};

[[nodiscard]] std::unique_ptr<TouchWatch> make_userfault_watch();
[[nodiscard]] std::unique_ptr<TouchWatch> make_signal_watch();

}  // namespace mpsshim::interposer::forward
