// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/fault_watch.hpp"

#include "broker/executor/quiet_window.hpp"
#include "broker/log.hpp"

namespace mpsshim::broker {

namespace {

constexpr std::chrono::microseconds kBusyPause{500};
constexpr std::chrono::microseconds kStalledPause{50};  // a fault is suspected: every look may be the one that tells
constexpr std::chrono::milliseconds kIdlePause{2};
constexpr std::chrono::milliseconds kAttentive{100};  // nothing in flight for so long: sleep until somebody sends something
constexpr std::chrono::milliseconds kSleepLimit{200};
constexpr std::chrono::milliseconds kRung{10};     // time for what was sent to reach the driver
constexpr std::chrono::milliseconds kQuiet{1};     // nothing ended for so long: probe
constexpr std::chrono::milliseconds kPatience{1};  // the probe is out for so long: take the GPU to be stalled

}  // namespace

FaultWatch::FaultWatch(ExecutorParts& parts, std::function<void()> enter_thread)
    : parts_(parts), enter_thread_(std::move(enter_thread)), thread_([this] { loop(); }) {}

FaultWatch::~FaultWatch() {
  stopping_ = true;
  parts_.bell.ring();
  thread_.join();
}

bool FaultWatch::open() {
  int least = 0;
  int greatest = 0;
  parts_.driver->cuCtxGetStreamPriorityRange(&least, &greatest);
  CUresult result = parts_.driver->cuStreamCreateWithPriority(&stream_, CU_STREAM_NON_BLOCKING, greatest);
  const std::optional<std::uint32_t> word = parts_.progress.take();
  if (!word) result = CUDA_ERROR_OUT_OF_MEMORY;
  if (result != CUDA_SUCCESS) {
    log_error("No stream for the fault watch ({}): a fault is noticed only at the next driver call", parts_.driver.describe(result));
    return false;
  }
  word_ = *word;
  return true;
}

void FaultWatch::loop() {
  enter_thread_();
  if (!open()) return;
  while (!stopping_) {
    const Clock::time_point now = Clock::now();
    const bool busy = look(now);
    if (busy) parts_.window.observe();
    if (parts_.variables.turn(now)) attentive_until_ = now + kAttentive;
    if (probe_)
      look_at_probe(now);
    else if (busy && now - last_change_ >= kQuiet)
      launch_probe(now);
    pause(now, busy || probe_);
  }
}

// An idle executor costs next to nothing, whatever the number of its sessions.
void FaultWatch::pause(Clock::time_point now, bool busy) {
  if (busy) return std::this_thread::sleep_for(parts_.engine_stalled.load(std::memory_order_relaxed) ? kStalledPause : kBusyPause);
  if (now < attentive_until_) return std::this_thread::sleep_for(kIdlePause);
  parts_.bell.wait(kSleepLimit);
  attentive_until_ = Clock::now() + kRung;
}

// True while work is in flight; notes when something last ended, and whether many are at it.
bool FaultWatch::look(Clock::time_point now) {
  std::uint64_t sum = 0;
  std::uint32_t busy = 0;
  const std::uint32_t used = parts_.progress.used();
  for (std::uint32_t i = 0; i < used; ++i) {
    const StreamProgress& stream = parts_.progress[i];
    const std::uint64_t session = stream.session.load(std::memory_order_relaxed);
    if (session == 0) continue;
    sum += stream.completed.load(std::memory_order_relaxed);
    if (!parts_.progress.is_busy(i)) continue;
    ++busy;
    busy_session_ = session;
  }
  if (busy == 0 || sum != last_sum_) last_change_ = now;
  if (busy != 0 || sum != last_sum_) attentive_until_ = now + kAttentive;
  last_sum_ = sum;
  parts_.is_crowded.store(busy > parts_.connections, std::memory_order_relaxed);
  return busy != 0;
}

void FaultWatch::launch_probe(Clock::time_point now) {
  const ScopedMark mark(0, "cuLaunchKernel");
  if (parts_.nop_function != nullptr) {
    parts_.faults.check(parts_.driver->cuLaunchKernel(parts_.nop_function, 1, 1, 1, 1, 1, 1, 0, stream_, nullptr, nullptr), busy_session_,
                        "the fault watch's launch");
  }
  const CUresult result =
      parts_.driver->cuStreamWriteValue32_v2(stream_, parts_.progress.completed_address(word_), ++launched_, CU_STREAM_WRITE_VALUE_DEFAULT);
  parts_.faults.check(result, busy_session_, "the fault watch's write");
  probe_ = Probe{launched_, now};
}

void FaultWatch::look_at_probe(Clock::time_point now) {
  if (progress_reached(parts_.progress[word_].completed.load(std::memory_order_acquire), probe_->value)) {
    probe_.reset();
    last_change_ = now;
    parts_.engine_stalled.store(false, std::memory_order_relaxed);
    return;
  }
  if (now - probe_->since < kPatience) return;
  parts_.engine_stalled.store(true, std::memory_order_relaxed);
  const ScopedMark mark(0, "cuStreamQuery");
  const CUresult result = parts_.driver->cuStreamQuery(stream_);
  if (!is_fatal(result)) return;
  const auto stood_still = std::chrono::duration_cast<std::chrono::milliseconds>(now - last_change_).count();
  parts_.faults.report_and_exit(result, busy_session_, fmt::format("cuStreamQuery, {} ms after anything last ended,", stood_still).c_str());
}

}  // namespace mpsshim::broker
