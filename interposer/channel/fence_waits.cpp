// SPDX-License-Identifier: Apache-2.0
// How a client waits for a fence of its session, asks for one, and ends where a kernel of its own has failed.
#include <atomic>
#include <chrono>

#include <unistd.h>

#include "interposer/channel/session_client.hpp"

namespace mpsshim::interposer {

namespace {

constexpr unsigned kAnswerLookUs = 50;

// Completion::count_awake adds it to what is known of the client.
void note_awake_wait(const Wait& wait, proto::ChannelHeader& header) {
  const std::uint64_t awake_us = wait.awake_for_us();
  if (awake_us <= WaitPlan::kSpinUs) return;
  header.awake_wait_ns.fetch_add(awake_us * 1000, std::memory_order_relaxed);
  if (!wait.has_slept()) header.awake_waits.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

CUresult SessionClient::wait_fence(std::uint32_t index, std::uint32_t target, const char* reason, WaitPlan plan) {
  plan.is_for_gpu = true;
  while (!fences_.reached(index, target)) {
    const std::shared_ptr<Link> link = channel_.link();
    if (fences_.want(index, target)) link->wake_executor();
    FenceSleep sleep(*link, index, target);  // until Completion::scan in the executor wakes it
    Wait wait(reason, link->header(), channel_.peer(), plan);
    const WaitEnd end = wait.until([&] { return fences_.reached(index, target) || fences_.has_kernel_error() || has_other_moved(); }, sleep);
    note_awake_wait(wait, link->header());
    if (const CUresult error = channel_.settle(end, *link); error != CUDA_SUCCESS) return error;
    if (fences_.has_kernel_error()) break;  // what waits for the failed one may never end
    follow_others();
  }
  return look_for_kernel_error();
}

// Asked is the device, not only the word: what has come to know of the end in another way, through work that has waited for it or memory that the
// work has written, finds it here as well.
bool SessionClient::has_ended(std::uint32_t index, std::uint32_t target) {
  if (fences_.reached(index, target)) return true;
  const std::shared_ptr<Link> link = channel_.link();
  if (!fences_.want(index, target)) return false;
  const std::uint32_t ask = fences_.ask(index);
  link->wake_executor();  // goes on in StreamQueue::look_for_owed
  Wait wait("whether an event's work has ended", link->header(), channel_.peer());
  (void)wait.until([&] { return fences_.is_answered(index, ask) || fences_.reached(index, target); }, [](std::uint64_t) { usleep(kAnswerLookUs); });
  return fences_.reached(index, target);  // a session that is over says so to whoever looks next
}

// The executor has seen it as well. Once the kernel's words are where this process takes them, the control process says that the session has failed;
// without them the error is the same.
CUresult SessionClient::fail_by_kernel() {
  constexpr std::uint64_t kLookUs = 500;
  constexpr auto kPatience = std::chrono::seconds(2);
  const std::shared_ptr<Link> link = channel_.link();
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  Wait wait("the words of a failed assertion", link->header(), channel_.peer(), WaitStyle::sleep);
  const WaitEnd end = wait.until([&] { return std::chrono::steady_clock::now() >= deadline; }, [&](std::uint64_t) { usleep(kLookUs); });
  if (end == WaitEnd::failed || end == WaitEnd::gone) return channel_.settle(end, *link);
  return fail(CUDA_ERROR_ASSERT);
}

}  // namespace mpsshim::interposer
