// SPDX-License-Identifier: Apache-2.0
// How a round's broker is to behave, and what has become of it, told by its log.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "tests/soak/verify/random.hpp"
#include "tests/support/broker_fixture.hpp"

namespace mpsshim::soak {

struct Regime {
  unsigned move_ms = 0;  // as mpsbroker's options of those names; 0: nothing is forced
  unsigned window_ms = 0;
  unsigned stock = 0;
  unsigned relocate_ms = 0;
  unsigned restart_ms = 0;  // so often all sessions come to rest and get the next life of their executor
  unsigned module_cache_mib = 1024;
  unsigned staging_kib = 0;  // of each client
  unsigned side_contexts = 5;
  unsigned connections = 10;
  unsigned workers = 0;
  bool is_standby_warm = false;

  [[nodiscard]] static Regime with_everything();
  [[nodiscard]] static Regime at_random(Random& random);
  [[nodiscard]] test::BrokerOptions broker(const std::string& driver) const;
  [[nodiscard]] std::string explain() const;
};

// Hand-overs of each kind.
struct Handovers {
  static constexpr std::array<const char*, 5> kNames = {"sessions moved", "streams exchanged", "windows opened", "graphs missed",
                                                        "moves between executors"};
  std::array<std::uint64_t, 5> counts{};
  std::uint64_t restarts = 0;
  std::uint64_t restarts_refused = 0;

  void add(const Handovers& other);
  // What the broker's log says, but for restarts, which the caller knows of.
  void read(const std::string& log);
  [[nodiscard]] std::string explain() const;
};

// "12,345,678"
[[nodiscard]] std::string grouped(std::uint64_t number);

}  // namespace mpsshim::soak
