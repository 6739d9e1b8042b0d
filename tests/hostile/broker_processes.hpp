// SPDX-License-Identifier: Apache-2.0
// The processes that the broker starts for its clients' images: which they are, and what the kernel says about them.
#pragma once

#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

#include "tests/hostile/scene.hpp"
#include "tests/support/catch.hpp"

namespace mpsshim::test {

// What /proc/PID/status has behind `key`; empty where there is none.
inline std::string status_of(pid_t pid, const std::string& key) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name, value;
    if (words >> name >> value && name == key + ":") return value;
  }
  return {};
}

inline long mebibytes_at_most(pid_t pid) {
  const std::string kibibytes = status_of(pid, "VmHWM");
  return kibibytes.empty() ? 0 : std::stol(kibibytes) / 1024;
}

// The broker's process with this flag on its command line, if there is one.
inline std::optional<pid_t> process_of(Scene& scene, const std::string& flag) {
  const std::string parent = std::to_string(scene.broker().process().pid());
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const auto pid = static_cast<pid_t>(std::stol(name));
    if (status_of(pid, "PPid") != parent || status_of(pid, "State") == "Z") continue;
    std::ifstream file(entry.path() / "cmdline");
    std::string words;
    std::getline(file, words);
    if (words.find(flag + '\0') != std::string::npos) return pid;
  }
  return std::nullopt;
}

inline pid_t await_process(Scene& scene, const std::string& flag, pid_t other_than = 0) {
  std::optional<pid_t> found;
  REQUIRE(eventually(std::chrono::seconds(10), [&] {
    found = process_of(scene, flag);
    return found && *found != other_than;
  }));
  return *found;
}

inline bool log_has(Scene& scene, const std::string& text) { return scene.broker().log().find(text) != std::string::npos; }

}  // namespace mpsshim::test
