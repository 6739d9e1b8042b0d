// SPDX-License-Identifier: Apache-2.0
// Asks NVIDIA's management library as a program does that has found it by its name, and says what it was told, one line a question:
//   nvml_client [--cuda MIB] QUESTION...
// Each is "QUESTION RESULT ANSWER". "first" is asked before those of a device; ask() below has all of them.
// --cuda: with a context and so much device memory, before the first question.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include <cuda.h>

namespace {

using Device = void*;

struct Memory {
  unsigned long long total, free, used;
};
struct Memory2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};

void* library = nullptr;
Device device = nullptr;

template <typename Function>
Function* find(const char* name) {
  void* const found = dlsym(library, name);
  if (found == nullptr) std::printf("no %s\n", name), std::exit(1);
  return reinterpret_cast<Function*>(found);
}

template <typename... Arguments>
int call(const char* name, Arguments... arguments) {
  return find<int(Arguments...)>(name)(arguments...);
}

void take_memory(unsigned long mib) {
  CUcontext context = nullptr;
  CUdeviceptr address = 0;
  if (cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS || cuCtxSetCurrent(context) != CUDA_SUCCESS ||
      cuMemAlloc(&address, mib << 20) != CUDA_SUCCESS) {
    std::printf("no device memory\n");
    std::exit(1);
  }
}

void say(const std::string& question, int result, const std::string& answer) {
  std::printf("%s %d %s\n", question.c_str(), result, result == 0 ? answer.c_str() : "");
  std::fflush(stdout);
}

void ask_text(const std::string& question) {
  char text[96] = "";
  int result = 0;
  if (question == "name") result = call("nvmlDeviceGetName", device, &text[0], 96u);
  if (question == "uuid") result = call("nvmlDeviceGetUUID", device, &text[0], 96u);
  if (question == "driver") result = call("nvmlSystemGetDriverVersion", &text[0], 96u);
  if (question == "text") std::snprintf(text, sizeof text, "%s", find<const char*(int)>("nvmlErrorString")(3));
  say(question, result, text);
}

void ask_number(const std::string& question) {
  unsigned value = 0;
  int major = 0, minor = 0, result = 0;
  if (question == "count") result = call("nvmlDeviceGetCount_v2", &value);
  if (question == "count1") result = call("nvmlDeviceGetCount", &value);
  if (question == "index") result = call("nvmlDeviceGetIndex", device, &value);
  if (question == "power") result = call("nvmlDeviceGetPowerUsage", device, &value);
  if (question == "wild") result = call("nvmlDeviceGetIndex", static_cast<Device>(&value), &value);
  if (question == "cuda") result = call("nvmlSystemGetCudaDriverVersion_v2", &value);
  if (question == "capability") result = call("nvmlDeviceGetCudaComputeCapability", device, &major, &minor);
  say(question, result, question == "capability" ? std::to_string(major) + "." + std::to_string(minor) : std::to_string(value));
}

void ask_memory(const std::string& question) {
  if (question == "memory") {
    Memory memory{};
    const int result = call("nvmlDeviceGetMemoryInfo", device, &memory);
    return say(question, result, std::to_string(memory.total) + " " + std::to_string(memory.free) + " " + std::to_string(memory.used));
  }
  Memory2 memory{};
  memory.version = question == "memory2" ? 40u | 2u << 24 : 1;
  const int result = call("nvmlDeviceGetMemoryInfo_v2", device, &memory);
  say(question, result,
      std::to_string(memory.total) + " " + std::to_string(memory.reserved) + " " + std::to_string(memory.free) + " " + std::to_string(memory.used));
}

void ask(const std::string& question, const char* argument) {
  Device found = nullptr;
  if (question == "init") return say(question, call("nvmlInit_v2"), "");
  if (question == "shutdown") return say(question, call("nvmlShutdown"), "");
  if (question == "first") return say(question, call("nvmlDeviceGetHandleByIndex_v2", 0u, &device), "");
  if (question == "beyond") return say(question, call("nvmlDeviceGetHandleByIndex_v2", 99u, &found), "");
  if (question == "by-uuid" || question == "by-pci") {
    const int result = call(question == "by-uuid" ? "nvmlDeviceGetHandleByUUID" : "nvmlDeviceGetHandleByPciBusId_v2", argument, &found);
    return say(question, result, found == device ? "the same" : "another");
  }
  if (question == "samples") {
    int kind = 4;
    unsigned count = 0;
    const int result = call("nvmlDeviceGetSamples", device, 2, 0x1234'5678'9abc'def0ull, &kind, &count, device);
    return say(question, result, std::to_string(count));
  }
  if (question == "fork") {
    const pid_t child = fork();
    if (child == 0) ask("count", ""), _exit(0);
    int status = 0;
    waitpid(child, &status, 0);
    return say(question, status, "");
  }
  if (question.starts_with("memory")) return ask_memory(question);
  if (question == "name" || question == "uuid" || question == "driver" || question == "text") return ask_text(question);
  ask_number(question);
}

}  // namespace

int main(int argc, char** argv) {
  int at = 1;
  if (argc > 2 && std::strcmp(argv[1], "--cuda") == 0) take_memory(std::strtoul(argv[2], nullptr, 10)), at = 3;
  library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  if (library == nullptr) return std::printf("%s\n", dlerror()), 1;
  for (; at < argc; ++at) {
    const std::string word = argv[at];
    const std::size_t equals = word.find('=');
    ask(word.substr(0, equals), equals == std::string::npos ? "" : argv[at] + equals + 1);
  }
  return 0;
}
