// SPDX-License-Identifier: Apache-2.0
#include "broker/control/base/pod_identity.hpp"

#include <algorithm>
#include <array>
#include <fstream>

namespace mpsshim::broker::control {

namespace {

constexpr std::size_t kLongestCgroups = 16'384;
constexpr std::size_t kUuidLength = 36;
constexpr std::size_t kStaticPodLength = 32;
constexpr std::size_t kContainerLength = 64;

bool is_hexadecimal(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool is_uuid(std::string_view text) {
  if (text.size() != kUuidLength) return false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool is_dash = i == 8 || i == 13 || i == 18 || i == 23;
    if (is_dash ? text[i] != '-' : !is_hexadecimal(text.substr(i, 1))) return false;
  }
  return true;
}

std::string pod_in_folder(std::string_view folder) {
  constexpr std::string_view kSlice = ".slice";
  const bool is_slice = folder.starts_with("kubepods") && folder.ends_with(kSlice);
  if (is_slice) {
    folder.remove_suffix(kSlice.size());
    const std::size_t at = folder.rfind("-pod");
    if (at == std::string_view::npos) return "";
    folder.remove_prefix(at + 1);
  }
  if (!folder.starts_with("pod")) return "";
  std::string uid(folder.substr(3));
  if (is_slice) std::ranges::replace(uid, '_', '-');
  return is_uuid(uid) || (uid.size() == kStaticPodLength && is_hexadecimal(uid)) ? uid : "";
}

std::string container_in_folder(std::string_view folder) {
  constexpr std::string_view kScope = ".scope";
  constexpr std::array<std::string_view, 4> kRuntimes{"cri-containerd-", "crio-", "docker-", "libpod-"};
  if (folder.ends_with(kScope)) {
    folder.remove_suffix(kScope.size());
    const auto runtime = std::ranges::find_if(kRuntimes, [folder](std::string_view name) { return folder.starts_with(name); });
    if (runtime == kRuntimes.end()) return "";
    folder.remove_prefix(runtime->size());
  }
  return folder.size() == kContainerLength && is_hexadecimal(folder) ? std::string(folder) : "";
}

PodIdentity pod_in_path(std::string_view path) {
  PodIdentity found;
  while (!path.empty()) {
    const std::size_t slash = std::min(path.find('/'), path.size());
    const std::string_view folder = path.substr(0, slash);
    path.remove_prefix(std::min(slash + 1, path.size()));
    if (const std::string pod = pod_in_folder(folder); !pod.empty()) found.pod = pod;
    if (path.empty()) found.container = container_in_folder(folder);
  }
  return found;
}

}  // namespace

PodIdentity pod_in(std::string_view cgroups) {
  while (!cgroups.empty()) {
    const std::size_t end = std::min(cgroups.find('\n'), cgroups.size());
    std::string_view line = cgroups.substr(0, end);
    cgroups.remove_prefix(std::min(end + 1, cgroups.size()));
    for (int colons = 0; colons < 2; ++colons) {
      const std::size_t colon = line.find(':');
      line = colon == std::string_view::npos ? std::string_view() : line.substr(colon + 1);
    }
    PodIdentity found = pod_in_path(line);
    if (!found.pod.empty() || !found.container.empty()) return found;
  }
  return {};
}

PodIdentity pod_of(pid_t pid) {
  if (pid <= 0) return {};
  std::ifstream file("/proc/" + std::to_string(pid) + "/cgroup", std::ios::binary);
  std::string text(kLongestCgroups, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  return pod_in(text);
}

}  // namespace mpsshim::broker::control
