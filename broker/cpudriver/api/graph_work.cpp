// SPDX-License-Identifier: Apache-2.0
#include "broker/cpudriver/api/graph_work.hpp"

#include "broker/cpudriver/api/copy_description.hpp"
#include "broker/cpudriver/context/green_context.hpp"
#include "broker/cpudriver/handle_table.hpp"

namespace mpsshim::cpudriver {

WorkOrError kernel_work(const CUDA_KERNEL_NODE_PARAMS* parameters) {
  if (parameters == nullptr) return {CUDA_ERROR_INVALID_VALUE, {}};
  const CUDA_KERNEL_NODE_PARAMS& p = *parameters;
  const void* const handle = p.func != nullptr ? static_cast<const void*>(p.func) : static_cast<const void*>(p.kern);
  const auto function = HandleTable<Function>::get().find(handle);
  LaunchShape shape{{p.gridDimX, p.gridDimY, p.gridDimZ}, {p.blockDimX, p.blockDimY, p.blockDimZ}, p.sharedMemBytes, false};
  // Whatever context the parameters name, and whatever stream the graph is launched into, as on an H200.
  if (const GreenContextPtr green = GreenContext::current()) shape.multiprocessors = green->share().mask;
  KernelLaunch launch;
  const CUresult made = KernelLaunch::make(function, shape, p.kernelParams, p.extra, launch);
  if (made != CUDA_SUCCESS) return {made, {}};
  bring_to_device(*function);
  return {CUDA_SUCCESS, std::move(launch)};
}

WorkOrError memory_operations_work(const CUDA_BATCH_MEM_OP_NODE_PARAMS* parameters) {
  if (parameters == nullptr || parameters->flags != 0) return {CUDA_ERROR_INVALID_VALUE, {}};
  const CUresult checked = MemoryOperations::check(parameters->count, parameters->paramArray);
  if (checked != CUDA_SUCCESS) return {checked, {}};
  return {CUDA_SUCCESS, MemoryOperations(parameters->count, parameters->paramArray)};
}

WorkOrError copy_work(const CUDA_MEMCPY3D* parameters) {
  Copy copy;
  const CUresult understood = read_copy(parameters, copy);
  if (understood != CUDA_SUCCESS) return {understood, {}};
  const CUresult checked = copy.check();
  if (checked != CUDA_SUCCESS) return {checked, {}};
  return {CUDA_SUCCESS, copy};
}

WorkOrError fill_work(const CUDA_MEMSET_NODE_PARAMS* parameters) {
  if (parameters == nullptr) return {CUDA_ERROR_INVALID_VALUE, {}};
  const CUDA_MEMSET_NODE_PARAMS& p = *parameters;
  if (p.elementSize != 1 && p.elementSize != 2 && p.elementSize != 4) return {CUDA_ERROR_INVALID_VALUE, {}};
  Fill fill;
  if (__builtin_mul_overflow(p.width, p.elementSize, &fill.box.width)) return {CUDA_ERROR_INVALID_VALUE, {}};
  fill.box.height = p.height;
  fill.destination = {.address = p.dst, .row_pitch = p.height > 1 ? p.pitch : 0, .is_device = true};
  fill.value = p.value;
  fill.element_size = p.elementSize;
  if (p.height > 1 && p.pitch < fill.box.width) return {CUDA_ERROR_INVALID_VALUE, {}};
  const CUresult checked = fill.check();
  if (checked != CUDA_SUCCESS) return {checked, {}};
  return {CUDA_SUCCESS, fill};
}

WorkOrError host_work(const CUDA_HOST_NODE_PARAMS* parameters) {
  if (parameters == nullptr || parameters->fn == nullptr) return {CUDA_ERROR_INVALID_VALUE, {}};
  return {CUDA_SUCCESS, HostCall{parameters->fn, parameters->userData}};
}

}  // namespace mpsshim::cpudriver
