// SPDX-License-Identifier: Apache-2.0
// The rows that mpsbench can measure. Each reports one or more figures by key; scripts/bench's table (report.py) names those keys.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tests/bench/crowd.hpp"

namespace mpsshim::bench {

inline constexpr double kReadyLimitS = 40;  // until workers have started

enum class Side { native, mps, ours };
[[nodiscard]] const char* side_name(Side side);

struct Settings {
  Side side = Side::native;
  std::vector<std::string> environment;  // of the workers
  int repeats = 3;                       // intervals a figure is taken over
  double interval_s = 0.7;               // length of one
  double neighbours_s = 4;               // length of those rows that wait for long kernels
  std::size_t large_copy_bytes = std::size_t{1} << 30;
  double paced_s = 5.1;                       // what the pauses of a row last together,
  double least_samples = 120;                 // unless that made fewer samples than this
  double most_samples = 3000;                 // or more than this
  double first_moments_s = 0.1;               // of the rows sync8-first, sync14-first
  std::int64_t standing_launches = 50'000;    // of each client of the row standing14
  std::int64_t block_kernel_ns = 50'000;      // of the rows blocks12, blocks46 and those with waits
  std::int64_t long_kernel_ns = 250'000'000;  // of A in the rows of neighbours
  unsigned crowd = 512;                       // clients of the row crowd512; an eighth of them work
  std::optional<double> memory_baseline_mib;  // used on the device before any service was started
  pid_t broker_pid = 0;                       // of the side's service, whose processor time is counted
};

struct Figure {
  std::string unit;
  std::vector<double> values;
  std::string reason;  // why there are no values
};

struct Row;

// What the functions of the rows work with.
class Bench {
 public:
  explicit Bench(const Settings& chosen) : settings(chosen) {}
  // The one crowd that grows from row to row, with exactly so many workers, all ready.
  Crowd& crowd(unsigned clients);
  void dismiss() { crowd_.reset(); }
  void report(const std::string& key, const char* unit, std::vector<double> values);
  // A row that this side, or this device, cannot have.
  void leave_out(const Row& row, const char* reason);

  const Settings& settings;
  std::map<std::string, Figure> figures;

 private:
  std::unique_ptr<Crowd> crowd_;
};

struct Row {
  const char* name;
  const char* what;
  void (*run)(Bench&, const Row&);
  unsigned clients;
  Order order;             // task and arguments, for rows made of one task
  const char* unit;        // of the figure that has the row's name
  const char* not_native;  // why this side is left out, or nullptr
  const char* not_mps;
};

// In the order in which they are best run: the crowd only grows.
[[nodiscard]] std::span<const Row> rows();

// Rows for which mpsbench and the side's service have to be started on two cores.
[[nodiscard]] bool is_for_two_cores(const Row& row);

// Parts of rows.cpp and of the files of rows by subject.
[[nodiscard]] Order timed(Order order, double seconds);  // begins in some milliseconds
// The order on all clients at once; the time from its beginning to the last client's end.
[[nodiscard]] std::vector<Outcome> run_interval(Crowd& crowd, unsigned clients, const Order& order, double& seconds);
void paced(Bench&, const Row&);
void paced_beside_spinners(Bench&, const Row&);
void paced_on_two_cores(Bench&, const Row&);
void first_moments(Bench&, const Row&);
void standing_start(Bench&, const Row&);
void neighbours(Bench&, const Row&);
void endless(Bench&, const Row&);
void second_of_two(Bench&, const Row&);
void flood(Bench&, const Row&);
void fault(Bench&, const Row&);

}  // namespace mpsshim::bench
