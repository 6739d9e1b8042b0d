// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/process/stress_thread.hpp"

#include <chrono>
#include <utility>

#include <pthread.h>

#include "broker/executor/context/parts.hpp"
#include "broker/executor/window/quiet_window.hpp"
#include "broker/log.hpp"

namespace mpsshim::broker {

namespace {

using StressClock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kReportInterval{1'000};
constexpr std::uint64_t kWindowsBetweenFirsts = 16;

}  // namespace

StressThread::StressThread(ExecutorParts& parts) : parts_(parts) {
  if (!parts_.stress.is_on()) return;
  log_warning("For tests: sessions move every {} ms, a quiet window opens every {} ms, pools have at most {} graphs of a shape (0: as ever){}",
              parts_.stress.move_ms, parts_.stress.window_ms, parts_.stress.stock, parts_.stress.gather != 0 ? "; launches are gathered" : "");
  if (parts_.stress.move_ms != 0) parts_.sides.want();
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "stress");
    loop();
  });
}

StressThread::~StressThread() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void StressThread::loop() {
  StressClock::time_point report_at = StressClock::now() + kReportInterval;
  const auto pause = parts_.stress.window_ms != 0 ? std::chrono::milliseconds(parts_.stress.window_ms) : kReportInterval;
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, pause, [this]() REQUIRES(mutex_) { return stopping_; })) {
    if (parts_.stress.window_ms != 0) open_window();
    if (StressClock::now() < report_at) continue;
    report_at = StressClock::now() + kReportInterval;
    report();
  }
}

// Now and then no kernel with local memory has run yet, as far as anybody knows: the next ones go through windows of their own.
void StressThread::open_window() {
  if (is_asked_.exchange(true, std::memory_order_acq_rel)) return;
  WindowJob job{"a window for tests", 0, true, [this](WindowResult) {
                  if (parts_.stress.windows.fetch_add(1, std::memory_order_relaxed) % kWindowsBetweenFirsts == 0) parts_.local_bytes_high_water = 0;
                  is_asked_.store(false, std::memory_order_release);
                }};
  job.presses = true;
  parts_.window.submit(std::move(job));
}

// Since the last time, so that the lines of all lives can be added up.
void StressThread::report() {
  const Stress& stress = parts_.stress;
  const std::array<std::uint64_t, 4> now{stress.sessions_moved, stress.streams_exchanged, stress.windows, stress.graphs_missed};
  if (now == reported_) return;
  log_info("For tests: {} sessions moved, {} streams exchanged, {} windows opened, {} graphs missed", now[0] - reported_[0], now[1] - reported_[1],
           now[2] - reported_[2], now[3] - reported_[3]);
  reported_ = now;
}

}  // namespace mpsshim::broker
