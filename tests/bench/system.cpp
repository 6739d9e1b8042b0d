// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/system.hpp"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include "broker/progress_table.hpp"
#include "tests/bench/crowd.hpp"

namespace mpsshim::bench {

namespace {

// The text of /proc/PID/stat behind the command's name, which may hold anything.
std::string stat_fields(const std::filesystem::path& folder) {
  std::ifstream file(folder / "stat");
  std::string line;
  std::getline(file, line);
  const std::size_t end = line.rfind(')');
  return end == std::string::npos ? std::string() : line.substr(end + 1);
}

// Nanoseconds from schedstat where the kernel keeps it, else ticks.
double thread_seconds(const std::filesystem::path& folder) {
  std::ifstream file(folder / "schedstat");
  double nanoseconds = 0;
  if (file >> nanoseconds && nanoseconds > 0) return nanoseconds / 1e9;
  unsigned long user = 0;
  unsigned long system = 0;
  if (std::sscanf(stat_fields(folder).c_str(), " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system) != 2) return 0;
  return static_cast<double>(user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

}  // namespace

double device_memory_used_mib() {
  FILE* pipe = popen("nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits -i 0 2>/dev/null", "r");
  double mib = 0;
  const bool is_read = pipe != nullptr && std::fscanf(pipe, "%lf", &mib) == 1;
  if (pipe != nullptr) pclose(pipe);
  if (!is_read) throw Failure("nvidia-smi did not say how much memory of device 0 is used");
  return mib;
}

std::vector<pid_t> with_descendants(pid_t root) {
  std::vector<pid_t> family{root};
  for (std::size_t i = 0; i < family.size(); ++i) {
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      const std::string name = entry.path().filename();
      if (name.find_first_not_of("0123456789") != std::string::npos) continue;
      int parent = 0;
      if (std::sscanf(stat_fields(entry.path()).c_str(), " %*c %d", &parent) == 1 && parent == family[i]) family.push_back(std::stoi(name));
    }
  }
  return family;
}

namespace {

void add_counts(const std::filesystem::path& memory_file, LaunchCounts& counts) {
  const int fd = open(memory_file.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  void* memory = mmap(nullptr, sizeof(broker::ProgressTable), PROT_READ, MAP_SHARED, fd, 0);
  close(fd);
  if (memory == MAP_FAILED) return;
  for (const broker::StreamProgress& stream : static_cast<const broker::ProgressTable*>(memory)->stream) {
    if (stream.session.load(std::memory_order_relaxed) == 0) continue;
    counts.launches += static_cast<double>(stream.launches.load(std::memory_order_relaxed));
    counts.chained += static_cast<double>(stream.chained.load(std::memory_order_relaxed));
  }
  munmap(memory, sizeof(broker::ProgressTable));
}

}  // namespace

// The control process holds a descriptor of each executor's table.
std::optional<LaunchCounts> launch_counts(pid_t broker) {
  std::optional<LaunchCounts> counts;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(broker) + "/fd", error)) {
    if (std::filesystem::read_symlink(entry.path(), error).string().find("mpsshim-progress") == std::string::npos) continue;
    if (!counts) counts.emplace();
    add_counts(entry.path(), *counts);
  }
  return counts;
}

unsigned usable_cores(pid_t process) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  return sched_getaffinity(process, sizeof cores, &cores) == 0 ? static_cast<unsigned>(CPU_COUNT(&cores)) : 0;
}

double processor_seconds(const std::vector<pid_t>& processes) {
  double sum = 0;
  for (const pid_t process : processes) {
    std::error_code error;
    for (const auto& thread : std::filesystem::directory_iterator("/proc/" + std::to_string(process) + "/task", error)) {
      sum += thread_seconds(thread.path());
    }
  }
  return sum;
}

}  // namespace mpsshim::bench
