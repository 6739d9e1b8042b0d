// SPDX-License-Identifier: Apache-2.0
//
// The driver that a test body runs on: libcuda_cpu.so of this build, or the library that MPSSHIM_TEST_DRIVER names: libcuda.so.1 is the real
// driver, or libmpsshim.so where that is preloaded (run_as_client). Bodies speak the plain driver API:
//   REQUIRE(CU(cuMemAlloc)(&address, bytes) == CUDA_SUCCESS);
// CU() goes by the exported name that cuda.h maps the plain one to. What the real driver answers is right: a body that asks for something
// else is skipped there and says why.
#pragma once

#include <cuda.h>
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/support/catch.hpp"

// For cases that map memory at an address of their own choice.
#if defined(__SANITIZE_THREAD__)
#define MPSSHIM_SKIP_UNDER_TSAN() MPSSHIM_SKIP("ThreadSanitizer ends a program whose mapping lies outside the ranges it knows")
#else
#define MPSSHIM_SKIP_UNDER_TSAN() static_cast<void>(0)
#endif

namespace mpsshim::test {

enum class DriverKind {
  cpu,        // libcuda_cpu.so itself
  forwarded,  // libmpsshim.so and a broker
  real,       // NVIDIA's
};

inline const char* driver_path() {
  const char* named = std::getenv("MPSSHIM_TEST_DRIVER");
  return named != nullptr && *named != '\0' ? named : MPSSHIM_CPU_DRIVER_PATH;
}

// With MPSSHIM_TEST_OTHER_DEVICE the process works on device 1 before the body does anything: what the body does on device 0 is a second session's.
inline void* open_driver() {
  void* const library = dlopen(driver_path(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr || std::getenv("MPSSHIM_TEST_OTHER_DEVICE") == nullptr) return library;
  const auto init = reinterpret_cast<decltype(&cuInit)>(dlsym(library, "cuInit"));
  const auto retain = reinterpret_cast<decltype(&cuDevicePrimaryCtxRetain)>(dlsym(library, "cuDevicePrimaryCtxRetain"));
  CUcontext other = nullptr;
  if (init(0) != CUDA_SUCCESS || retain(&other, 1) != CUDA_SUCCESS) {
    std::fprintf(stderr, "There is no second device to work on.\n");
    std::_Exit(95);
  }
  return library;
}

template <class Function>
Function driver_symbol(const char* name) {
  static void* const library = open_driver();
  void* const found = library == nullptr ? nullptr : dlsym(library, name);
  if (found == nullptr) {
    std::fprintf(stderr, "%s has no %s: %s\n", driver_path(), name, dlerror());
    std::_Exit(97);
  }
  return reinterpret_cast<Function>(found);
}

#define MPSSHIM_TEXT_OF(name) #name
#define MPSSHIM_DRIVER_SYMBOL(name) ::mpsshim::test::driver_symbol<decltype(&name)>(MPSSHIM_TEXT_OF(name))
#define CU(name) MPSSHIM_DRIVER_SYMBOL(name)
#define OK(call) REQUIRE((call) == CUDA_SUCCESS)

// For functions that cuda.h names only under another version, or as deprecated.
template <class... Arguments>
CUresult call(const char* name, Arguments... arguments) {
  return driver_symbol<CUresult (*)(Arguments...)>(name)(arguments...);
}

// By the file that the library was loaded from, since libmpsshim.so bears the real driver's name.
inline DriverKind driver_kind() {
  static const DriverKind kind = [] {
    Dl_info info{};
    if (dladdr(driver_symbol<void*>("cuInit"), &info) == 0) std::_Exit(96);
    if (std::strstr(info.dli_fname, "libmpsshim") != nullptr) return DriverKind::forwarded;
    return std::strstr(info.dli_fname, "libcuda_cpu") != nullptr ? DriverKind::cpu : DriverKind::real;
  }();
  return kind;
}

inline bool is_cpu_driver() { return driver_kind() == DriverKind::cpu; }

// Whether the device is the CPU, be it behind a broker: it is nobody else's meanwhile. After cuInit.
inline bool is_cpu_device() {
  char name[64] = "";
  return CU(cuDeviceGetName)(name, sizeof name, 0) == CUDA_SUCCESS && std::strstr(name, "CPU reference") != nullptr;
}

constexpr size_t kGranule = size_t{2} << 20;  // device memory is mapped in pieces of this

// An enumerator that there is not.
template <class Enumeration>
Enumeration beyond(int number) {
  volatile int hidden = number;  // from the compiler, which warns about numbers it can see
  return static_cast<Enumeration>(hidden);
}

inline unsigned word_at(CUdeviceptr address) {
  unsigned word = 0;
  OK(CU(cuMemcpyDtoH)(&word, address, sizeof word));
  return word;
}

// The real driver follows a handle that is gone wherever it leads, often to a segmentation fault. Ours say CUDA_ERROR_INVALID_HANDLE.
inline bool refuses_dead_handles() { return driver_kind() != DriverKind::real; }

// Starts one (hidden) case of this program in a process of its own, for what spoils or ends a process.
inline pid_t start_case(const char* name) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    execl("/proc/self/exe", "child", name, static_cast<char*>(nullptr));
    _exit(98);
  }
  return child;
}

// The case's exit status: 0 if it passed. 256 and more: ended by a signal.
inline int run_case(const char* name) {
  int status = 0;
  const pid_t child = start_case(name);
  if (child < 0 || waitpid(child, &status, 0) != child) return 99;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
}

// A current primary context for the test case.
class DeviceContext {
 public:
  DeviceContext() {
    OK(CU(cuInit)(0));
    OK(CU(cuDevicePrimaryCtxRetain)(&context_, 0));
    OK(CU(cuCtxSetCurrent)(context_));
  }
  ~DeviceContext() {
    CU(cuCtxSetCurrent)(nullptr);
    CU(cuDevicePrimaryCtxRelease)(0);
  }
  DeviceContext(const DeviceContext&) = delete;
  DeviceContext& operator=(const DeviceContext&) = delete;

  CUcontext handle() const { return context_; }

 private:
  CUcontext context_ = nullptr;
};

}  // namespace mpsshim::test
