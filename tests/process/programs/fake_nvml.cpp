// SPDX-License-Identifier: Apache-2.0
// In the place of NVIDIA's management library behind the shadow: one device, whose UUID is $FAKE_NVML_UUID, with 80 GB of which 30 are in use.
// $FAKE_NVML_INIT is what its initialisation answers.
#include <cstdio>
#include <cstdlib>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {
char the_device;
}

EXPORT int nvmlInit_v2() {
  const char* const result = std::getenv("FAKE_NVML_INIT");
  return result == nullptr ? 0 : std::atoi(result);
}
EXPORT int nvmlShutdown() { return 0; }
EXPORT const char* nvmlErrorString(int /*result*/) { return "real words"; }
EXPORT int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 7;
  return 0;
}
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned /*index*/, void** device) {
  *device = &the_device;
  return 0;
}
EXPORT int nvmlDeviceGetUUID(void* device, char* text, unsigned bytes) {
  if (device != &the_device) return 2;
  std::snprintf(text, bytes, "%s", std::getenv("FAKE_NVML_UUID"));
  return 0;
}
EXPORT int nvmlDeviceGetName(void* device, char* text, unsigned bytes) {
  std::snprintf(text, bytes, "a real one");
  return device == &the_device ? 0 : 2;
}
EXPORT int nvmlDeviceGetPowerUsage(void* device, unsigned* milliwatts) {
  *milliwatts = 300'000;
  return device == &the_device ? 0 : 2;
}
EXPORT int nvmlDeviceGetMemoryInfo(void* device, unsigned long long* memory) {
  memory[0] = 80'000'000'000, memory[1] = 50'000'000'000, memory[2] = 30'000'000'000;
  return device == &the_device ? 0 : 2;
}
EXPORT int nvmlDeviceGetMemoryInfo_v2(void* device, unsigned long long* memory) {
  memory[1] = 80'000'000'000, memory[2] = 1'000'000'000, memory[3] = 49'000'000'000, memory[4] = 30'000'000'000;
  return device == &the_device ? 0 : 2;
}
EXPORT int nvmlDeviceGetIndex(void* device, unsigned* index) {
  *index = 3;
  return device == &the_device ? 0 : 2;
}
EXPORT int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  *version = 4711;
  return 0;
}
EXPORT int nvmlDeviceGetSamples(void* device, int type, unsigned long long since, int* kind, unsigned* count, void* samples) {
  const bool all_came = type == 2 && since == 0x1234'5678'9abc'def0 && *kind == 4 && samples == &the_device;
  *count = 6;
  return device == &the_device && all_came ? 0 : 2;
}
