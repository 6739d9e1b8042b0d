// SPDX-License-Identifier: Apache-2.0
// mpsbench: measures one side (native, NVIDIA MPS, ours) with worker processes of its own, and writes figures as lines and as JSON.
// scripts/bench starts the services, runs it for each side and puts the table together.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "broker/command_line.hpp"
#include "tests/bench/rows.hpp"
#include "tests/bench/system.hpp"
#include "tests/bench/worker.hpp"

using namespace mpsshim::bench;
using mpsshim::broker::CommandLine;

namespace {

struct Options {
  Settings settings;
  std::string side = "native";
  std::string shim;
  std::string pipe_dir;
  std::string json;
  std::string only;               // as it is given
  std::vector<std::string> rows;  // its parts
  bool quick = false;
  bool tiny = false;
  bool list = false;
  bool two_cores = false;
  double memory_baseline_mib = -1;
};

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char letter : text) {
    if (letter == '"' || letter == '\\') result += '\\';
    result += static_cast<unsigned char>(letter) < 0x20 ? ' ' : letter;
  }
  return result + '"';
}

// Written anew after each row: what was measured is kept, whatever comes.
void write_json(const std::string& path, const Bench& bench) {
  if (path.empty()) return;
  std::ofstream file(path, std::ios::trunc);
  file << "{\"side\": " << quoted(side_name(bench.settings.side)) << ", \"interval_s\": " << bench.settings.interval_s;
  if (bench.settings.memory_baseline_mib) file << ", \"memory_baseline_mib\": " << *bench.settings.memory_baseline_mib;
  file << ", \"figures\": {";
  const char* separator = "\n";
  for (const auto& [key, figure] : bench.figures) {
    file << separator << "  " << quoted(key) << ": {\"unit\": " << quoted(figure.unit) << ", \"values\": [";
    for (std::size_t i = 0; i < figure.values.size(); ++i) file << (i == 0 ? "" : ", ") << figure.values[i];
    file << "]" << (figure.reason.empty() ? "" : ", \"reason\": " + quoted(figure.reason)) << "}";
    separator = ",\n";
  }
  file << "\n}}\n";
  if (!file) std::fprintf(stderr, "mpsbench: %s could not be written\n", path.c_str());
}

// Whether the row was measured, or is left out on this side.
bool run_row(Bench& bench, const Row& row) {
  const char* left_out = nullptr;
  switch (bench.settings.side) {
    case Side::native: left_out = row.not_native; break;
    case Side::mps: left_out = row.not_mps; break;
    case Side::ours: break;
  }
  try {
    if (left_out == nullptr) {
      row.run(bench, row);
      return true;
    }
    bench.leave_out(row, left_out);
    return true;
  } catch (const std::exception& failure) {
    std::printf("%-7s %-28s failed: %s\n", side_name(bench.settings.side), row.name, failure.what());
    std::fflush(stdout);
    bench.dismiss();  // whoever is left of that crowd
    bench.figures[row.name] = Figure{row.unit, {}, std::string("failed: ") + failure.what()};
    return false;
  }
}

int measure(const Options& options) {
  Bench bench(options.settings);
  bool all_measured = true;
  for (const Row& row : rows()) {
    if (!options.rows.empty() && std::find(options.rows.begin(), options.rows.end(), row.name) == options.rows.end()) continue;
    if (is_for_two_cores(row) != options.two_cores) continue;
    all_measured &= run_row(bench, row);
    write_json(options.json, bench);
  }
  bench.dismiss();
  return all_measured ? 0 : 1;
}

int list() {
  for (const Row& row : rows()) std::printf("%-16s %-8s %s\n", row.name, row.unit, row.what);
  return 0;
}

std::vector<std::string> parts_of(const std::string& list) {
  std::vector<std::string> parts;
  std::istringstream text(list);
  for (std::string part; std::getline(text, part, ',');) parts.push_back(part);
  return parts;
}

