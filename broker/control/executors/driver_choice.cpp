// SPDX-License-Identifier: Apache-2.0
#include "broker/control/executors/driver_choice.hpp"

#include <filesystem>

namespace mpsshim::broker::control {

namespace {

constexpr const char* kCpuDriver = "libcuda_cpu.so";

namespace fs = std::filesystem;

// Where container runtimes put the driver without telling the loader.
constexpr const char* kUsualDrivers[] = {"/usr/local/nvidia/lib64/libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1"};

void add_system_driver(std::vector<std::string>& drivers) {
  std::error_code error;
  drivers.emplace_back("libcuda.so.1");
  for (const char* path : kUsualDrivers) {
    if (fs::exists(path, error)) drivers.emplace_back(path);
  }
}

// Beside the binary, or where it is installed relative to it.
void add_cpu_driver(std::vector<std::string>& drivers) {
  std::error_code error;
  const fs::path here = fs::read_symlink("/proc/self/exe", error).parent_path();
  for (const char* folder : {".", "../lib", "../lib/mpsshim", "../lib64/mpsshim", "../lib/x86_64-linux-gnu/mpsshim"}) {
    const fs::path library = here / folder / kCpuDriver;
    if (!fs::exists(library, error)) continue;
    drivers.push_back(fs::canonical(library, error).string());
    return;
  }
}

}  // namespace

std::vector<std::string> drivers_to_try(const std::string& choice) {
  std::vector<std::string> drivers;
  if (choice == "auto" || choice == "cuda") add_system_driver(drivers);
  if (choice == "auto" || choice == "cpu") add_cpu_driver(drivers);
  if (choice != "auto" && choice != "cuda" && choice != "cpu") drivers.push_back(choice);
  return drivers;
}

bool is_cpu_driver(const std::string& path) { return fs::path(path).filename() == kCpuDriver; }

}  // namespace mpsshim::broker::control
