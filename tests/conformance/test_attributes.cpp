// SPDX-License-Identifier: Apache-2.0
// Attributes of functions, launches and streams.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"  // the calls of old programs are tested too
#include <cstring>
#include <vector>

#include "loaded_image.hpp"
#include "shared_word.hpp"

using namespace mpsshim::test;

namespace {

CUlaunchConfig config_of(std::vector<CUlaunchAttribute>& attributes, CUstream stream) {
  return {1, 1, 1, 1, 1, 1, 0, stream, attributes.data(), static_cast<unsigned>(attributes.size())};
}

}  // namespace

TEST_CASE("what may be set on a function, and what not", "[forwarded]") {
  const DeviceContext context;
  const LoadedImage image;
  const CUfunction function = image.function("shared_memory");
  int value = 0;
  for (int i = CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK; i <= CU_FUNC_ATTRIBUTE_CACHE_MODE_CA; ++i) {
    INFO("attribute " << i);
    CHECK(CU(cuFuncSetAttribute)(function, static_cast<CUfunction_attribute>(i), 1) == CUDA_ERROR_INVALID_VALUE);
  }
  int most = 0;
  OK(CU(cuDeviceGetAttribute)(&most, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 0));
  OK(CU(cuFuncSetAttribute)(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, most - 128));
  CHECK(CU(cuFuncSetAttribute)(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, most - 127) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuFuncSetAttribute)(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, -1) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuFuncGetAttribute)(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, function));
  CHECK(value == most - 128);
  OK(CU(cuFuncSetAttribute)(function, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 50));
  OK(CU(cuFuncGetAttribute)(&value, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, function));
  CHECK(value == 50);
  CHECK(CU(cuFuncSetAttribute)(function, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 101) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuFuncSetAttribute)(function, static_cast<CUfunction_attribute>(16), 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuFuncGetAttribute)(nullptr, CU_FUNC_ATTRIBUTE_NUM_REGS, function) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuFuncSetCacheConfig)(function, CU_FUNC_CACHE_PREFER_L1));
}

TEST_CASE("a smaller limit of dynamic shared memory holds, too", "[forwarded]") {
  const DeviceContext context;
  const LoadedImage image;
  const CUfunction function = image.function("shared_memory");
  const DeviceArray<int> out(1);
  CUdeviceptr address = out.address();
  void* arguments[] = {&address};
  const auto launch_with = [&](unsigned bytes) { return CU(cuLaunchKernel)(function, 1, 1, 1, 32, 1, 1, bytes, nullptr, arguments, nullptr); };
  OK(CU(cuFuncSetAttribute)(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1024));
  CHECK(launch_with(1025) == CUDA_ERROR_INVALID_VALUE);
  OK(launch_with(1024));
  OK(CU(cuCtxSynchronize)());
}

TEST_CASE("clusters set on a function go with its launches", "[forwarded]") {
  if (driver_kind() == DriverKind::cpu) MPSSHIM_SKIP("the CPU driver has no clusters");
  const DeviceContext context;
  int has_clusters = 0;
  OK(CU(cuDeviceGetAttribute)(&has_clusters, CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, 0));
  if (has_clusters == 0 && !is_cpu_device()) MPSSHIM_SKIP("the device has no clusters");
  const LoadedImage image;
  const CUfunction function = image.function("store");
  const DeviceArray<unsigned> out(1);
  const CUfunction_attribute dimensions[] = {CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT,
                                             CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH};
  for (const CUfunction_attribute dimension : dimensions) OK(CU(cuFuncSetAttribute)(function, dimension, 1));
  int value = 0;
  OK(CU(cuFuncGetAttribute)(&value, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, function));
  CHECK(value == 1);
  CHECK(CU(cuFuncSetAttribute)(function, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, -1) == CUDA_ERROR_INVALID_VALUE);
  OK(launch(function, nullptr, 2, 1, out.address(), 6u));
  OK(CU(cuCtxSynchronize)());
  CHECK(out[0] == 6);
  if (has_clusters == 0) return;
  OK(CU(cuFuncSetAttribute)(function, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, 2));
  OK(launch(function, nullptr, 4, 1, out.address(), 7u));
  OK(CU(cuCtxSynchronize)());
  CHECK(out[0] == 7);
}

