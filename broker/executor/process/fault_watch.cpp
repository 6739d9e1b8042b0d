// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/process/fault_watch.hpp"
#include "broker/executor/base/empty_kernel.hpp"

#include <algorithm>

#include <pthread.h>
#include <sys/prctl.h>

#include "broker/executor/base/thread_priority.hpp"
#include "broker/executor/window/quiet_window.hpp"
#include "broker/log.hpp"
#include "broker/seen_end.hpp"

namespace mpsshim::broker {

namespace {

constexpr unsigned kManyCores = 8;
constexpr std::chrono::microseconds kBusyPause{40};  // with many cores: every look that comes earlier saves a client now and then
constexpr std::chrono::microseconds kPressedPause{160};  // while threads stand without cores: each look takes one from somebody
constexpr std::chrono::microseconds kBusyPauseOfFew{500};
constexpr std::chrono::microseconds kLonePause{500};  // while one session is at work: there is nobody else whom an early look would save
constexpr std::chrono::microseconds kObservation{500};
constexpr std::chrono::microseconds kStalledPause{50};  // a fault is suspected: every look may be the one that tells
constexpr std::chrono::milliseconds kRecent{2};         // clients that wait for each launch are idle most of the time
constexpr std::chrono::milliseconds kIdlePause{2};
constexpr std::chrono::milliseconds kAttentive{100};  // nothing in flight for so long: sleep until somebody sends something
constexpr std::chrono::milliseconds kProbeSleepLimit{200};
constexpr std::chrono::milliseconds kRung{10};        // time for what was sent to reach the driver
constexpr std::chrono::milliseconds kQuiet{1};        // nothing ended for so long: probe
constexpr std::chrono::microseconds kLeastRest{200};  // between two probes of overdue streams
constexpr std::chrono::milliseconds kMostRest{10};    // where they come back again and again: the work is uneven, not the GPU still
constexpr int kCalm = 16;                             // so many rests without one: begin with the least again
constexpr std::chrono::microseconds kRoundTrip{30};   // a probe that is back by then has held up nobody for longer than it took

}  // namespace

FaultWatch::FaultWatch(ExecutorParts& parts, std::function<void()> enter_thread)
    : parts_(parts),
      enter_thread_(std::move(enter_thread)),
      spare_cores_(std::thread::hardware_concurrency() >= kManyCores),
      sense_(kBusyPauseOfFew),
      busy_time_(progress_tick()) {
  if (!open()) return;
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "fault-watch");
    loop();
  });
}

FaultWatch::~FaultWatch() {
  stopping_ = true;
  parts_.bell.ring();
  if (thread_.joinable()) thread_.join();
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
  if (spare_cores_) prctl(PR_SET_TIMERSLACK, kTimerSlackNs);
  serve_before_others();
  busy_time_.begin(Clock::now());
  while (!stopping_) {
    const Clock::time_point now = Clock::now();
    const StallSense::Verdict verdict = look(now);
    if (verdict.busy && now - last_observation_ >= kObservation) {
      parts_.window.observe();
      last_observation_ = now;
    }
    are_variables_stale_ = parts_.variables.turn(now);
    if (are_variables_stale_) attentive_until_ = now + kAttentive;
    if (Assertions* const assertions = parts_.modules.assertions(); assertions != nullptr) assertions->turn(parts_.progress, now);
    if (probe_) {
      suspicion_.look(verdict.ended, now);
      look_at_probe(now);
    } else if (verdict.quiet >= kQuiet || (verdict.overdue && is_alarm_due(now))) {
      launch_probe(now);
    }
    if (verdict.active || are_variables_stale_) last_activity_ = now;
    pause(now, probe_ || now - last_activity_ < kRecent);
  }
}

// An idle executor costs next to nothing, whatever the number of its sessions.
void FaultWatch::pause(Clock::time_point now, bool is_at_work) {
  if (is_at_work) {
    const bool is_stalled = probe_ && suspicion_.is_question_due(now);
    return std::this_thread::sleep_for(busy_time_.until_next(now, is_stalled ? Clock::duration(kStalledPause) : look_interval(now), false));
  }
  if (now < attentive_until_) return std::this_thread::sleep_for(busy_time_.until_next(now, kIdlePause, true));
  const bool has_rung = parts_.bell.wait(kProbeSleepLimit);
  const Clock::time_point awake = Clock::now();
  busy_time_.begin(awake);
  if (has_rung) attentive_until_ = awake + kRung;  // else one look: whose record rang nothing is in flight by now
}

