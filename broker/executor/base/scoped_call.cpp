// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/base/scoped_call.hpp"

#include <array>
#include <atomic>
#include <csignal>

#include <execinfo.h>
#include <unistd.h>

namespace mpsshim::broker {

namespace {

std::atomic<CallTable*> call_table{nullptr};
std::atomic<std::uint32_t> slots_taken{0};

constexpr std::array kCrashes = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};
std::array<struct sigaction, kCrashes.size()> former_actions;

// Where the thread was, on standard error, which is logged. Most crashes are in a library of the driver's, which has no other witness.
void tell_stack() {
  constexpr char kHead[] = "An executor has crashed here:\n";
  std::array<void*, 48> frames{};
  (void)!write(STDERR_FILENO, kHead, sizeof kHead - 1);
  backtrace_symbols_fd(frames.data(), backtrace(frames.data(), static_cast<int>(frames.size())), STDERR_FILENO);
}

// Only what is safe in a signal handler. Whoever else sent the signal, no thread of ours has crashed.
void on_crash(int number, siginfo_t* info, void*) {
  const bool is_ours = info->si_code > 0 || info->si_pid == getpid();
  if (is_ours && detail::call_slot != nullptr) detail::call_slot->signal.store(static_cast<std::uint32_t>(number), std::memory_order_relaxed);
  for (std::size_t i = 0; i < kCrashes.size(); ++i) {
    if (kCrashes[i] == number) sigaction(number, &former_actions[i], nullptr);
  }
  if (is_ours) tell_stack();
  if (info->si_code <= 0) raise(number);  // one that the faulting instruction raised comes again when this returns
}

}  // namespace

namespace detail {

// A thread that finds no slot has one that nobody looks at.
CallSlot& take_call_slot() {
  static thread_local CallSlot unwatched{};
  CallTable* const shared = call_table.load(std::memory_order_acquire);
  if (shared == nullptr) return unwatched;  // asked again next time: the table may be there by then
  const std::uint32_t index = slots_taken.fetch_add(1, std::memory_order_relaxed);
  call_slot = index < kCallSlots ? &shared->slot[index] : &unwatched;
  return *call_slot;
}

}  // namespace detail

void publish_calls(CallTable& shared) { call_table.store(&shared, std::memory_order_release); }

void note_crashes() {
  void* frame = nullptr;
  backtrace(&frame, 1);  // the first one loads a library, which a signal handler may not
  struct sigaction action {};
  action.sa_sigaction = on_crash;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  for (std::size_t i = 0; i < kCrashes.size(); ++i) sigaction(kCrashes[i], &action, &former_actions[i]);
}

}  // namespace mpsshim::broker