TEST_CASE("launch attributes that are hints change no result", "[forwarded]") {
  const DeviceContext context;
  const LoadedImage image;
  const CUfunction store = image.function("store");
  const DeviceArray<unsigned> out(1);
  std::vector<CUlaunchAttribute> attributes(5);
  attributes[0].id = CU_LAUNCH_ATTRIBUTE_IGNORE;
  attributes[1].id = CU_LAUNCH_ATTRIBUTE_PRIORITY;
  attributes[1].value.priority = -1;
  attributes[2].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  attributes[2].value.programmaticStreamSerializationAllowed = 1;
  attributes[3].id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
  attributes[3].value.cooperative = 0;
  attributes[4].id = CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW;
  attributes[4].value.accessPolicyWindow.base_ptr = reinterpret_cast<void*>(out.address());
  attributes[4].value.accessPolicyWindow.num_bytes = 4;
  attributes[4].value.accessPolicyWindow.hitRatio = 1;
  attributes[4].value.accessPolicyWindow.hitProp = CU_ACCESS_PROPERTY_STREAMING;
  attributes[4].value.accessPolicyWindow.missProp = CU_ACCESS_PROPERTY_NORMAL;
  const CUlaunchConfig config = config_of(attributes, nullptr);
  CUdeviceptr address = out.address();
  for (unsigned value = 1; value <= 20; ++value) {
    void* arguments[] = {&address, &value};
    OK(CU(cuLaunchKernelEx)(&config, store, arguments, nullptr));
  }
  OK(CU(cuCtxSynchronize)());
  CHECK(out[0] == 20);
  CHECK(CU(cuLaunchKernelEx)(nullptr, store, nullptr, nullptr) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("an event among the launch attributes is not seen before the kernel has triggered it", "[forwarded]") {
  const DeviceContext context;
  const LoadedImage image;
  SharedWord gate;
  const CUstream stream = new_stream();
  const CUevent event = new_event(CU_EVENT_DISABLE_TIMING);
  std::vector<CUlaunchAttribute> attributes(1);
  attributes[0].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT;
  attributes[0].value.programmaticEvent.event = event;
  const CUlaunchConfig config = config_of(attributes, stream);
  CUdeviceptr address = gate.address();
  void* arguments[] = {&address};
  OK(CU(cuLaunchKernelEx)(&config, image.function("spin"), arguments, nullptr));
  gate.wait_for_spinning();
  CHECK(CU(cuEventQuery)(event) == CUDA_ERROR_NOT_READY);
  *gate = 1;
  OK(CU(cuEventSynchronize)(event));
  OK(CU(cuStreamSynchronize)(stream));
  OK(CU(cuEventDestroy)(event));
  OK(CU(cuStreamDestroy)(stream));
}

TEST_CASE("attributes of a stream are kept, copied and go with its launches", "[forwarded]") {
  if (driver_kind() == DriverKind::cpu) MPSSHIM_SKIP("the CPU driver has no stream attributes");
  const DeviceContext context;
  const LoadedImage image;
  const DeviceArray<unsigned> out(1);
  const CUstream stream = new_stream();
  const CUstream other = new_stream();
  CUstreamAttrValue value{};
  OK(CU(cuStreamGetAttribute)(stream, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
  CHECK(static_cast<int>(value.syncPolicy) == -1);  // none of its own
  value = {};
  value.syncPolicy = CU_SYNC_POLICY_BLOCKING_SYNC;
  OK(CU(cuStreamSetAttribute)(stream, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
  value = {};
  value.accessPolicyWindow.base_ptr = reinterpret_cast<void*>(out.address());
  value.accessPolicyWindow.num_bytes = 4;
  value.accessPolicyWindow.hitRatio = 0.5f;
  value.accessPolicyWindow.hitProp = CU_ACCESS_PROPERTY_STREAMING;
  value.accessPolicyWindow.missProp = CU_ACCESS_PROPERTY_NORMAL;
  OK(CU(cuStreamSetAttribute)(stream, CU_STREAM_ATTRIBUTE_ACCESS_POLICY_WINDOW, &value));
  OK(CU(cuStreamCopyAttributes)(other, stream));
  for (const CUstream each : {stream, other}) {
    CUstreamAttrValue found{};
    OK(CU(cuStreamGetAttribute)(each, CU_STREAM_ATTRIBUTE_ACCESS_POLICY_WINDOW, &found));
    CHECK(found.accessPolicyWindow.base_ptr == reinterpret_cast<void*>(out.address()));
    CHECK(found.accessPolicyWindow.hitRatio == 0.5f);
    OK(CU(cuStreamGetAttribute)(each, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &found));
    CHECK(found.syncPolicy == CU_SYNC_POLICY_BLOCKING_SYNC);
    OK(launch(image.function("store"), each, 1, 1, out.address(), 5u));
    OK(CU(cuStreamSynchronize)(each));
    CHECK(out[0] == 5);
  }
  if (driver_kind() != DriverKind::real) {  // which does not look
    CHECK(CU(cuStreamGetAttribute)(stream, CU_STREAM_ATTRIBUTE_PRIORITY, nullptr) == CUDA_ERROR_INVALID_VALUE);
    CHECK(CU(cuStreamSetAttribute)(stream, CU_STREAM_ATTRIBUTE_PRIORITY, nullptr) == CUDA_ERROR_INVALID_VALUE);
  }
  CHECK(CU(cuStreamGetAttribute)(stream, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &value) == CUDA_ERROR_INVALID_VALUE);
  for (const CUstream each : {stream, other}) OK(CU(cuStreamDestroy)(each));
}

TEST_CASE("limits of a context are kept and may grow", "[forwarded]") {
  const DeviceContext context;
  size_t stack = 0;
  OK(CU(cuCtxGetLimit)(&stack, CU_LIMIT_STACK_SIZE));
  size_t now = 0;
  OK(CU(cuCtxSetLimit)(CU_LIMIT_STACK_SIZE, 2 * stack));
  OK(CU(cuCtxGetLimit)(&now, CU_LIMIT_STACK_SIZE));
  CHECK(now == 2 * stack);
  OK(CU(cuCtxSetLimit)(CU_LIMIT_STACK_SIZE, stack));
  OK(CU(cuCtxGetLimit)(&now, CU_LIMIT_STACK_SIZE));
  CHECK(now == stack);
  const LoadedImage image;
  const DeviceArray<unsigned> sum(1);
  OK(launch(image.function("recurse"), nullptr, 1, 1, 2u, sum.address()));
  OK(CU(cuCtxSynchronize)());
  CHECK(sum[0] == 3);
  CHECK(CU(cuCtxGetLimit)(nullptr, CU_LIMIT_STACK_SIZE) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("a launch by parameter block", "[forwarded]") {
  if (driver_kind() == DriverKind::cpu) MPSSHIM_SKIP("the CPU driver has no launches by parameter block");
  const DeviceContext context;
  const LoadedImage image;
  const CUfunction store = image.function("store");
  const DeviceArray<unsigned> out(1);
  CUdeviceptr address = out.address();
  OK(CU(cuFuncSetBlockShape)(store, 1, 1, 1));
  OK(CU(cuFuncSetSharedSize)(store, 0));
  OK(CU(cuParamSetSize)(store, 12));
  OK(CU(cuParamSetv)(store, 0, &address, sizeof address));
  OK(CU(cuParamSeti)(store, 8, 55));
  OK(CU(cuLaunch)(store));
  CHECK(out[0] == 55);
  OK(CU(cuParamSeti)(store, 8, 56));
  OK(CU(cuLaunchGrid)(store, 2, 2));
  CHECK(out[0] == 56);
  CHECK(CU(cuFuncSetBlockShape)(store, 0, 1, 1) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuParamSetf)(store, 8, 1.0F));
  const CUstream stream = new_stream();
  OK(CU(cuCtxSynchronize)());
  OK(CU(cuLaunchGridAsync)(store, 1, 1, stream));
  OK(CU(cuStreamSynchronize)(stream));
  OK(CU(cuStreamDestroy)(stream));
  CHECK(out[0] == 0x3f800000u);
}