// Sets what follows from the other options; what is wrong, or nothing.
std::string complete(Options& options) {
  Settings& settings = options.settings;
  const std::map<std::string, Side> sides{{"native", Side::native}, {"mps", Side::mps}, {"ours", Side::ours}};
  const auto side = sides.find(options.side);
  if (side == sides.end()) return "--side is native, mps or ours, not " + options.side;
  settings.side = side->second;
  if (settings.interval_s < 0.001 || settings.interval_s > 60) return "--interval is 0.001 to 60 seconds, not " + std::to_string(settings.interval_s);
  options.rows = parts_of(options.only);
  for (const std::string& name : options.rows) {
    if (std::none_of(rows().begin(), rows().end(), [&name](const Row& row) { return name == row.name; }))
      return "no row is called " + name + ": see --list";
  }
  if (options.quick || options.tiny) {
    settings.interval_s = 0.2;
    settings.neighbours_s = 1.6;
    settings.paced_s = 1;
    settings.least_samples = 30;
    settings.most_samples = 600;
  }
  if (options.tiny) {
    settings.interval_s = 0.02;
    settings.neighbours_s = 0.3;
    settings.repeats = 1;
    settings.paced_s = 0.02;
    settings.least_samples = 3;
    settings.most_samples = 20;
    settings.first_moments_s = 0.02;
    settings.standing_launches = 200;
    settings.block_kernel_ns = 1000;
    settings.large_copy_bytes = 8 << 20;
    settings.long_kernel_ns = 20'000'000;
    settings.crowd = 16;
  }
  if (options.memory_baseline_mib >= 0) settings.memory_baseline_mib = options.memory_baseline_mib;
  if (!options.pipe_dir.empty()) settings.environment.push_back("CUDA_MPS_PIPE_DIRECTORY=" + options.pipe_dir);
  if (settings.side != Side::ours) {
    settings.environment.push_back("MPSSHIM_DISABLE=1");
    return {};
  }
  if (options.shim.empty()) return "name the library to preload with --shim (build/<preset>/lib/libmpsshim.so)";
  if (!std::filesystem::is_regular_file(options.shim)) return "--shim " + options.shim + " is no file";
  settings.environment.push_back("LD_PRELOAD=" + options.shim);
  settings.environment.push_back("MPSSHIM_REQUIRE=1");
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  // What a worker needs to start, and no more: its start is measured.
  if (argc == 4 && std::string_view(argv[1]) == "--worker") return run_worker(std::atoi(argv[2]), static_cast<unsigned>(std::atoi(argv[3])));
  Options options;
  Settings& settings = options.settings;
  CommandLine line(
      "Measures the CUDA driver API on one side: native, through NVIDIA MPS, or through mpsshim. Starts its own worker processes; the side's "
      "service\n"
      "must be running (scripts/bench starts it). Exit status: 0 measured, 1 a row failed, others wrong usage.");
  line.option("--side", &options.side, "native, mps or ours");
  line.option("--shim", &options.shim, "libmpsshim.so to preload (side ours)");
  line.option("--pipe-dir", &options.pipe_dir, "CUDA_MPS_PIPE_DIRECTORY of the workers; for native, a folder without a service");
  line.option("--only", &options.only, "rows, by commas (default: all; see --list)");
  line.option("--json", &options.json, "file to write the figures to");
  line.option("--repeats", &settings.repeats, "intervals a figure is taken over", CommandLine::Range{1, 1000});
  line.option("--interval", &settings.interval_s, "length of one, in seconds");
  line.option("--crowd", &settings.crowd, "clients of the row crowd512, an eighth of them busy", CommandLine::Range{1, kMaxWorkers});
  line.option("--memory-baseline-mib", &options.memory_baseline_mib,
              "device memory used before any service was started, for the rows of GPU memory (MiB; below 0: not known)");
  line.option("--broker-pid", &settings.broker_pid,
              "the side's service (broker, or NVIDIA's daemon), whose processor time is counted, with its descendants' (0: none)");
  line.flag("--quick", options.quick, "shorter: intervals of 0.2 s, rows of neighbours 1.6 s");
  line.flag("--tiny", options.tiny, "as short as can be, for a test of this program: its figures mean nothing");
  line.flag("--two-cores", options.two_cores, "measure the rows of two cores, and no others; to be started on two cores, like the service");
  line.flag("--list", options.list, "print the rows and end");
  if (const std::optional<int> status = line.parse(argc, argv)) return *status;
  if (options.list) return list();
  if (const std::string wrong = complete(options); !wrong.empty()) {
    std::fprintf(stderr, "mpsbench: %s\n", wrong.c_str());
    return 2;
  }
  return measure(options);
}
