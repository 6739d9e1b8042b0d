// SPDX-License-Identifier: Apache-2.0
#include "broker/run/parts.hpp"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>

#include <unistd.h>

namespace mpsshim::broker::run {

namespace {

namespace fs = std::filesystem;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// MPSSHIM_TRACE is for all processes of a run, MPSSHIM_CPU_ for the CPU driver; sanitizers' options are for whatever was built with them.
constexpr std::string_view kForBrokers[] = {"PATH",
                                            "HOME",
                                            "USER",
                                            "LOGNAME",
                                            "SHELL",
                                            "LANG",
                                            "LANGUAGE",
                                            "TZ",
                                            "TMPDIR",
                                            "LD_LIBRARY_PATH",
                                            "MPSSHIM_TRACE",
                                            "CUDA_CACHE_PATH",
                                            "CUDA_CACHE_MAXSIZE",
                                            "CUDA_CACHE_DISABLE",
                                            "XDG_CACHE_HOME"};
constexpr std::string_view kPrefixesForBrokers[] = {"LC_", "MPSSHIM_CPU_", "ASAN_", "TSAN_", "UBSAN_", "LSAN_"};

}  // namespace

std::optional<Parts> find_parts(std::string& why) {
  std::error_code error;
  const fs::path here = fs::read_symlink("/proc/self/exe", error).parent_path();
  Parts parts;
  parts.broker = here / "mpsbroker";
  if (access(parts.broker.c_str(), X_OK) != 0)
    return why = "found no mpsbroker beside " + (here / "mpsrun").string() + ": build or install it", std::nullopt;
  for (const char* folder : {"../lib", "../lib/mpsshim", "../lib64/mpsshim", "../lib/x86_64-linux-gnu/mpsshim"}) {
    const fs::path library = here / folder / "libmpsshim.so";
    if (!fs::exists(library, error)) continue;
    parts.library = fs::canonical(library.parent_path(), error) / "libmpsshim.so";
    break;
  }
  if (parts.library.empty()) return why = "found no libmpsshim.so under " + (here / "../lib").string() + ": build or install it", std::nullopt;
  if (parts.library.find_first_of(" \t\n:;") != std::string::npos) {
    why = "the path " + parts.library + " has a space, a colon or a semicolon, which LD_PRELOAD and LD_LIBRARY_PATH cannot carry: install elsewhere";
    return std::nullopt;
  }
  parts.management_library = fs::path(parts.library).parent_path() / "libmpsshim-nvml.so";
  parts.driver_folder = fs::path(parts.library).parent_path() / "libcuda";
  if (!fs::exists(fs::path(parts.driver_folder) / "libcuda.so.1", error)) {
    return why = "found no " + parts.driver_folder + "/libcuda.so.1: build or install it", std::nullopt;
  }
  return parts;
}

std::string with_first(const std::string& entry, const std::string& path) {
  if (path.empty()) return entry;
  std::string rest = ":" + path + ":";
  const std::string wanted = ":" + entry + ":";
  for (std::size_t at = rest.find(wanted); at != std::string::npos; at = rest.find(wanted)) rest.replace(at, wanted.size(), ":");
  if (rest == ":") return entry;
  rest.pop_back();
  return entry + rest;
}

std::string with_preloaded(const std::string& library, const std::string& list) {
  std::string names = ":" + list + ":";
  std::ranges::replace_if(
      names, [](char c) { return c == ' ' || c == '\t' || c == '\n'; }, ':');
  if (names.find(":" + library + ":") != std::string::npos) return list;
  return list.empty() ? library : list + ":" + library;
}

void prepare_program(const Parts& parts, const std::string& pipe_dir) {
  setenv("CUDA_MPS_PIPE_DIRECTORY", pipe_dir.c_str(), 1);
  setenv("MPSSHIM_REQUIRE", "1", 0);
  setenv("LD_PRELOAD", with_preloaded(parts.library, variable("LD_PRELOAD")).c_str(), 1);
  setenv("LD_LIBRARY_PATH", with_first(parts.driver_folder, variable("LD_LIBRARY_PATH")).c_str(), 1);
}

std::vector<std::string> broker_environment() {
  std::vector<std::string> kept;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string_view name = text.substr(0, text.find('='));
    const bool is_kept = std::ranges::find(kForBrokers, name) != std::end(kForBrokers) ||
                         std::ranges::any_of(kPrefixesForBrokers, [&](std::string_view prefix) { return name.starts_with(prefix); });
    if (is_kept) kept.emplace_back(text);
  }
  return kept;
}

}  // namespace mpsshim::broker::run
