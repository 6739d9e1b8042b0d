// SPDX-License-Identifier: Apache-2.0
// Rows of clients that sleep between two pieces of work: one piece's median and 99th percentile by the length of the pause.
#include <algorithm>
#include <cmath>

#include "tests/bench/rows.hpp"
#include "tests/bench/spinners.hpp"
#include "tests/bench/system.hpp"

namespace mpsshim::bench {

namespace {

// What each client does in one interval. Short pauses are cheap to repeat, long ones have to be few.
std::int64_t pieces_of(const Settings& settings, std::int64_t pause_ns) {
  const double wanted = std::clamp(settings.paced_s * 1e9 / static_cast<double>(pause_ns), settings.least_samples, settings.most_samples);
  return std::clamp<std::int64_t>(std::llround(std::ceil(wanted / settings.repeats)), 1, kMostSamples);
}

// The end is a limit only: each piece may take as long as the pause before it, and a second more all together.
Order paced_order(const Settings& settings, Order order) {
  order.argument[1] = pieces_of(settings, order.argument[0]);
  return timed(order, 2e-9 * static_cast<double>(order.argument[0] * order.argument[1]) + 1);
}

std::vector<pid_t> service_of(const Settings& settings) {
  return settings.broker_pid == 0 ? std::vector<pid_t>{} : with_descendants(settings.broker_pid);
}

// Medians by interval; the 99th percentile of all samples, since those of one interval are too few for it.
void measure(Bench& bench, const Row& row) {
  Crowd& crowd = bench.crowd(row.clients);
  std::vector<pid_t> measured = service_of(bench.settings);
  for (unsigned i = 0; i < row.clients; ++i) measured.push_back(crowd.pid(i));
  std::vector<float> all_us;
  std::vector<double> median_us;
  std::vector<double> processor_percent;
  for (int repeat = 0; repeat < bench.settings.repeats; ++repeat) {
    const double before_s = processor_seconds(measured);
    const Order order = paced_order(bench.settings, row.order);
    for (unsigned i = 0; i < row.clients; ++i) crowd.order(i, order);
    std::vector<float> interval_us;
    std::int64_t last_ns = order.begin_ns + 1;
    for (unsigned i = 0; i < row.clients; ++i) {
      last_ns = std::max(last_ns, crowd.wait_for(i).last_ns);
      const std::span<const float> samples_us = crowd.samples_us(i);
      interval_us.insert(interval_us.end(), samples_us.begin(), samples_us.end());
    }
    processor_percent.push_back((processor_seconds(measured) - before_s) / (static_cast<double>(last_ns - order.begin_ns) / 1e9) * 100);
    if (interval_us.empty()) throw Failure("no sample was taken in the time given");
    std::sort(interval_us.begin(), interval_us.end());
    median_us.push_back(interval_us[interval_us.size() / 2]);
    all_us.insert(all_us.end(), interval_us.begin(), interval_us.end());
  }
  std::sort(all_us.begin(), all_us.end());
  const std::string name = row.name;
  bench.report(name, row.unit, median_us);
  bench.report(name + ".p99", row.unit, {all_us[all_us.size() * 99 / 100]});
  bench.report(name + ".samples", "samples", {static_cast<double>(all_us.size())});
  bench.report(name + ".processor", "% of a core", processor_percent);
}

void require_two_cores(pid_t process, const char* who) {
  const unsigned cores = usable_cores(process);
  if (cores <= 2) return;  // 0: it has ended meanwhile
  throw Failure(std::string(who) + " may use " + std::to_string(cores) + " cores: for this row scripts/bench starts everything under taskset");
}

}  // namespace

void paced(Bench& bench, const Row& row) { measure(bench, row); }

void paced_beside_spinners(Bench& bench, const Row& row) {
  bench.crowd(row.clients);  // it starts on a machine that is free
  const Spinners spinners;
  const std::int64_t begin_ns = now_ns();
  measure(bench, row);
  bench.report(std::string(row.name) + ".load", "% of a core",
               {processor_seconds(spinners.pids()) / (static_cast<double>(now_ns() - begin_ns) / 1e9) * 100});
}

// Library and broker look at their cores when they start, so nobody is confined later: scripts/bench starts both on two.
void paced_on_two_cores(Bench& bench, const Row& row) {
  require_two_cores(0, "mpsbench");
  for (const pid_t process : service_of(bench.settings)) require_two_cores(process, "a process of the service");
  measure(bench, row);
}

}  // namespace mpsshim::bench
