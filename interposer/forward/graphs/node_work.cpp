// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/graphs/node_work.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "interposer/forward/events.hpp"
#include "interposer/forward/graphs/conditional_nodes.hpp"
#include "interposer/forward/green_contexts.hpp"
#include "interposer/forward/launch.hpp"
#include "interposer/forward/memory/copy.hpp"
#include "interposer/forward/stream_memory_ops.hpp"

namespace mpsshim::interposer::forward {

namespace {

template <typename Work>
WorkRef share(Work work) {
  return std::make_shared<const NodeWork>(std::move(work));
}

// The copy is in its place: from now on its parameters have their addresses.
WorkRef share_kernel(KernelWork kernel, const Function& function) {
  auto work = std::make_shared<NodeWork>(std::move(kernel));
  auto& placed = std::get<KernelWork>(*work);
  placed.addresses.clear();
  for (const Parameter& parameter : function.layout) placed.addresses.push_back(placed.parameters.data() + parameter.offset);
  return work;
}

// Only these mean something in a node; others belong to a launch in a stream.
bool is_node_attribute(CUlaunchAttributeID id) {
  switch (static_cast<int>(id)) {
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
    case 11:  // CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION, since 12.8
    case 14:  // CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, since 12.5
      return true;
    default: return false;
  }
}

void set_attribute(KernelWork& kernel, const CUlaunchAttribute& attribute) {
  if (attribute.id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) {
    kernel.launch.flags.set(proto::LaunchFlag::cooperative, attribute.value.cooperative != 0);
    return;
  }
  const auto is_it = [&](const CUlaunchAttribute& known) { return known.id == attribute.id; };
  const auto found = std::find_if(kernel.attributes.begin(), kernel.attributes.end(), is_it);
  if (found != kernel.attributes.end())
    *found = attribute;
  else
    kernel.attributes.push_back(attribute);
}

}  // namespace

CUgraphNodeType type_of(const NodeWork& work) {
  struct Types {
    CUgraphNodeType operator()(const EmptyWork&) const { return CU_GRAPH_NODE_TYPE_EMPTY; }
    CUgraphNodeType operator()(const KernelWork&) const { return CU_GRAPH_NODE_TYPE_KERNEL; }
    CUgraphNodeType operator()(const CopyWork&) const { return CU_GRAPH_NODE_TYPE_MEMCPY; }
    CUgraphNodeType operator()(const FillWork&) const { return CU_GRAPH_NODE_TYPE_MEMSET; }
    CUgraphNodeType operator()(const ChildWork&) const { return CU_GRAPH_NODE_TYPE_GRAPH; }
    CUgraphNodeType operator()(const EventRecordWork&) const { return CU_GRAPH_NODE_TYPE_EVENT_RECORD; }
    CUgraphNodeType operator()(const EventWaitWork&) const { return CU_GRAPH_NODE_TYPE_WAIT_EVENT; }
    CUgraphNodeType operator()(const HostWork&) const { return CU_GRAPH_NODE_TYPE_HOST; }
    CUgraphNodeType operator()(const MemoryOperationsWork&) const { return CU_GRAPH_NODE_TYPE_BATCH_MEM_OP; }
    CUgraphNodeType operator()(const AllocationWork&) const { return CU_GRAPH_NODE_TYPE_MEM_ALLOC; }
    CUgraphNodeType operator()(const FreeWork&) const { return CU_GRAPH_NODE_TYPE_MEM_FREE; }
    CUgraphNodeType operator()(const ConditionWork&) const { return CU_GRAPH_NODE_TYPE_CONDITIONAL; }
  };
  return std::visit(Types{}, work);
}

CUresult make_kernel_work(const CUDA_KERNEL_NODE_PARAMS_v3& params, WorkRef& work) {
  KernelWork kernel;
  kernel.function = params.func;
  kernel.kernel = params.func == nullptr ? params.kern : nullptr;
  kernel.context = params.ctx;
  if (const GreenObject* green = GreenContexts::instance().current_place()) kernel.green = green->id;
  const CUfunction handle = params.func != nullptr ? params.func : reinterpret_cast<CUfunction>(params.kern);
  const Function* function = handle != nullptr ? Functions::instance().resolve(handle) : nullptr;
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const LaunchShape shape{params.gridDimX,  params.gridDimY,  params.gridDimZ,      params.blockDimX,
                          params.blockDimY, params.blockDimZ, params.sharedMemBytes};
  const CUresult refused = check_launch(shape, launch_limits(), function->max_threads_per_block.load(std::memory_order_relaxed),
                                        function->max_dynamic_shared_bytes.load(std::memory_order_relaxed));
  if (refused != CUDA_SUCCESS) return CUDA_ERROR_INVALID_VALUE;
  Arguments arguments;
  if (const CUresult error = find_arguments(params.kernelParams, params.extra, function->parameter_bytes, arguments); error != CUDA_SUCCESS) {
    return error;
  }
  kernel.launch = launch_record(*function, shape, 0, {});
  kernel.parameters.resize((function->parameter_bytes + 7u) / 8 * 8);
  copy_arguments(arguments, function->layout, function->parameter_bytes, kernel.parameters.data());
  work = share_kernel(std::move(kernel), *function);
  return CUDA_SUCCESS;
}

CUresult make_kernel_work(const Stream& stream, const proto::LaunchRecord& record, std::span<const std::byte> trailing, WorkRef& work) {
  KernelWork kernel;
  kernel.green = stream.green;
  kernel.function = to_handle<CUfunction>(record.function);
  const Function* function = Functions::instance().resolve(kernel.function);
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  kernel.launch = record;
  kernel.launch.attribute_count = 0;
  const std::size_t parameter_room = (record.parameter_bytes + 7u) / 8 * 8;
  kernel.parameters.assign(trailing.begin(), trailing.begin() + static_cast<std::ptrdiff_t>(parameter_room));
  for (std::uint32_t i = 0; i < record.attribute_count; ++i) {
    CUlaunchAttribute attribute;
    std::memcpy(&attribute, trailing.data() + parameter_room + i * sizeof attribute, sizeof attribute);
    // A launch that may begin early begins behind what is before it: a whole dependency, where the driver has a programmatic one.
    if (is_node_attribute(attribute.id)) set_attribute(kernel, attribute);
  }
  work = share_kernel(std::move(kernel), *function);
  return CUDA_SUCCESS;
}

CUresult make_fill_work(const CUDA_MEMSET_NODE_PARAMS& params, CUcontext context, WorkRef& work) {
  if (params.elementSize != 1 && params.elementSize != 2 && params.elementSize != 4) return CUDA_ERROR_INVALID_VALUE;
  if (params.width == 0 || params.height == 0 || params.dst % params.elementSize != 0) return CUDA_ERROR_INVALID_VALUE;
  if (params.height > 1 && params.pitch % params.elementSize != 0) return CUDA_ERROR_INVALID_VALUE;
  std::uint64_t row = 0, bytes = 0;
  if (__builtin_mul_overflow(params.width, std::size_t{params.elementSize}, &row)) return CUDA_ERROR_INVALID_VALUE;
  if (!proto::box_extent(row, params.height, 1, params.pitch, 0, bytes)) return CUDA_ERROR_INVALID_VALUE;
  Space space{};
  if (const CUresult error = classify_fixed(params.dst, bytes, Named::device, space); error != CUDA_SUCCESS) return error;
  work = share(FillWork{params, context});
  return CUDA_SUCCESS;
}

WorkRef make_fill_work(const proto::FillRecord& record) {
  CUDA_MEMSET_NODE_PARAMS params{};
  params.dst = record.destination;
  params.pitch = record.pitch_bytes;
  params.value = record.value;
  params.elementSize = record.element_bytes;
  params.width = record.width;
  params.height = record.height;
  return share(FillWork{params, nullptr});
}

CUresult make_host_work(const CUDA_HOST_NODE_PARAMS& params, WorkRef& work) {
  if (params.fn == nullptr) return CUDA_ERROR_INVALID_VALUE;
  work = share(HostWork{params});
  return CUDA_SUCCESS;
}

CUresult make_event_work(CUevent event, bool is_wait, WorkRef& work) {
  if (event == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Event* found = Events::instance().resolve(event);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (found->shared) return CUDA_ERROR_NOT_SUPPORTED;  // it has no place among a graph's driver events
  work = is_wait ? share(EventWaitWork{event}) : share(EventRecordWork{event});
  return CUDA_SUCCESS;
}

CUresult make_memory_operations_work(const CUDA_BATCH_MEM_OP_NODE_PARAMS& params, WorkRef& work) {
  if (params.flags != 0 || params.count == 0 || params.count > kMostMemoryOperations || params.paramArray == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::span<const CUstreamBatchMemOpParams> operations(params.paramArray, params.count);
  if (const CUresult error = check_memory_operations(operations); error != CUDA_SUCCESS) return error;
  work = share(MemoryOperationsWork{params.ctx, {operations.begin(), operations.end()}});
  return CUDA_SUCCESS;
}

WorkRef make_memory_operations_work(std::span<const CUstreamBatchMemOpParams> checked) {
  return share(MemoryOperationsWork{owning_context(), {checked.begin(), checked.end()}});
}

CUresult make_work(const CUgraphNodeParams& params, WorkRef& work, CUgraph& child) {
  switch (params.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: return make_kernel_work(params.kernel, work);
    case CU_GRAPH_NODE_TYPE_MEMCPY: return make_copy_work(params.memcpy.copyParams, params.memcpy.copyCtx, work);
    case CU_GRAPH_NODE_TYPE_MEMSET: {
      const CUDA_MEMSET_NODE_PARAMS_v2& fill = params.memset;
      return make_fill_work({fill.dst, fill.pitch, fill.value, fill.elementSize, fill.width, fill.height}, fill.ctx, work);
    }
    case CU_GRAPH_NODE_TYPE_GRAPH:
      child = params.graph.graph;
      work = share(ChildWork{});
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_EMPTY: work = share(EmptyWork{}); return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT: return make_event_work(params.eventWait.event, true, work);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD: return make_event_work(params.eventRecord.event, false, work);
    case CU_GRAPH_NODE_TYPE_HOST: return make_host_work({params.host.fn, params.host.userData}, work);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
      return make_memory_operations_work({params.memOp.ctx, params.memOp.count, params.memOp.paramArray, params.memOp.flags}, work);
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL:
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT:
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
    case CU_GRAPH_NODE_TYPE_CONDITIONAL: return CUDA_ERROR_NOT_SUPPORTED;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

WorkRef with_attribute(const KernelWork& kernel, const CUlaunchAttribute& attribute) {
  const Function* function = Functions::instance().resolve(to_handle<CUfunction>(kernel.launch.function));
  if (!is_node_attribute(attribute.id) || function == nullptr) return nullptr;
  KernelWork changed = kernel;
  set_attribute(changed, attribute);
  return share_kernel(std::move(changed), *function);
}

WorkRef with_attributes_of(const KernelWork& kernel, const KernelWork& from) {
  const Function* function = Functions::instance().resolve(to_handle<CUfunction>(kernel.launch.function));
  if (function == nullptr) return nullptr;
  KernelWork changed = kernel;
  changed.attributes = from.attributes;
  changed.launch.flags = from.launch.flags;
  changed.green = from.green;
  return share_kernel(std::move(changed), *function);
}

CUlaunchAttributeValue attribute_of(const KernelWork& kernel, CUlaunchAttributeID id) {
  CUlaunchAttributeValue value{};
  if (id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) value.cooperative = kernel.launch.flags.has(proto::LaunchFlag::cooperative) ? 1 : 0;
  for (const CUlaunchAttribute& attribute : kernel.attributes) {
    if (attribute.id == id) value = attribute.value;
  }
  return value;
}

}  // namespace mpsshim::interposer::forward
