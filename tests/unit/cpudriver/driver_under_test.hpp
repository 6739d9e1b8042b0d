// SPDX-License-Identifier: Apache-2.0
//
// The driver that a test body runs on: libcuda_cpu.so of this build, or the library that MPSSHIM_TEST_DRIVER names
// (such as libcuda.so.1, to ask the real driver the same question). Bodies speak the plain driver API:
//   REQUIRE(CU(cuMemAlloc)(&address, bytes) == CUDA_SUCCESS);
// CU() goes by the exported name that cuda.h maps the plain one to.
#pragma once

#include <cuda.h>
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/support/catch.hpp"

namespace mpsshim::test {

inline const char* driver_path() {
  const char* named = std::getenv("MPSSHIM_TEST_DRIVER");
  return named != nullptr ? named : MPSSHIM_CPU_DRIVER_PATH;
}

inline bool is_cpu_driver() { return std::strcmp(driver_path(), MPSSHIM_CPU_DRIVER_PATH) == 0; }

template <class Function>
Function driver_symbol(const char* name) {
  static void* const library = dlopen(driver_path(), RTLD_NOW | RTLD_LOCAL);
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
