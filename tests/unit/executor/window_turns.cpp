// SPDX-License-Identifier: Apache-2.0
// Quiet windows while calls without end want them: everybody else has turns.
#include <unistd.h>

#include <algorithm>

#include "tests/support/catch.hpp"
#include "tests/unit/executor/support/window_scene.hpp"

namespace mpsshim::broker {

namespace {

// Asks again and again for windows that are full, `at_once` at a time, until it goes.
class Asker {
 public:
  Asker(Window& w, int at_once, int length_us) : w_(w), length_us_(length_us) {
    for (int i = 0; i < at_once; ++i) ask();
  }
  ~Asker() {
    ends_ = true;
    (void)soon([&] { return under_way_ == 0; });
  }
  [[nodiscard]] int windows() const { return windows_; }

 private:
  void ask() {
    ++under_way_;
    WindowJob job{.what = "a test's call", .session = kOwn, .run = [this](WindowResult) {
                    ++windows_;
                    usleep(static_cast<useconds_t>(length_us_));
                  }};
    job.after = [this] {
      if (!ends_) ask();
      --under_way_;
    };
    w_.window.submit(std::move(job));
  }

  Window& w_;
  const int length_us_;
  std::atomic<bool> ends_{false};
  std::atomic<int> under_way_{0};
  std::atomic<int> windows_{0};
};

}  // namespace

TEST_CASE("who was kept out is let in before the next window, however long it takes to wake up") {
  Window w;
  Asker asker(w, 1, 200);
  QuietWindow::Gate& gate = w.window.gate(0);
  int kept_out = 0, most = 0;
  for (const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20); kept_out < 50;) {
    REQUIRE(std::chrono::steady_clock::now() < end);
    gate.begin_visit();
    const int before = asker.windows();
    const bool is_in = gate.enter();
    if (is_in) gate.leave();
    gate.end_visit();
    if (is_in) continue;
    ++kept_out;
    usleep(3'000);
    most = std::max(most, asker.windows() - before);
  }
  CHECK(most <= 2);  // the one that kept it out may have begun since, and one more where this thread slept beyond the limit
}

TEST_CASE("calls without end do not keep those from being made that come after them") {
  Window w;
  const Asker asker(w, 3, 1'200);
  w.ask(true);
  w.window.submit({.what = "a test's launch", .session = kOwn, .run = [&](WindowResult) { ++w.opened; }, .issues_work = true});
  CHECK(soon([&] { return w.opened == 2; }));
}

TEST_CASE("calls without end have turns with long work") {
  WindowLimits limits = quick_limits();
  limits.hold_per_second = milliseconds(1'000);
  Window w(limits);
  const Asker asker(w, 2, 200);
  QuietWindow::Gate& gate = w.window.gate(0);
  int function = 0;
  int rounds = 0;
  for (const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1); std::chrono::steady_clock::now() < end;) {
    gate.begin_visit();
    const bool is_in = gate.enter();
    const bool begins = is_in && !w.window.holds(0, &function);
    if (begins) {
      w.window.note_launch(0, &function);
      w.begin(0);
    }
    if (is_in) gate.leave();
    gate.end_visit();
    usleep(begins ? 4'000 : 50);
    if (begins) w.end(0);
    rounds += begins ? 1 : 0;
  }
  const int windows = asker.windows();
  INFO(rounds << " rounds, " << windows << " windows");
  CHECK(rounds >= 20);
  CHECK(windows >= 20);
}

TEST_CASE("who asked before the window's thread looked last has its turn all the same") {
  const auto table = std::make_unique<ProgressTable>();
  table->stream[0].session = 1;
  const WindowLimits limits;
  StreamWatch watch(*table, limits);
  watch.set_used([] { return 1u; });
  const int function = 0;
  const auto start = StreamWatch::Clock::now();
  watch.note_launch(0, &function);
  ++table->stream[0].issued;
  (void)watch.scan(start);
  REQUIRE(watch.scan(start + milliseconds(5)).any_long);
  ++table->stream[0].completed;
  watch.set_pressing(true);
  (void)watch.scan(start + milliseconds(6));
  REQUIRE(watch.holds(0, &function));
  (void)watch.scan(start + milliseconds(7));  // then the window, while the worker sleeps
  watch.give_turns();
  CHECK_FALSE(watch.holds(0, &function));
  CHECK(watch.holds(0, &function));  // one launch, no more
}

TEST_CASE("who waits behind calls of its own does not starve") {
  Window w;
  constexpr int kCalls = 40;
  for (int i = 0; i < kCalls; ++i) {
    w.window.submit({.what = "a test's call", .session = kOwn, .run = [&](WindowResult) {
                       usleep(10'000);
                       ++w.opened;
                     }});
  }
  for (int i = 0; i < 1'000 && w.opened < kCalls; ++i) {  // another session's work, 5 ms each
    w.begin(0);
    usleep(5'000);
    w.end(0);
    usleep(1'000);
  }
  CHECK(w.opened == kCalls);
  CHECK(w.reports == 0);
}

}  // namespace mpsshim::broker
