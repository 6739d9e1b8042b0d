// SPDX-License-Identifier: Apache-2.0
// What a graph's node does: made once from the API's parameters or from a captured record, checked then, and never changed. Graphs, their
// clones and executable graphs share it; new parameters are another NodeWork. It answers the Get functions, and encode() says it to the
// executor (proto/graph_nodes.hpp).
//
// Objects are named by their ids: one that has been destroyed since is found missing by whoever looks it up again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <variant>
#include <vector>

#include "gen/cuda_api.hpp"
#include "gen/records.hpp"
#include "interposer/forward/functions.hpp"
#include "interposer/forward/memory/copy.hpp"
#include "proto/graph_nodes.hpp"

namespace mpsshim::interposer::forward {

struct EmptyWork {};

struct KernelWork {
  CUfunction function = nullptr;  // as it was given: one of the two
  CUkernel kernel = nullptr;
  CUcontext context = nullptr;
  proto::GreenContextId green{};      // whose multiprocessors it runs on: that of the stream, or what was current when the node was made
  proto::LaunchRecord launch{};       // but for its attributes, which follow here
  std::vector<std::byte> parameters;  // padded to 8
  std::vector<void*> addresses;       // of each parameter in `parameters`: what the Get functions answer
  std::vector<CUlaunchAttribute> attributes;
};

struct CopyWork {
  CUDA_MEMCPY3D params{};
  CUcontext context = nullptr;
  proto::GraphCopy copy{};
  [[nodiscard]] bool is_linear() const { return copy.height == 1 && copy.depth == 1; }
  // Memory that the executor cannot see: copies from and to it are made here (host_steps.hpp).
  [[nodiscard]] bool is_from_pageable() const { return copy.source_space == Space::pageable; }
  [[nodiscard]] bool is_to_pageable() const { return copy.destination_space == Space::pageable; }
};

struct FillWork {
  CUDA_MEMSET_NODE_PARAMS params{};
  CUcontext context = nullptr;
};

struct HostWork {
  CUDA_HOST_NODE_PARAMS params{};
};

struct ChildWork {};  // the graph is the node's: Node::child

struct EventRecordWork {
  CUevent event = nullptr;
};
struct EventWaitWork {
  CUevent event = nullptr;
};

// Done by the stream between parts of the graph, because a wait for a value is not given to the GPU.
struct MemoryOperationsWork {
  CUcontext context = nullptr;
  std::vector<CUstreamBatchMemOpParams> operations;
};

// Of memory nodes: empty to the executor (graph_memory.hpp).
class GraphBlock;
struct AllocationWork {
  CUDA_MEM_ALLOC_NODE_PARAMS params{};
  std::vector<CUmemAccessDesc> access;
  std::shared_ptr<GraphBlock> block;
};
struct FreeWork {
  std::shared_ptr<GraphBlock> block;
};

// A conditional node (conditional_nodes.hpp). In a graph its bodies are the node's (Node::bodies); what flatten() gives has them as they were then.
struct FlatNode;
using FlatBody = std::vector<FlatNode>;
struct ConditionWork {
  CUgraphConditionalHandle handle = 0;
  std::uint32_t type = 0;
  std::shared_ptr<const std::vector<FlatBody>> bodies;
};

using NodeWork = std::variant<EmptyWork, KernelWork, CopyWork, FillWork, ChildWork, EventRecordWork, EventWaitWork, HostWork, MemoryOperationsWork,
                              AllocationWork, FreeWork, ConditionWork>;
using WorkRef = std::shared_ptr<const NodeWork>;

[[nodiscard]] CUgraphNodeType type_of(const NodeWork& work);

// From the API's parameters. CUDA_ERROR_INVALID_VALUE where the driver would refuse them.
[[nodiscard]] CUresult make_kernel_work(const CUDA_KERNEL_NODE_PARAMS_v3& params, WorkRef& work);
[[nodiscard]] CUresult make_copy_work(const CUDA_MEMCPY3D& params, CUcontext context, WorkRef& work);
[[nodiscard]] CUresult make_fill_work(const CUDA_MEMSET_NODE_PARAMS& params, CUcontext context, WorkRef& work);
[[nodiscard]] CUresult make_host_work(const CUDA_HOST_NODE_PARAMS& params, WorkRef& work);
[[nodiscard]] CUresult make_event_work(CUevent event, bool is_wait, WorkRef& work);
[[nodiscard]] CUresult make_memory_operations_work(const CUDA_BATCH_MEM_OP_NODE_PARAMS& params, WorkRef& work);
// Any of them, by their type; `child` takes the graph of a child node.
[[nodiscard]] CUresult make_work(const CUgraphNodeParams& params, WorkRef& work, CUgraph& child);

// From records that a stream would have got.
[[nodiscard]] CUresult make_kernel_work(const Stream& stream, const proto::LaunchRecord& record, std::span<const std::byte> trailing, WorkRef& work);
[[nodiscard]] WorkRef make_fill_work(const proto::FillRecord& record);
[[nodiscard]] WorkRef make_memory_operations_work(std::span<const CUstreamBatchMemOpParams> checked);
[[nodiscard]] CUresult make_linear_copy_work(const CopySide& destination, const CopySide& source, std::size_t bytes, WorkRef& work);

// A copy with this attribute set. Null: kernel nodes do not have it.
[[nodiscard]] WorkRef with_attribute(const KernelWork& kernel, const CUlaunchAttribute& attribute);
[[nodiscard]] WorkRef with_attributes_of(const KernelWork& kernel, const KernelWork& from);
[[nodiscard]] CUlaunchAttributeValue attribute_of(const KernelWork& kernel, CUlaunchAttributeID id);

// Whether an executable graph's node that does `before` may come to do `after` (cuGraphExec*NodeSetParams).
[[nodiscard]] CUgraphExecUpdateResult can_become(const NodeWork& before, const NodeWork& after);

[[nodiscard]] bool are_same(const NodeWork& one, const NodeWork& other);

// Appends a node to a description. A conditional node is one of flatten()'s.
void encode(const NodeWork& work, std::uint32_t index, bool is_enabled, std::span<const std::uint32_t> dependencies, std::vector<std::byte>& bytes);

}  // namespace mpsshim::interposer::forward
