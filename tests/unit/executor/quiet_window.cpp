// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <thread>
#include <vector>

#include "tests/support/catch.hpp"
#include "tests/unit/executor/support/window_scene.hpp"

namespace mpsshim::broker {

TEST_CASE("a window opens at once where nothing runs, and after the work in flight where something does") {
  Window w;
  w.ask();
  REQUIRE(soon([&] { return w.opened == 1; }));
  w.begin(0);
  w.ask();
  usleep(20'000);
  CHECK(w.opened == 1);
  w.end(0);
  CHECK(soon([&] { return w.opened == 2; }));
  CHECK(w.refused == 0);
}

TEST_CASE("long streams are held, short ones are not, and all is let go afterwards") {
  Window w;
  w.begin(0);
  w.ask();
  REQUIRE(soon([&] { return w.window.holds(0, nullptr); }));
  CHECK_FALSE(w.window.holds(1, nullptr));
  CHECK(w.window.is_pending());
  CHECK(w.window.gate(0).enter());  // the short ones go on meanwhile
  w.window.gate(0).leave();
  w.end(0);
  REQUIRE(soon([&] { return w.opened == 1; }));
  CHECK(soon([&] { return !w.window.holds(0, nullptr) && !w.window.is_pending(); }));
}

TEST_CASE("a function whose last run was long is held before it runs again, on any stream") {
  Window w;
  int long_function = 0;
  int short_function = 0;
  w.window.note_launch(0, &long_function);
  w.begin(0);
  w.ask();
  REQUIRE(soon([&] { return w.window.holds(0, nullptr); }));
  CHECK(w.window.holds(1, &long_function));
  CHECK_FALSE(w.window.holds(1, &short_function));
  w.end(0);
  REQUIRE(soon([&] { return w.opened == 1; }));
  CHECK(soon([&] { return !w.window.holds(1, &long_function); }));
}

TEST_CASE("launches of a function that runs very long are issued one at a time") {
  WindowLimits limits = quick_limits();
  limits.very_long_work = milliseconds(20);
  Window w(limits);
  int function = 0;
  w.window.note_launch(0, &function);
  w.begin(0);
  w.window.observe();
  CHECK_FALSE(w.window.holds(0, &function));
  usleep(30'000);
  w.window.observe();
  CHECK(w.window.is_very_long(&function));
  CHECK(w.window.holds(0, &function));        // until the first has ended
  CHECK_FALSE(w.window.holds(0, nullptr));    // a copy behind it is no matter
  CHECK_FALSE(w.window.holds(1, &function));  // that stream is idle
  w.end(0);
  CHECK_FALSE(w.window.holds(0, &function));
  // A short run is forgiven.
  w.begin(0);
  w.window.observe();
  w.end(0);
  w.window.observe();
  CHECK_FALSE(w.window.is_very_long(&function));
}

TEST_CASE("a session is not kept waiting for more than its share") {
  WindowLimits limits = quick_limits();
  limits.hold_per_second = milliseconds(400);
  limits.give_up = milliseconds(0);
  Window w(limits);
  w.begin(0);
  w.begin(1);
  w.ask();
  REQUIRE(soon([&] { return w.window.holds(0, nullptr) && w.window.holds(1, nullptr); }));
  usleep(20'000);
  const auto idle_since = std::chrono::steady_clock::now();
  w.end(0);  // now it stands idle because of streams 1 and 2, which take turns
  CHECK(w.window.holds(0, nullptr));
  for (std::uint32_t turn = 0; turn < 100 && w.window.holds(0, nullptr); ++turn) {
    w.begin(1 + (turn + 1) % 2);
    usleep(20'000);
    w.end(1 + turn % 2);
  }
  CHECK_FALSE(w.window.holds(0, nullptr));
  CHECK(std::chrono::steady_clock::now() - idle_since >= milliseconds(300));
  CHECK(w.opened == 0);
  w.end(1);
  w.end(2);
  CHECK(soon([&] { return w.opened == 1; }));
}

TEST_CASE("nobody is held for a window that cannot come") {
  WindowLimits limits = quick_limits();
  limits.give_up = milliseconds(0);
  Window w(limits);
  int function = 0;
  w.window.note_launch(1, &function);
  w.begin(0);
  w.begin(1);
  w.ask();
  REQUIRE(soon([&] { return w.window.holds(1, nullptr); }));
  w.end(1);
  REQUIRE(soon([&] { return !w.window.holds(1, nullptr) && !w.window.holds(1, &function); }));  // the other has run for too long
  CHECK(w.window.holds(0, nullptr));
  usleep(50'000);
  CHECK_FALSE(w.window.holds(1, &function));
  w.begin(1);
  usleep(20'000);
  w.end(0);
  REQUIRE(soon([&] { return w.window.holds(1, nullptr); }));  // now it can
  w.end(1);
  CHECK(soon([&] { return w.opened == 1; }));
}

TEST_CASE("who starves is reported with whom it starves of, again and again, and given up at last") {
  Window w;
  w.begin(3);
  w.ask();
  REQUIRE(soon([&] { return w.reports == 1; }));
  CHECK(w.starving == kOwn);
  CHECK(w.blocking == 4);
  CHECK(w.refused == 0);
  REQUIRE(soon([&] { return w.reports == 2; }));
  REQUIRE(soon([&] { return w.refused == 1; }));
  CHECK(w.opened == 0);
}

TEST_CASE("who has waited while another's call was made does not starve of work that came behind that") {
  WindowLimits limits = quick_limits();
  limits.move_after = milliseconds(400);
  limits.give_up = milliseconds(0);
  Window w(limits);
  std::atomic<bool> is_made{false};
  std::atomic<bool> has_begun{false};
  w.window.submit({.what = "a long call", .session = kOwn + 1, .run = [&](WindowResult) {
                     has_begun = true;
                     usleep(500'000);
                     is_made = true;
                   }});
  REQUIRE(soon([&] { return has_begun.load(); }));
  w.ask();
  w.begin(3);
  REQUIRE(soon([&] { return is_made.load(); }));
  const auto made = QuietWindow::Clock::now();
  usleep(100'000);
  const int reports = w.reports;
  if (QuietWindow::Clock::now() - made < limits.move_after) CHECK(reports == 0);
  CHECK(soon([&] { return w.reports == 1; }));
  CHECK(w.opened == 0);
  w.end(3);
  CHECK(soon([&] { return w.opened == 1; }));
}

TEST_CASE("without a limit a call waits for as long as it takes") {
  WindowLimits limits = quick_limits();
  limits.give_up = milliseconds(0);
  Window w(limits);
  w.begin(3);
  w.ask();
  REQUIRE(soon([&] { return w.reports == 3; }));  // 0.1, 0.2, 0.4 s
  CHECK(w.refused == 0);
  w.end(3);
  CHECK(soon([&] { return w.opened == 1; }));
}

TEST_CASE("a call that waits for its own session's work waits") {
  Window w;
  w.table->stream[0].session = kOwn;
  w.begin(0);
  w.ask();
  usleep(600'000);
  CHECK(w.reports == 0);
  CHECK(w.refused == 0);
  CHECK_FALSE(w.window.holds(1, nullptr));
  w.end(0);
  CHECK(soon([&] { return w.opened == 1; }));
}

TEST_CASE("a session that is served elsewhere is answered at once, its releases stay") {
  Window w;
  w.begin(0);
  w.ask();
  w.ask(true);
  usleep(5'000);
  w.window.cancel(kOwn);
  CHECK(w.refused == 1);
  w.end(0);
  CHECK(soon([&] { return w.opened == 1; }));
  CHECK(w.refused == 1);
}

TEST_CASE("what nobody waits for holds nobody until it has waited a while, and goes along with others") {
  Window w;
  w.ask(true);
  REQUIRE(soon([&] { return w.opened == 1; }));
  w.begin(0);
  w.ask(true);
  usleep(50'000);
  CHECK_FALSE(w.window.holds(0, nullptr));
  CHECK(w.opened == 1);
  REQUIRE(soon([&] { return w.window.holds(0, nullptr); }));
  w.end(0);
  REQUIRE(soon([&] { return w.opened == 2; }));
  CHECK(w.refused == 0);
}

TEST_CASE("what is due is done between others' short work, without the pause that other deferred calls make") {
  WindowLimits limits = quick_limits();
  limits.deferred_pause = limits.defer = milliseconds(60'000);
  Window w(limits);
  w.ask();
  REQUIRE(soon([&] { return w.opened == 1; }));
  std::atomic<bool> stopping{false};
  std::thread busy([&] {  // always has something in flight, unless a window keeps it out
    QuietWindow::Gate& gate = w.window.gate(0);
    while (!stopping) {
      const bool may_issue = gate.enter();
      if (may_issue) {
        w.begin(0);
        gate.leave();
      }
      usleep(100);
      w.table->stream[0].completed = w.table->stream[0].issued - (may_issue ? 1 : 0);
    }
  });
  REQUIRE(soon([&] { return w.table->stream[0].issued > 5; }));
  w.ask(true);
  usleep(100'000);
  CHECK(w.opened == 1);
  std::atomic<bool> is_done{false};
  w.window.submit({.what = "a test's call", .session = kOwn, .deferrable = true, .run = [&](WindowResult) { is_done = true; }, .is_due = true});
  CHECK(soon([&] { return is_done.load(); }));
  stopping = true;
  busy.join();
}

TEST_CASE("sessions have turns in a window, whoever asked first and however often") {
  Window w;
  std::vector<std::uint64_t> order;
  w.begin(0);
  const auto ask_for = [&](std::uint64_t session) {
    w.window.submit({.what = "a test's call", .session = session, .run = [&, session](WindowResult) {
                       order.push_back(session);
                       ++w.opened;
                     }});
  };
  for (int i = 0; i < 4; ++i) ask_for(kOwn);
  ask_for(kOwn + 1);
  w.end(0);
  REQUIRE(soon([&] { return w.opened == 5; }));
  CHECK(order == std::vector<std::uint64_t>{kOwn, kOwn + 1, kOwn, kOwn, kOwn});
}

TEST_CASE("many calls do not share one long window while others work") {
  Window w;
  std::atomic<bool> ends{false};
  std::atomic<int> rounds{0};
  std::thread worker([&] {
    while (!ends) {
      if (!w.window.gate(0).enter()) {
        std::this_thread::yield();
        continue;
      }
      w.begin(0);
      w.window.gate(0).leave();
      usleep(200);
      w.end(0);
      ++rounds;
    }
  });
  constexpr int kCalls = 40;
  int first = 0, last = 0;
  for (int i = 0; i < kCalls; ++i) {
    w.window.submit({.what = "a test's call", .session = kOwn, .run = [&, i](WindowResult) {
                       usleep(1'000);
                       (i == 0 ? first : last) = rounds;
                       ++w.opened;
                     }});
  }
  const bool is_done = soon([&] { return w.opened == kCalls; });
  ends = true;
  worker.join();
  REQUIRE(is_done);
  CHECK(last - first >= 3);  // work went on in between
}

TEST_CASE("what comes after a window comes when work goes on") {
  Window w;
  std::atomic<int> went_on{0};
  WindowJob job{.what = "a test's call", .session = kOwn, .run = [&](WindowResult) { went_on = w.window.gate(0).enter() ? -1 : 0; }};
  job.after = [&] {
    if (!w.window.gate(0).enter()) return;
    w.window.gate(0).leave();
    ++went_on;
  };
  w.window.submit(std::move(job));
  REQUIRE(soon([&] { return went_on != 0; }));
  CHECK(went_on == 1);
}

}  // namespace mpsshim::broker
