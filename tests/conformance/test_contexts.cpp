// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <string>
#include <vector>

#include "loaded_image.hpp"

using namespace mpsshim::test;

namespace {

// A context that cuCtxCreate_v2 made, current, and gone at its end.
class OwnContext {
 public:
  explicit OwnContext(unsigned flags = 0) { OK(call("cuCtxCreate_v2", &context_, flags, CUdevice{0})); }
  ~OwnContext() { CU(cuCtxDestroy)(context_); }
  OwnContext(const OwnContext&) = delete;
  OwnContext& operator=(const OwnContext&) = delete;
  CUcontext handle() const { return context_; }

 private:
  CUcontext context_ = nullptr;
};

}  // namespace

TEST_CASE("contexts are made by every version of cuCtxCreate", "[forwarded]") {
  if (is_cpu_driver()) MPSSHIM_SKIP("the CPU driver has its primary context alone");
  OK(CU(cuInit)(0));
  CUcontext context = nullptr;
  CUcontext current = nullptr;
  unsigned version = 0;
  SECTION("2") { OK(call("cuCtxCreate_v2", &context, 0u, CUdevice{0})); }
  SECTION("3, without affinities") { OK(call("cuCtxCreate_v3", &context, static_cast<CUexecAffinityParam*>(nullptr), 0, 0u, CUdevice{0})); }
  SECTION("4, without parameters") { OK(call("cuCtxCreate_v4", &context, static_cast<void*>(nullptr), 0u, CUdevice{0})); }
  OK(CU(cuCtxGetCurrent)(&current));
  CHECK(current == context);
  OK(CU(cuCtxGetApiVersion)(context, &version));
  CHECK(version >= 3020);
  OK(CU(cuCtxDestroy)(context));
  OK(CU(cuCtxGetCurrent)(&current));
  CHECK(current == nullptr);
  CHECK(call("cuCtxCreate_v2", static_cast<CUcontext*>(nullptr), 0u, CUdevice{0}) == CUDA_ERROR_INVALID_VALUE);
  CHECK(call("cuCtxCreate_v2", &context, 0u, CUdevice{99}) == CUDA_ERROR_INVALID_DEVICE);
  CHECK(call("cuCtxCreate_v2", &context, 0x8000u, CUdevice{0}) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("every context has a number of its own, which stays", "[forwarded]") {
  if (is_cpu_driver()) MPSSHIM_SKIP("the CPU driver has its primary context alone");
  OK(CU(cuInit)(0));
  unsigned long long first = 0, second = 0, again = 0;
  const OwnContext one;
  OK(CU(cuCtxGetId)(one.handle(), &first));
  {
    const OwnContext other;
    OK(CU(cuCtxGetId)(other.handle(), &second));
    OK(CU(cuCtxGetId)(nullptr, &again));  // the current one
    CHECK(again == second);
  }
  OK(CU(cuCtxGetId)(one.handle(), &again));
  CHECK(again == first);
  CHECK(first != second);
  CHECK(CU(cuCtxGetId)(one.handle(), nullptr) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("a context's preferences are kept", "[forwarded]") {
  if (is_cpu_driver()) MPSSHIM_SKIP("the CPU driver has its primary context alone");
  OK(CU(cuInit)(0));
  const OwnContext context(CU_CTX_SCHED_SPIN);
  unsigned flags = 0;
  OK(CU(cuCtxGetFlags)(&flags));
  CHECK((flags & CU_CTX_SCHED_MASK) == CU_CTX_SCHED_SPIN);
  OK(CU(cuCtxSetFlags)(CU_CTX_SCHED_BLOCKING_SYNC));
  OK(CU(cuCtxGetFlags)(&flags));
  CHECK((flags & CU_CTX_SCHED_MASK) == CU_CTX_SCHED_BLOCKING_SYNC);
  CUfunc_cache cache = beyond<CUfunc_cache>(99);
  OK(CU(cuCtxSetCacheConfig)(CU_FUNC_CACHE_PREFER_L1));
  OK(CU(cuCtxGetCacheConfig)(&cache));
  CHECK(cache == CU_FUNC_CACHE_PREFER_L1);
  CHECK(CU(cuCtxSetCacheConfig)(beyond<CUfunc_cache>(99)) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("banks of shared memory are of one size, whatever is asked for", "[forwarded]") {
  if (is_cpu_driver()) MPSSHIM_SKIP("the CPU driver has no banks");
  const DeviceContext context;
  const LoadedImage image;
  CUsharedconfig banks = beyond<CUsharedconfig>(99);
  OK(call("cuCtxSetSharedMemConfig", CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE));
  OK(call("cuCtxGetSharedMemConfig", &banks));
  CHECK(banks != CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE);
  CHECK(call("cuCtxSetSharedMemConfig", beyond<CUsharedconfig>(99)) == CUDA_ERROR_INVALID_VALUE);
  OK(call("cuFuncSetSharedMemConfig", image.function("store"), CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE));
}

TEST_CASE("a context may be attached to and is gone with the last who detaches", "[forwarded]") {
  if (is_cpu_driver()) MPSSHIM_SKIP("the CPU driver does not count attachments");
  OK(CU(cuInit)(0));
  CUcontext context = nullptr, attached = nullptr;
  OK(call("cuCtxCreate_v2", &context, 0u, CUdevice{0}));
  CHECK(call("cuCtxAttach", &attached, 1u) == CUDA_ERROR_INVALID_VALUE);
  OK(call("cuCtxAttach", &attached, 0u));
  CHECK(attached == context);
  OK(call("cuCtxDetach", context));
  CUcontext current = nullptr;
  OK(CU(cuCtxGetCurrent)(&current));
  CHECK(current == context);
  OK(call("cuCtxDetach", context));
  OK(CU(cuCtxGetCurrent)(&current));
  CHECK(current == nullptr);
}

TEST_CASE("a context made without an affinity works on all of its device", "[forwarded]") {
  if (is_cpu_driver()) MPSSHIM_SKIP("the CPU driver knows of no affinities");
  const DeviceContext context;
  int supported = 99;
  OK(CU(cuDeviceGetExecAffinitySupport)(&supported, CU_EXEC_AFFINITY_TYPE_SM_COUNT, 0));
  CHECK((supported == 1 || driver_kind() == DriverKind::real));  // natively beneath NVIDIA's MPS alone
  CHECK(CU(cuDeviceGetExecAffinitySupport)(nullptr, CU_EXEC_AFFINITY_TYPE_SM_COUNT, 0) == CUDA_ERROR_INVALID_VALUE);
  CUexecAffinityParam affinity{};
  int multiprocessors = 0;
  OK(CU(cuDeviceGetAttribute)(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
  OK(CU(cuCtxGetExecAffinity)(&affinity, CU_EXEC_AFFINITY_TYPE_SM_COUNT));
  CHECK(affinity.type == CU_EXEC_AFFINITY_TYPE_SM_COUNT);
  CHECK(affinity.param.smCount.val == static_cast<unsigned>(multiprocessors));
}

TEST_CASE("the older ways to ask what a device is", "[forwarded]") {
  if (is_cpu_driver()) MPSSHIM_SKIP("the CPU driver has none of them");
  OK(CU(cuInit)(0));
  int major = 0, minor = 0, attribute = 0;
  OK(call("cuDeviceComputeCapability", &major, &minor, CUdevice{0}));
  OK(CU(cuDeviceGetAttribute)(&attribute, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0));
  CHECK(major == attribute);
  OK(CU(cuDeviceGetAttribute)(&attribute, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0));
  CHECK(minor == attribute);
  CUdevprop properties{};
  OK(call("cuDeviceGetProperties", &properties, CUdevice{0}));
  OK(CU(cuDeviceGetAttribute)(&attribute, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 0));
  CHECK(properties.maxGridSize[0] == attribute);
  OK(CU(cuDeviceGetAttribute)(&attribute, CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 0));
  CHECK(properties.clockRate == attribute);
  CHECK(properties.SIMDWidth == 32);
}

TEST_CASE("a device has one uuid, whichever version asks", "[forwarded]") {
  OK(CU(cuInit)(0));
  CUuuid first{}, second{};
  OK(call("cuDeviceGetUuid", &first, CUdevice{0}));
  OK(call("cuDeviceGetUuid_v2", &second, CUdevice{0}));
  CHECK(std::memcmp(&first, &second, sizeof first) == 0);
  CHECK(std::string(first.bytes, sizeof first.bytes) != std::string(sizeof first.bytes, '\0'));
  CHECK(call("cuDeviceGetUuid_v2", static_cast<CUuuid*>(nullptr), CUdevice{0}) == CUDA_ERROR_INVALID_VALUE);
  CHECK(call("cuDeviceGetUuid_v2", &second, CUdevice{99}) == CUDA_ERROR_INVALID_DEVICE);
}

TEST_CASE("a device is no peer of its own", "[forwarded]") {
  if (is_cpu_driver()) MPSSHIM_SKIP("the CPU driver is alone");
  const DeviceContext context;
  int can = 99;
  OK(CU(cuDeviceCanAccessPeer)(&can, 0, 0));
  CHECK(can == 0);
  CHECK(CU(cuDeviceCanAccessPeer)(&can, 0, 99) == CUDA_ERROR_INVALID_DEVICE);
  CHECK(CU(cuDeviceGetP2PAttribute)(&can, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 0) == CUDA_ERROR_INVALID_DEVICE);
  CHECK(CU(cuCtxEnablePeerAccess)(context.handle(), 0) == CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
  CHECK(CU(cuCtxEnablePeerAccess)(context.handle(), 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuCtxEnablePeerAccess)(nullptr, 0) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(CU(cuCtxDisablePeerAccess)(nullptr) == CUDA_ERROR_INVALID_CONTEXT);
}

TEST_CASE("a profiler may be started and stopped where there is none", "[forwarded]") {
  if (is_cpu_driver()) MPSSHIM_SKIP("the CPU driver has no profiler interface");
  OK(CU(cuInit)(0));
  CHECK(call("cuProfilerStart") == CUDA_ERROR_INVALID_CONTEXT);
  const DeviceContext context;
  OK(call("cuProfilerStart"));
  OK(call("cuProfilerStop"));
  OK(call("cuProfilerStop"));
}

TEST_CASE("the profiler's output cannot be configured", "[forwarded]") {
  if (is_cpu_driver()) MPSSHIM_SKIP("the CPU driver has no profiler interface");
  const DeviceContext context;
  CHECK(call("cuProfilerInitialize", "", "", 0) == CUDA_ERROR_NOT_SUPPORTED);
}

TEST_CASE("a table that nobody exports", "[forwarded]") {
  OK(CU(cuInit)(0));
  const void* table = nullptr;
  const CUuuid unknown{{1, 2, 3}};
  CHECK(CU(cuGetExportTable)(&table, &unknown) != CUDA_SUCCESS);
  CHECK(table == nullptr);
}
