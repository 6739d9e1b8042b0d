// SPDX-License-Identifier: Apache-2.0
// CUDA Driver API manual: launches of "Execution Control".
#include "broker/cpudriver/modules/launch.hpp"

#include "broker/cpudriver/api/entry.hpp"
#include "broker/cpudriver/context/green_context.hpp"
#include "broker/cpudriver/streams/event.hpp"

using namespace mpsshim::cpudriver;

namespace {

struct LaunchExtras {
  bool is_cooperative = false;
  CUevent completion_event = nullptr;  // recorded behind the launch
};

bool is_single(const unsigned (&dimensions)[3]) { return dimensions[0] <= 1 && dimensions[1] <= 1 && dimensions[2] <= 1; }

CUresult read_attribute(const CUlaunchAttribute& attribute, LaunchExtras& extras) {
  const CUlaunchAttributeValue& value = attribute.value;
  switch (static_cast<int>(attribute.id)) {
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE: extras.is_cooperative = value.cooperative != 0; return CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION: {
      const unsigned dimensions[3] = {value.clusterDim.x, value.clusterDim.y, value.clusterDim.z};
      return is_single(dimensions) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CLUSTER_SIZE;
    }
    // Whole kernels run one after the other in a stream, so "may begin early" is kept by not beginning early, and an
    // event that may be seen early is seen at the end.
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT: extras.completion_event = value.programmaticEvent.event; return CUDA_SUCCESS;
    case 12:  // CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT, newer than CUDA 12.4's first headers
      extras.completion_event = value.launchCompletionEvent.event;
      return CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_IGNORE:
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
    case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
    case 11:  // preferred cluster dimension: a preference
    case 14:  // preferred shared memory carve-out
    case 16:  // NVLink utilisation
      return CUDA_SUCCESS;
    default: return CUDA_ERROR_NOT_SUPPORTED;
  }
}

CUresult launch(CUfunction handle, CUstream stream_handle, const LaunchShape& shape, void** parameters, void** extra, const LaunchExtras& extras) {
  const StreamPtr stream = stream_of(stream_handle);
  if (const CUresult refused = usable(stream); refused != CUDA_SUCCESS) return refused;
  const auto event = HandleTable<Event>::get().find(extras.completion_event);
  if (extras.completion_event != nullptr && event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const auto function = HandleTable<Function>::get().find(handle);
  KernelLaunch kernel;
  LaunchShape own = shape;
  if (const GreenContextPtr green = stream->green()) own.multiprocessors = green->share().mask;
  const CUresult made = KernelLaunch::make(function, own, parameters, extra, kernel);
  if (made != CUDA_SUCCESS) return made;
  bring_to_device(*function);
  Scheduler::get().submit(stream, as_operation(std::move(kernel)));
  if (event != nullptr) event->record(stream);
  return CUDA_SUCCESS;  // a fault is told by a later call, however soon it came
}

}  // namespace

CUresult CUDAAPI cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ, unsigned int blockDimX,
                                unsigned int blockDimY, unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream, void** kernelParams,
                                void** extra) {
  return entry(needs_on(hStream), [&] {
    const LaunchShape shape{{gridDimX, gridDimY, gridDimZ}, {blockDimX, blockDimY, blockDimZ}, sharedMemBytes, false};
    return launch(f, hStream, shape, kernelParams, extra, {});
  });
}

CUresult CUDAAPI cuLaunchCooperativeKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ, unsigned int blockDimX,
                                           unsigned int blockDimY, unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,
                                           void** kernelParams) {
  return entry(needs_on(hStream), [&] {
    const LaunchShape shape{{gridDimX, gridDimY, gridDimZ}, {blockDimX, blockDimY, blockDimZ}, sharedMemBytes, true};
    return launch(f, hStream, shape, kernelParams, nullptr, {});
  });
}

// The CPU is one device, and a list names each device once.
CUresult CUDAAPI cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS* launchParamsList, unsigned int numDevices, unsigned int) {
  if (launchParamsList == nullptr || numDevices != 1) return CUDA_ERROR_INVALID_VALUE;
  const CUDA_LAUNCH_PARAMS& only = launchParamsList[0];
  return cuLaunchCooperativeKernel(only.function, only.gridDimX, only.gridDimY, only.gridDimZ, only.blockDimX, only.blockDimY, only.blockDimZ,
                                   only.sharedMemBytes, only.hStream, only.kernelParams);
}

CUresult CUDAAPI cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction f, void** kernelParams, void** extra) {
  return entry(config != nullptr ? needs_on(config->hStream) : Needs::context, [&]() -> CUresult {
    if (config == nullptr || (config->numAttrs != 0 && config->attrs == nullptr)) return CUDA_ERROR_INVALID_VALUE;
    LaunchExtras extras;
    for (unsigned i = 0; i < config->numAttrs; ++i) {
      const CUresult understood = read_attribute(config->attrs[i], extras);
      if (understood != CUDA_SUCCESS) return understood;
    }
    const LaunchShape shape{{config->gridDimX, config->gridDimY, config->gridDimZ},
                            {config->blockDimX, config->blockDimY, config->blockDimZ},
                            config->sharedMemBytes,
                            extras.is_cooperative};
    return launch(f, config->hStream, shape, kernelParams, extra, extras);
  });
}
