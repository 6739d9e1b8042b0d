// SPDX-License-Identifier: Apache-2.0
// mpsbench: each measure natively and through the broker, one after the other in one run, with the ratio. A broker must be running in the
// pipe directory for the forwarded column.
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/bench/device.hpp"
#include "tests/bench/measures.hpp"

using namespace mpsshim::bench;

namespace {

struct Options {
  std::string shim;
  std::string only;
  std::string run;
  int repeats = 3;
  bool native = true;
  bool fault = false;
};

enum class Side { native, forwarded };

// Runs this program again for one measure; its last line of output is the figure. The wall time is from just before exec.
std::optional<double> run_child(const std::string& measure, Side side, const std::string& shim, double& wall_ms) {
  int pipe_fds[2];
  if (pipe(pipe_fds) != 0) return std::nullopt;
  const Clock::time_point start = Clock::now();
  const pid_t child = fork();
  if (child == 0) {
    dup2(pipe_fds[1], STDOUT_FILENO);
    close(pipe_fds[0]);
    if (side == Side::forwarded) {
      setenv("LD_PRELOAD", shim.c_str(), 1);
      setenv("MPSSHIM_REQUIRE", "1", 1);
    } else {
      setenv("MPSSHIM_DISABLE", "1", 1);
    }
    execl("/proc/self/exe", "mpsbench", "--run", measure.c_str(), static_cast<char*>(nullptr));
    _exit(127);
  }
  close(pipe_fds[1]);
  std::array<char, 256> text{};
  std::size_t length = 0;
  for (ssize_t got = 0; length < text.size() - 1 && (got = read(pipe_fds[0], text.data() + length, text.size() - 1 - length)) > 0;) {
    if (length == 0) wall_ms = microseconds_since(start) / 1e3;
    length += static_cast<std::size_t>(got);
  }
  close(pipe_fds[0]);
  int status = 0;
  if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 0 || length == 0) return std::nullopt;
  return std::atof(text.data());
}

std::optional<double> figure(const Measure& measure, Side side, const Options& options) {
  const bool is_attach = std::strcmp(measure.name, "attach") == 0;
  std::vector<double> values;
  for (int i = 0; i < (is_attach ? 4 * options.repeats : options.repeats); ++i) {
    double wall_ms = 0;
    const std::optional<double> value =
        std::strcmp(measure.name, "fault") == 0 ? std::nullopt : run_child(measure.name, side, options.shim, wall_ms);
    if (!value) return std::nullopt;
    values.push_back(is_attach ? wall_ms : *value);
  }
  return median(values);
}

void print_row(const Measure& measure, std::optional<double> native, std::optional<double> forwarded) {
  const auto text = [](std::optional<double> value) {
    char buffer[32];
    if (!value) return std::string("failed");
    std::snprintf(buffer, sizeof buffer, *value >= 1000 ? "%.0f" : "%.3f", *value);
    return std::string(buffer);
  };
  std::string ratio = "-";
  if (native && forwarded && *native > 0 && *forwarded > 0) {
    char buffer[32];
    std::snprintf(buffer, sizeof buffer, "%.2fx", *forwarded / *native);
    ratio = buffer;
  }
  std::printf("%-34s %-5s %12s %12s %9s\n", measure.what, measure.unit, text(native).c_str(), text(forwarded).c_str(), ratio.c_str());
  std::fflush(stdout);
}

int compare(const Options& options) {
  std::printf("%-34s %-5s %12s %12s %9s\n", "what (median)", "unit", "native", "forwarded", "ratio");
  bool failed = false;
  for (const Measure& measure : measures()) {
    if (!options.only.empty() && options.only != measure.name) continue;
    const std::optional<double> native = options.native ? figure(measure, Side::native, options) : std::nullopt;
    const std::optional<double> forwarded = figure(measure, Side::forwarded, options);
    failed |= !forwarded || (options.native && !native);
    print_row(measure, native, forwarded);
  }
  return failed ? 1 : 0;
}

// The process that forks guilty and bystander is itself preloaded, so this runs as a child like the rest.
int fault(const Options& options) {
  std::vector<double> values;
  for (int i = 0; i < options.repeats; ++i) {
    double wall_ms = 0;
    const std::optional<double> value = run_child("fault", Side::forwarded, options.shim, wall_ms);
    if (!value || *value < 0) {
      std::printf("%-34s %-5s %12s %12s\n", "fault to bystander's launch done", "ms", "-", "failed");
      return 1;
    }
    values.push_back(*value / 1e3);
  }
  std::printf("%-34s %-5s %12s %12.1f\n", "fault to bystander's launch done", "ms", "-", median(values));
  return 0;
}

int run_one(const std::string& name) {
  if (name == "fault") {
    std::printf("%.3f\n", fault_to_bystander_us());
    return 0;
  }
  for (const Measure& measure : measures()) {
    if (name != measure.name) continue;
    const double value = measure.run();
    std::printf("%.6f\n", value);
    std::fflush(stdout);
    return 0;
  }
  std::fprintf(stderr, "mpsbench: no measure is called %s\n", name.c_str());
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Measures the CUDA driver API natively and through mpsshim, side by side."};
  Options options;
  app.add_option("--shim", options.shim, "libmpsshim.so to preload for the forwarded column")->check(CLI::ExistingFile);
  app.add_option("--only", options.only, "one measure instead of all");
  app.add_option("--repeats", options.repeats, "processes a measure is run in; the median counts")->capture_default_str()->check(CLI::Range(1, 1000));
  app.add_flag("!--no-native", options.native, "leave the native column out (no GPU driver here)");
  app.add_flag("--fault", options.fault, "also measure the time from a client's fault to a bystander's next launch done");
  app.add_option("--run", options.run, "run one measure in this process and print its figure");
  CLI11_PARSE(app, argc, argv);
  if (!options.run.empty()) return run_one(options.run);
  if (options.shim.empty()) {
    std::fprintf(stderr, "mpsbench: name the library to preload with --shim (build/<preset>/lib/libmpsshim.so)\n");
    return 2;
  }
  int result = compare(options);
  if (options.fault && fault(options) != 0) result = 1;
  return result;
}
