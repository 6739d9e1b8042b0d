// SPDX-License-Identifier: Apache-2.0
// Touches noticed by a handler of SIGSEGV (touch_watch.hpp), where userfaultfd cannot be had. The handler does nothing but hand the address over and
// wait: it takes no lock, calls nothing that is not safe in a handler, and runs on whatever stack the program has given signals. What is none of
// ours goes to the action that the program had, as if that were still installed.
//
// A program may install its own handler afterwards. Whoever posts work looks whether that has happened, and puts this one in front again.
#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <ctime>

#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include "interposer/forward/begin.hpp"
#include "interposer/forward/memory/device_leases.hpp"
#include "interposer/forward/memory/populate.hpp"
#include "interposer/forward/memory/touch_watch.hpp"
#include "interposer/local/acting_session.hpp"
#include "interposer/settle.hpp"
#include "proto/futex.hpp"

namespace mpsshim::interposer::forward {

namespace {

enum class SlotState : std::uint32_t { free, taken, asked, heard, retry, not_ours };

struct Slot {
  std::atomic<std::uint32_t> state{static_cast<std::uint32_t>(SlotState::free)};
  std::uint64_t address = 0;
  bool is_write = false;

  void set(SlotState to) { state.store(static_cast<std::uint32_t>(to), std::memory_order_release); }
  [[nodiscard]] SlotState get() const { return static_cast<SlotState>(state.load(std::memory_order_acquire)); }
  [[nodiscard]] bool claim(SlotState from, SlotState to) {
    auto expected = static_cast<std::uint32_t>(from);
    return state.compare_exchange_strong(expected, static_cast<std::uint32_t>(to), std::memory_order_acq_rel);
  }
};

// More threads than this that touch at once wait for a slot.
constexpr std::size_t kSlots = 256;
std::array<Slot, kSlots> slots;
// Whose memory is watched: the program's threads act for the first session, wherever what they touch is.
std::array<std::atomic<const DeviceLeases*>, kMaxSessions> watched{};
std::atomic<std::uint32_t> rings{0};  // raised by every touch; pairs with SignalWatch::sleep
struct sigaction former;              // what the program has installed; written before the handler that reads it is in place

bool is_write_fault(const void* context) {
#if defined(__x86_64__)
  constexpr long kWrite = 2;  // of the page fault's error code
  return (static_cast<const ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] & kWrite) != 0;
#else
  (void)context;
  return true;
#endif
}

Slot& take_slot() {
  for (;;) {
    for (Slot& slot : slots) {
      if (slot.claim(SlotState::free, SlotState::taken)) return slot;
    }
    const timespec moment{0, 50'000};
    nanosleep(&moment, nullptr);
  }
}

// True: the touch can be made again.
bool wait_for_access(std::uint64_t address, bool is_write) {
  constexpr std::uint64_t kStepUs = 100'000;
  Slot& slot = take_slot();
  slot.address = address;
  slot.is_write = is_write;
  slot.set(SlotState::asked);
  rings.fetch_add(1, std::memory_order_release);
  proto::futex_wake_all(rings);
  SlotState now = slot.get();
  while (now == SlotState::asked || now == SlotState::heard) {
    proto::futex_wait(slot.state, static_cast<std::uint32_t>(now), kStepUs);
    now = slot.get();
  }
  slot.set(SlotState::free);
  return now == SlotState::retry;
}

// The program's handler may have kept this one as the action before its own, and pass on what it was passed: that fault is nobody's.
constexpr int kPassedOn = 0x6d505368;  // in si_errno, which has no meaning here

void pass_on(int signal, siginfo_t* info, void* context) {
  const bool comes_back = info->si_errno == kPassedOn;
  info->si_errno = kPassedOn;
  if (comes_back || ((former.sa_flags & SA_SIGINFO) == 0 && (former.sa_handler == SIG_DFL || former.sa_handler == SIG_IGN))) {
    // As the kernel does it, which ignores no fault: the instruction is run again without a handler.
    struct sigaction standard {};
    standard.sa_handler = SIG_DFL;
    sigaction(signal, &standard, nullptr);
    if (info->si_code <= 0) raise(signal);  // somebody has sent it
    return;
  }
  sigset_t before;
  pthread_sigmask(SIG_BLOCK, &former.sa_mask, &before);
  if ((former.sa_flags & SA_SIGINFO) != 0) {
    former.sa_sigaction(signal, info, context);
  } else {
    former.sa_handler(signal);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

bool is_watched(std::uint64_t address) {
  for (std::uint32_t index = 0; index < watched.size(); ++index) {
    const DeviceLeases* const leases = watched[index].load(std::memory_order_acquire);
    const ActingSession acting(index);
    if (leases != nullptr && leases->holds(address)) return true;
  }
  return false;
}

void handle(int signal, siginfo_t* info, void* context) {
  const int kept = errno;
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  const bool may_be_ours = info->si_code == SEGV_ACCERR && is_initialised() && is_watched(address);
  if (!may_be_ours || !wait_for_access(address, is_write_fault(context))) pass_on(signal, info, context);
  errno = kept;
}

class SignalWatch final : public TouchWatch {
 public:
  SignalWatch() { watched[ActingSession::index()].store(&leases_, std::memory_order_release); }

  [[nodiscard]] bool tells_writes() const override {
#if defined(__x86_64__)
    return true;
#else
    return false;
#endif
  }

  [[nodiscard]] bool add(AddressRange pages) override {
    // Else each page would be a fault of its own later on; older kernels have it so.
    (void)madvise(host_pointer(pages.address), pages.size_bytes, MADV_POPULATE_WRITE);
    return install() && close(pages);
  }
  void refresh() override { (void)install(); }
  void remove(AddressRange pages) override { (void)pages; }

  [[nodiscard]] bool close(AddressRange pages) override { return mprotect(host_pointer(pages.address), pages.size_bytes, PROT_NONE) == 0; }

  [[nodiscard]] bool open(AddressRange pages, HostAccess access) override {
    const int protection = access == HostAccess::write ? PROT_READ | PROT_WRITE : PROT_READ;
    return mprotect(host_pointer(pages.address), pages.size_bytes, protection) == 0;
  }

  void answer(const Touch& touch, bool is_ours) override {
    Slot& slot = slots[touch.waiter];
    slot.set(is_ours ? SlotState::retry : SlotState::not_ours);
    proto::futex_wake_all(slot.state);
  }

  [[nodiscard]] bool next(Touch& touch) override {
    heard_ = rings.load(std::memory_order_acquire);  // before the look: pairs with wait_for_access
    for (std::uint32_t i = 0; i < kSlots; ++i) {
      Slot& slot = slots[i];
      if (slot.get() != SlotState::asked || !leases_.holds(slot.address)) continue;
      touch = {slot.address, slot.is_write, i};
      slot.set(SlotState::heard);
      return true;
    }
    return false;
  }

  void sleep(std::uint64_t most_us) override { proto::futex_wait(rings, heard_, most_us); }

  [[nodiscard]] static bool install() {
    struct sigaction now {};
    if (sigaction(SIGSEGV, nullptr, &now) != 0) return false;
    if ((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == handle) return true;
    former = now;
    struct sigaction ours {};
    ours.sa_sigaction = handle;
    // On the program's signal stack, if it has one; nested, since the program's own handler may touch managed memory.
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER | SA_RESTART;
    sigemptyset(&ours.sa_mask);
    return sigaction(SIGSEGV, &ours, nullptr) == 0;
  }

 private:
  const DeviceLeases& leases_ = DeviceLeases::instance();  // of the session whose memory it watches: each watch hears its own touches
  std::uint32_t heard_ = 0;
};

}  // namespace

std::unique_ptr<TouchWatch> make_signal_watch() {
  if (!SignalWatch::install()) return nullptr;
  return std::make_unique<SignalWatch>();
}

}  // namespace mpsshim::interposer::forward
