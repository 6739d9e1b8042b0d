// SPDX-License-Identifier: Apache-2.0
// Rows in which clients do different things side by side.
#include <algorithm>
#include <array>
#include <thread>

#include "tests/bench/rows.hpp"

namespace mpsshim::bench {

namespace {

constexpr std::int64_t kPaceNs = 200'000;  // B: one launch + synchronisation every 200 us

Order order_of(Task task, std::int64_t first = 0, std::int64_t second = 0) { return Order{task, 0, 0, {first, second, 0}}; }

// Numbers of images that no run before has used: the driver keeps what it compiled on disk.
std::uint64_t next_image() {
  static std::uint64_t number = static_cast<std::uint64_t>(std::chrono::system_clock::now().time_since_epoch().count() / 1000) % 2'000'000'000 + 1;
  return number += 10'000;
}

void start_all(Crowd& crowd, unsigned clients) {
  while (crowd.size() < clients) crowd.start();
  crowd.wait_ready(kReadyLimitS);
}

// Milliseconds from before a worker's exec to its first launch done.
double newcomer_ms(Crowd& newcomers, std::uint64_t image) {
  const std::int64_t begin_ns = now_ns();
  const unsigned slot = newcomers.start(image);
  newcomers.wait_ready(kReadyLimitS);
  return static_cast<double>(newcomers.slot(slot).first_launch_ns - begin_ns) / 1e6;
}

// One worker through one order, alone.
Outcome run_alone(Crowd& crowd, unsigned slot, const Order& order) {
  crowd.order(slot, order);
  return crowd.wait_for(slot);
}

}  // namespace

void neighbours(Bench& bench, const Row& row) {
  bench.dismiss();
  const Settings& settings = bench.settings;
  const double seconds = settings.neighbours_s;
  constexpr unsigned kA = 0, kB = 1, kC = 2, kD = 3;
  Crowd crowd(settings.environment);
  start_all(crowd, 4);
  const Outcome alone = run_alone(crowd, kB, timed(order_of(Task::paced_sync, kPaceNs), seconds / 2));
  bench.report(std::string(row.name) + ".alone_median", row.unit, {alone.median_us});
  bench.report(std::string(row.name) + ".alone_p99", row.unit, {alone.p99_us});

  {
    const Order together = timed(order_of(Task::paced_sync, kPaceNs), seconds);
    const auto with = [&together](Order order) { return order.begin_ns = together.begin_ns, order.end_ns = together.end_ns, order; };
    crowd.order(kA, with(order_of(Task::long_kernels, settings.long_kernel_ns)));
    crowd.order(kB, together);
    crowd.order(kC, with(order_of(Task::module_rounds)));
    Crowd newcomers(settings.environment);
    std::vector<double> newcomers_ms;
    while (now_ns() + 500'000'000 < together.end_ns) {
      newcomers_ms.push_back(newcomer_ms(newcomers, 0));
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    const Outcome b = crowd.wait_for(kB);
    const Outcome c = crowd.wait_for(kC);
    bench.report(std::string(row.name) + ".b_median", row.unit, {b.median_us});
    bench.report(std::string(row.name) + ".b_p99", row.unit, {b.p99_us});
    bench.report(std::string(row.name) + ".b_largest", row.unit, {b.largest_us});
    bench.report(std::string(row.name) + ".c_rounds", "1/s", {c.done / (static_cast<double>(c.last_ns - together.begin_ns) / 1e9)});
    if (!newcomers_ms.empty()) bench.report(std::string(row.name) + ".newcomer", "ms", newcomers_ms);
    static_cast<void>(crowd.wait_for(kA));
  }

  const Order together = timed(order_of(Task::paced_sync, kPaceNs), seconds);
  const auto with = [&together](Order order) { return order.begin_ns = together.begin_ns, order.end_ns = together.end_ns, order; };
  crowd.order(kA, with(order_of(Task::long_kernels, settings.long_kernel_ns)));
  crowd.order(kB, together);
  crowd.order(kD, with(order_of(Task::fresh_image, static_cast<std::int64_t>(next_image()), 130'000'000)));
  const Outcome d = crowd.wait_for(kD);
  const Outcome b = crowd.wait_for(kB);
  bench.report(std::string(row.name) + ".fresh_image_median", "ms", {d.median_us / 1e3});
  bench.report(std::string(row.name) + ".fresh_image_largest", "ms", {d.largest_us / 1e3});
  bench.report(std::string(row.name) + ".fresh_b_p99", row.unit, {b.p99_us});
  static_cast<void>(crowd.wait_for(kA));
}

// The first loads an image that nobody has seen; the second comes with the same. A load would have to wait for A.
void second_of_two(Bench& bench, const Row& row) {
  bench.dismiss();
  Crowd crowd(bench.settings.environment);
  start_all(crowd, 1);
  crowd.order(0, timed(order_of(Task::long_kernels, bench.settings.long_kernel_ns), bench.settings.neighbours_s));
  std::vector<double> first_ms;
  std::vector<double> second_ms;
  for (int i = 0; i < bench.settings.repeats; ++i) {
    Crowd newcomers(bench.settings.environment);
    const std::uint64_t image = next_image();
    first_ms.push_back(newcomer_ms(newcomers, image));
    second_ms.push_back(newcomer_ms(newcomers, image));
  }
  bench.report(std::string(row.name) + ".first", row.unit, first_ms);
  bench.report(row.name, row.unit, second_ms);
  static_cast<void>(crowd.wait_for(0));
}

void endless(Bench& bench, const Row& row) {
  bench.dismiss();
  constexpr unsigned kA = 0, kB = 1;
  Crowd crowd(bench.settings.environment);
  start_all(crowd, 2);
  const Outcome alone = run_alone(crowd, kB, timed(order_of(Task::paced_sync, kPaceNs), bench.settings.neighbours_s / 4));
  crowd.order(kA, timed(order_of(Task::endless_kernel), 50));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // it runs

  Crowd newcomers(bench.settings.environment);
  std::vector<double> served_ms;
  for (int i = 0; i < 2; ++i) served_ms.push_back(newcomer_ms(newcomers, next_image()));
  bench.report(row.name, row.unit, served_ms);

  // B beside newcomers at work, wherever they are served.
  const Order pace = timed(order_of(Task::paced_sync, kPaceNs), bench.settings.neighbours_s / 2);
  Order work = order_of(Task::launch_sync, 1);
  work.begin_ns = pace.begin_ns;
  work.end_ns = pace.end_ns;
  crowd.order(kB, pace);
  for (unsigned i = 0; i < newcomers.size(); ++i) newcomers.order(i, work);
  const Outcome b = crowd.wait_for(kB);
  for (unsigned i = 0; i < newcomers.size(); ++i) static_cast<void>(newcomers.wait_for(i));
  bench.report(std::string(row.name) + ".b_alone_p99", "us", {alone.p99_us});
  bench.report(std::string(row.name) + ".b_median", "us", {b.median_us});
  bench.report(std::string(row.name) + ".b_p99", "us", {b.p99_us});
  crowd.cancel(kA);
  static_cast<void>(crowd.wait_for(kA));
}

void flood(Bench& bench, const Row& row) {
  std::vector<double> alone_us;
  std::vector<double> beside_us;
  Crowd& crowd = bench.crowd(2);
  for (int i = 0; i < bench.settings.repeats; ++i) {
    alone_us.push_back(run_alone(crowd, 1, timed(order_of(Task::launch_sync, 1), bench.settings.interval_s)).median_us);
    // The flood begins before and ends after what is measured.
    const Order flooding = timed(order_of(Task::storm), bench.settings.interval_s + 0.1);
    crowd.order(0, flooding);
    Order measured = order_of(Task::launch_sync, 1);
    measured.begin_ns = flooding.begin_ns + 50'000'000;
    measured.end_ns = flooding.end_ns - 50'000'000;
    beside_us.push_back(run_alone(crowd, 1, measured).median_us);
    static_cast<void>(crowd.wait_for(0));
  }
  bench.report(std::string(row.name) + ".alone", row.unit, alone_us);
  bench.report(row.name, row.unit, beside_us);
}

void fault(Bench& bench, const Row& row) {
  bench.dismiss();
  std::vector<double> values;
  for (int i = 0; i < bench.settings.repeats; ++i) {
    Crowd crowd(bench.settings.environment);
    start_all(crowd, 2);
    Order order = order_of(Task::guilty);
    order.begin_ns = now_ns() + 300'000'000;  // the bystander prepares itself and is idle by then
    order.end_ns = order.begin_ns;
    crowd.order(0, order);
    order.task = Task::bystander;
    crowd.order(1, order);
    values.push_back(static_cast<double>(crowd.wait_for(1).last_ns - order.begin_ns) / 1e6);
    static_cast<void>(crowd.wait_for(0));
  }
  bench.report(row.name, row.unit, values);
}

}  // namespace mpsshim::bench