FaultWatch::Clock::duration FaultWatch::look_interval(Clock::time_point now) const {
  if (!spare_cores_) return kBusyPauseOfFew;
  if (now >= several_until_ && !are_variables_stale_) return kLonePause;
  return parts_.pressure.is_high(now) ? kPressedPause : kBusyPause;
}

void FaultWatch::note_at_work(std::uint64_t session, Clock::time_point now) {
  if (session != last_at_work_ && now - last_work_ < kRecent) several_until_ = now + kRecent;
  last_at_work_ = session;
  last_work_ = now;
}

StallSense::Verdict FaultWatch::look(Clock::time_point now) {
  sense_.set_look_interval(look_interval(now));
  std::uint32_t busy = 0;
  const std::uint32_t used = parts_.progress.used();
  const ProgressTick tick = progress_tick();
  for (std::uint32_t i = 0; i < used; ++i) {
    StreamProgress& stream = parts_.progress[i];
    const std::uint64_t session = stream.session.load(std::memory_order_relaxed);
    const std::uint32_t completed = stream.completed.load(std::memory_order_acquire);
    const std::uint32_t issued = stream.issued.load(std::memory_order_relaxed);
    sense_.see(i, session, issued, completed, now);
    const bool has_ended_some = !has_noted(stream, completed);
    if (has_ended_some) note_end(stream, completed, tick);
    note_work(stream, session != 0 && issued != completed, tick);
    if (session != 0 && (has_ended_some || issued != completed)) note_at_work(session, now);
    if (session == 0 || issued == completed) continue;
    busy_time_.see(stream.counts.load(std::memory_order_relaxed));
    parts_.awake_waits.see(session);
    ++busy;
    busy_session_ = session;
  }
  busy_time_.conclude(now, parts_.counts);
  parts_.awake_waits.conclude(now);
  const StallSense::Verdict verdict = sense_.conclude(now);
  if (verdict.active) attentive_until_ = now + kAttentive;
  last_change_ = now - verdict.quiet;
  parts_.is_crowded.store(busy > parts_.connections, std::memory_order_relaxed);
  return verdict;
}

bool FaultWatch::is_alarm_due(Clock::time_point now) {
  const Clock::duration since = now - last_alarm_;
  if (since < rest_) return false;
  rest_ = since > kCalm * rest_ ? Clock::duration(kLeastRest) : std::min<Clock::duration>(2 * rest_, kMostRest);
  last_alarm_ = now;
  return true;
}

// With few cores nobody can look at once whether the probe is back, so its round trip would hold up the others for a while.
void FaultWatch::launch_probe(Clock::time_point now) {
  const ScopedMark mark(0, "cuLaunchKernel");
  suspicion_.begin(spare_cores_, now);
  parts_.engine_stalled.store(suspicion_.is_stalled(now), std::memory_order_relaxed);
  if (parts_.nop_function != nullptr) {
    parts_.faults.check(parts_.driver->cuLaunchKernel(parts_.nop_function, 1, 1, 1, 1, 1, 1, 0, stream_, EmptyKernelParameters().addresses, nullptr),
                        busy_session_, "the fault watch's launch");
  }
  const CUresult result = parts_.progress.completed(word_).write(parts_.driver, stream_, ++launched_);
  parts_.faults.check(result, busy_session_, "the fault watch's write");
  probe_ = launched_;
  if (spare_cores_) await_probe();
}

// Idle sessions wait meanwhile, so no pause is made.
void FaultWatch::await_probe() {
  const Clock::time_point end = Clock::now() + kRoundTrip;
  for (Clock::time_point now = Clock::now(); probe_ && now < end; now = Clock::now()) {
    if (probe_is_back()) look_at_probe(now);
  }
}

bool FaultWatch::probe_is_back() const { return progress_reached(parts_.progress[word_].completed.load(std::memory_order_acquire), *probe_); }

void FaultWatch::look_at_probe(Clock::time_point now) {
  if (probe_is_back()) {
    probe_.reset();
    sense_.absolve(now);
    parts_.engine_stalled.store(false, std::memory_order_relaxed);
    return;
  }
  parts_.engine_stalled.store(suspicion_.is_stalled(now), std::memory_order_relaxed);
  if (!suspicion_.is_question_due(now) || now - last_query_ < kStalledPause) return;
  last_query_ = now;
  const ScopedMark mark(0, "cuStreamQuery");
  const CUresult result = parts_.driver->cuStreamQuery(stream_);
  if (!is_fatal(result)) return;
  const auto stood_still = std::chrono::duration_cast<std::chrono::milliseconds>(now - last_change_).count();
  parts_.faults.report_and_stop(result, busy_session_, fmt::format("cuStreamQuery, {} ms after anything last ended,", stood_still).c_str());
}

}  // namespace mpsshim::broker
