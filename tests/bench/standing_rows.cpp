// SPDX-License-Identifier: Apache-2.0
// Rows of clients that have attached and loaded their module, but not launched before they are measured, all from the same moment on.
#include <algorithm>

#include "tests/bench/rows.hpp"

namespace mpsshim::bench {

namespace {

// A crowd of its own for each value. An order without an end of its own is given `seconds`.
void standing(Bench& bench, const Row& row, const Order& order, double seconds) {
  bench.dismiss();
  std::vector<double> values;
  for (int i = 0; i < bench.settings.repeats; ++i) {
    Crowd crowd(bench.settings.environment);
    for (unsigned client = 0; client < row.clients; ++client) crowd.start(0, false);
    crowd.wait_ready(kReadyLimitS);
    double taken_s = 0;
    double done = 0;
    for (const Outcome& outcome : run_interval(crowd, row.clients, timed(order, seconds), taken_s)) done += outcome.done;
    values.push_back(done / taken_s);
  }
  bench.report(row.name, row.unit, values);
}

}  // namespace

void first_moments(Bench& bench, const Row& row) { standing(bench, row, row.order, bench.settings.first_moments_s); }

void standing_start(Bench& bench, const Row& row) {
  Order order = row.order;
  order.argument[0] = bench.settings.standing_launches;
  standing(bench, row, order, 0);
}

}  // namespace mpsshim::bench
