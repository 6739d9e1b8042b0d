// SPDX-License-Identifier: Apache-2.0
#include "broker/cpudriver/config.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "proto/device_facts.hpp"

namespace mpsshim::cpudriver {
namespace {

constexpr unsigned long kMaxMemoryMib = 1ul << 24;  // 16 TiB, half of the window that clients' leases come from
constexpr unsigned long kMaxThreads = 1024;

unsigned long number_from(const char* name, unsigned long fallback, unsigned long lowest, unsigned long highest) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return fallback;
  char* end = nullptr;
  const unsigned long value = std::strtoul(text, &end, 10);
  if (*end == '\0' && value >= lowest && value <= highest) return value;
  std::fprintf(stderr, "cuda_cpu: %s=%s is not a number from %lu to %lu; using %lu.\n", name, text, lowest, highest,
               fallback);
  return fallback;
}

void read_capability(Config& config) {
  const char* text = std::getenv("MPSSHIM_CPU_COMPUTE_CAPABILITY");
  if (text == nullptr || *text == '\0') return;
  int major = 0;
  int minor = 0;
  char rest = '\0';
  const bool understood = std::sscanf(text, "%d.%d%c", &major, &minor, &rest) == 2;
  const int value = major * 10 + minor;
  if (understood && minor >= 0 && minor <= 9 && value >= 75 && value <= 120) {
    config.capability_major = major;
    config.capability_minor = minor;
    return;
  }
  std::fprintf(stderr, "cuda_cpu: MPSSHIM_CPU_COMPUTE_CAPABILITY=%s is not a version from 7.5 to 12.0; using 7.5.\n",
               text);
}

Config read() {
  Config config;
  read_capability(config);
  config.devices = static_cast<unsigned>(number_from("MPSSHIM_CPU_DEVICES", 1, 1, proto::kMaxDevices));
  const unsigned cores = std::thread::hardware_concurrency();
  config.memory_bytes = number_from("MPSSHIM_CPU_MEMORY_MIB", config.memory_bytes >> 20, 1, kMaxMemoryMib) << 20;
  config.threads = static_cast<unsigned>(number_from("MPSSHIM_CPU_THREADS", cores == 0 ? 1 : cores, 1, kMaxThreads));
  config.relaxed = number_from("MPSSHIM_CPU_RELAXED", 0, 0, 1) != 0;
  config.uneven = number_from("MPSSHIM_CPU_UNEVEN", 0, 0, 1) != 0;
  config.apart = number_from("MPSSHIM_CPU_APART", 0, 0, 1) != 0;
  if (const char* file = std::getenv("MPSSHIM_CPU_EXCLUSIVE"); file != nullptr) config.exclusive = file;
  config.teardown_ms = static_cast<unsigned>(number_from("MPSSHIM_CPU_TEARDOWN_MS", 0, 0, 60'000));
  return config;
}

}  // namespace

const Config& Config::get() {
  static const Config config = read();
  return config;
}

}  // namespace mpsshim::cpudriver
