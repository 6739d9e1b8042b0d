// SPDX-License-Identifier: Apache-2.0
//
//   reliability --side native|mps|ours [--repeats N] [--only TEXT]
// Plays all scenarios on one side and prints a line for each outcome, fields separated by tabs: side, fault, bystander (empty: the guilty
// client), answer, milliseconds from the fault to the bystander's next completed launch (the median of all repeats that went on, -1 where none
// did), repeats that went on, repeats, "kept" or "broken". scripts/reliability makes the table. To stderr goes, once a fault, what the broker said
// where a promise was broken or took more than 500 ms. Exit status 1: a promise of mpsshim's was broken.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

#include "tests/reliability/scenario.hpp"

using namespace mpsshim::test;

namespace {

struct Options {
  std::string side = "ours";
  std::string only;
  int repeats = 1;
};

struct Row {
  std::string answer;
  std::vector<double> times_ms;
  int went_on = 0;
  int repeats = 0;
  bool is_kept = true;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "--side") {
      options.side = argv[i + 1];
    } else if (name == "--repeats") {
      options.repeats = std::stoi(argv[i + 1]);
    } else if (name == "--only") {
      options.only = argv[i + 1];
    } else {
      throw std::invalid_argument("unknown option " + name);
    }
  }
  return options;
}

SideKind kind_of(const std::string& side) {
  if (side == "native") return SideKind::native;
  if (side == "mps") return SideKind::mps;
  if (side == "ours") return SideKind::ours;
  throw std::invalid_argument("--side takes native, mps or ours, not " + side);
}

void add(Row& row, const Result& result) {
  ++row.repeats;
  row.is_kept = row.is_kept && result.is_kept;
  if (result.answer == "ok") ++row.went_on;
  if (row.answer.empty() || result.answer != "ok") row.answer = result.answer;  // the worst is what counts
  if (result.until_next_ms >= 0) row.times_ms.push_back(result.until_next_ms);
}

double median(std::vector<double>& times) {
  if (times.empty()) return -1;
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

bool measure(const Options& options, SideKind kind, const Fault& fault) {
  std::map<std::string, Row> rows;
  for (int i = 0; i < options.repeats; ++i) {
    try {
      bool is_told = false;
      for (const Result& result : play(kind, fault)) {
        add(rows[result.bystander], result);
        if (result.log.empty() || std::exchange(is_told, true)) continue;  // the first will do: idle bystanders have one broker
        std::fprintf(stderr, "reliability: %s, %s: %s after %.0f ms\n%s\n", fault.name.c_str(), result.bystander.c_str(), result.answer.c_str(),
                     result.until_next_ms, result.log.c_str());
      }
    } catch (const std::exception& failure) {
      std::fprintf(stderr, "reliability: %s, %s: %s\n", options.side.c_str(), fault.name.c_str(), failure.what());
      return kind != SideKind::ours;
    }
  }
  bool is_kept = true;
  for (auto& [bystander, row] : rows) {
    std::replace(row.answer.begin(), row.answer.end(), '\n', ' ');
    std::printf("%s\t%s\t%s\t%s\t%.1f\t%d\t%d\t%s\n", options.side.c_str(), fault.name.c_str(), bystander.c_str(), row.answer.c_str(),
                median(row.times_ms), row.went_on, row.repeats, row.is_kept || kind != SideKind::ours ? "kept" : "broken");
    is_kept = is_kept && row.is_kept;
  }
  std::fflush(stdout);
  return is_kept || kind != SideKind::ours;
}

}  // namespace

int main(int argc, char** argv) try {
  const Options options = parse(argc, argv);
  const SideKind kind = kind_of(options.side);
  bool is_kept = true;
  for (const Fault& fault : all_faults()) {
    if (fault.name.find(options.only) == std::string::npos || (kind == SideKind::native && fault.needs_server)) continue;
    if (kind == SideKind::mps && fault.needs_broker) continue;
    is_kept = measure(options, kind, fault) && is_kept;
  }
  return is_kept ? 0 : 1;
} catch (const std::exception& failure) {
  std::fprintf(stderr, "reliability: %s\n", failure.what());
  return 2;
}
