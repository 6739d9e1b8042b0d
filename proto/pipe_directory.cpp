// SPDX-License-Identifier: Apache-2.0
#include "proto/pipe_directory.hpp"

#include <algorithm>

namespace mpsshim::proto {

namespace {

constexpr uid_t kRoot = 0;

std::string of_user(uid_t user) { return "/tmp/mpsshim-" + std::to_string(user); }

}  // namespace

std::vector<std::string> directories_to_search(const PipeDirectoryHints& hints) {
  if (!hints.named.empty()) return {std::string(hints.named)};
  std::vector<std::string> found;
  const auto add = [&](std::string path) {
    if (std::find(found.begin(), found.end(), path) == found.end()) found.push_back(std::move(path));
  };
  if (hints.user == kRoot) add(kSystemPipeDirectory);
  if (!hints.runtime.empty()) add(std::string(hints.runtime) + "/mpsshim");
  add("/run/user/" + std::to_string(hints.user) + "/mpsshim");
  add(of_user(hints.user));
  add(kSystemPipeDirectory);
  add(kCompatiblePipeDirectory);
  add(kCompatibleRunDirectory);
  return found;
}

std::string directory_to_make(const PipeDirectoryHints& hints) {
  if (!hints.named.empty()) return std::string(hints.named);
  if (hints.user == kRoot) return kSystemPipeDirectory;
  return hints.runtime.empty() ? of_user(hints.user) : std::string(hints.runtime) + "/mpsshim";
}

}  // namespace mpsshim::proto
