// SPDX-License-Identifier: Apache-2.0
#include "tests/soak/regime.hpp"

#include <algorithm>
#include <cstdio>
#include <sstream>
#include <thread>

namespace mpsshim::soak {

Regime Regime::with_everything() {
  Regime regime;
  regime.move_ms = 3;
  regime.window_ms = 5;
  regime.stock = 4;
  regime.relocate_ms = 400;
  regime.restart_ms = 3'000;
  regime.module_cache_mib = 0;
  regime.staging_kib = 512;
  regime.workers = std::clamp(std::thread::hardware_concurrency() / 2, 4u, 8u);  // by itself a small machine has one
  return regime;
}

// Each thing by itself often enough: what slows everything down hides what needs speed.
Regime Regime::at_random(Random& random) {
  Regime regime;
  const auto one_of = [&](std::initializer_list<unsigned> values) { return *(values.begin() + random.below(values.size())); };
  if (random.below(3) != 0) regime.move_ms = one_of({1, 3, 5, 20, 100});
  if (random.below(2) == 0) regime.window_ms = one_of({1, 3, 10, 50});
  if (random.one_in(3)) regime.stock = one_of({1, 2, 4, 16});
  if (random.one_in(5)) regime.relocate_ms = one_of({100, 300, 1'000});
  if (random.one_in(4)) regime.restart_ms = one_of({1'000, 3'000, 8'000});
  if (random.one_in(3)) regime.module_cache_mib = one_of({0, 1});
  if (random.below(2) == 0) regime.staging_kib = 512;
  regime.side_contexts = one_of({0, 1, 3, 5, 5, 7});
  regime.connections = one_of({1, 4, 10, 10, 32});
  regime.workers = one_of({2, 4, 6, 8, 8});
  regime.is_standby_warm = random.one_in(4);
  return regime;
}

test::BrokerOptions Regime::broker(const std::string& driver) const {
  test::BrokerOptions options;
  options.driver = driver;
  const auto add = [&](const char* name, unsigned value) { options.arguments.insert(options.arguments.end(), {name, std::to_string(value)}); };
  // What a client that was killed had under way may run on for a while on a busy machine: no executor is replaced for that alone.
  add("--orphan-ms", 20'000);
  add("--drain-ms", 5'000);
  add("--test-move-ms", move_ms);
  add("--test-window-ms", window_ms);
  add("--test-stock", stock);
  add("--test-relocate-ms", relocate_ms);
  add("--module-cache", module_cache_mib);
  add("--side-contexts", side_contexts);
  add("--connections", connections);
  add("--workers", workers);
  if (is_standby_warm) options.arguments.emplace_back("--standby");
  return options;
}

std::string Regime::explain() const {
  std::string text;
  const auto say = [&](const char* name, unsigned value) {
    if (value != 0) text += (text.empty() ? "" : ", ") + std::string(name) + " " + std::to_string(value);
  };
  say("moves every ms", move_ms);
  say("windows every ms", window_ms);
  say("graphs of a shape", stock);
  say("moves between executors every ms", relocate_ms);
  say("restarts every ms", restart_ms);
  say("staging KiB", staging_kib);
  text += (text.empty() ? "" : ", ") + std::string("module cache MiB ") + std::to_string(module_cache_mib);
  text +=
      ", side contexts " + std::to_string(side_contexts) + ", connections " + std::to_string(connections) + ", workers " + std::to_string(workers);
  return text + (is_standby_warm ? ", warm standby" : "");
}

void Handovers::add(const Handovers& other) {
  for (std::size_t i = 0; i < counts.size(); ++i) counts[i] += other.counts[i];
  restarts += other.restarts;
  restarts_refused += other.restarts_refused;
}

void Handovers::read(const std::string& log) {
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    if (line.find("for tests it moves from executor") != std::string::npos) ++counts[4];
    const std::size_t at = line.find("For tests: ");
    unsigned long long moved = 0, exchanged = 0, windows = 0, missed = 0;
    if (at == std::string::npos ||
        std::sscanf(line.c_str() + at, "For tests: %llu sessions moved, %llu streams exchanged, %llu windows opened, %llu graphs", &moved, &exchanged,
                    &windows, &missed) != 4)
      continue;
    counts[0] += moved;
    counts[1] += exchanged;
    counts[2] += windows;
    counts[3] += missed;
  }
}

std::string Handovers::explain() const {
  std::string text;
  for (std::size_t i = 0; i < counts.size(); ++i) text += grouped(counts[i]) + " " + kNames[i] + ", ";
  return text + grouped(restarts) + " restarts (" + grouped(restarts_refused) + " more refused)";
}

std::string grouped(std::uint64_t number) {
  std::string text = std::to_string(number);
  for (std::ptrdiff_t at = static_cast<std::ptrdiff_t>(text.size()) - 3; at > 0; at -= 3) text.insert(static_cast<std::size_t>(at), ",");
  return text;
}

}  // namespace mpsshim::soak
