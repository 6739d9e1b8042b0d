// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/graphs/session_graph.hpp"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>

#include "broker/executor/chains/chain_graph.hpp"
#include "broker/executor/graphs/conditioned_graph.hpp"
#include "broker/executor/graphs/graph_scope.hpp"
#include "broker/executor/memory/checked_calls.hpp"
#include "broker/executor/memory/memory_map.hpp"
#include "broker/executor/window/quiet_window.hpp"

namespace mpsshim::broker {

namespace {
constexpr std::uint32_t kNodesBetweenLooks = 64;  // at the clock
}

std::optional<NodeFault> SessionGraph::read_some(GraphScope& scope, std::uint32_t node_count, std::uint32_t& failed_node, TurnBudget& budget) {
  note_place(scope.share);
  if (nodes_.empty()) {
    std::span<const std::byte> left = std::span<const std::byte>(description_).subspan(bytes_read_);
    const NodeFault fault = read_graph_nodes(scope, left, node_count, 0, read_, failed_node, budget);
    if (fault) {
      read_.clear();
      return fault;
    }
    bytes_read_ = description_.size() - left.size();
    if (!left.empty()) return std::nullopt;
    if (!find_conditions(read_)) {
      conditioned_ = nullptr;
      read_.clear();
      return NodeFault{nullptr, CUDA_ERROR_INVALID_VALUE};
    }
    nodes_ = std::move(read_);
    if (conditioned_ == nullptr) description_ = {};
  }
  for (; nodes_noted_ < nodes_.size(); ++nodes_noted_) {
    if (nodes_noted_ % kNodesBetweenLooks == kNodesBetweenLooks - 1 && budget.look()) return std::nullopt;
    const GraphNode& node = nodes_[nodes_noted_];
    working_nodes_ += count_working(node.work);
    note_kernel(node.work);
    if (const auto* kernel = std::get_if<KernelNode>(&node.work)) follows_share_ |= kernel->follows_share;
    note_ranges(nodes_noted_, node.work, node.is_enabled);
    if (std::holds_alternative<EventNode>(node.work)) event_nodes_.push_back(nodes_noted_);
  }
  return NodeFault{};
}

// False: their handles were made for different graphs.
bool SessionGraph::find_conditions(const std::vector<GraphNode>& nodes) {
  for (const GraphNode& node : nodes) {
    const auto* condition = std::get_if<ConditionNode>(&node.work);
    if (condition == nullptr) continue;
    if (conditioned_ == nullptr) conditioned_ = condition->graph;
    if (conditioned_ != condition->graph) return false;
    for (const std::vector<GraphNode>& body : condition->bodies->of) {
      if (!find_conditions(body)) return false;
    }
  }
  return true;
}

std::size_t SessionGraph::count_working(const NodeWork& work) {
  std::size_t count = std::holds_alternative<EmptyNode>(work) ? 0 : 1;
  if (const auto* condition = std::get_if<ConditionNode>(&work)) {
    for (const std::vector<GraphNode>& body : condition->bodies->of) {
      for (const GraphNode& node : body) count += count_working(node.work);
    }
  }
  return count;
}

void SessionGraph::note_kernel(const NodeWork& work) {
  if (const auto* condition = std::get_if<ConditionNode>(&work)) {
    for (const std::vector<GraphNode>& body : condition->bodies->of) {
      for (const GraphNode& node : body) note_kernel(node.work);
    }
  }
  const auto* kernel = std::get_if<KernelNode>(&work);
  if (kernel == nullptr) return;
  local_bytes_ = std::max(local_bytes_, kernel->launch.function->local_bytes);
  last_kernel_ = kernel->launch.function;
  may_print_ |= kernel->launch.function->prints;
  if (kernel->launch.function->variables) writers_.insert(kernel->launch.function);
}

// What nodes read counts as written: of variables few do either.
bool SessionGraph::may_write(const SessionVariables& variables) const {
  if (!variables.is_any()) return false;
  return !writers_.empty() || (last_kernel_ != nullptr && variables.may_write(*last_kernel_)) || std::ranges::any_of(ranges_, [&](const auto& node) {
    return std::ranges::any_of(node.second, [&](const NodeRange& range) { return variables.may_be_in(range.address, range.size_bytes); });
  });
}

void SessionGraph::note_writes(SessionVariables& variables) const {
  for (const LoadedFunction* writer : writers_) variables.note_launch(*writer);
  if (writers_.empty() && last_kernel_ != nullptr && variables.may_write(*last_kernel_)) variables.note_launch(*last_kernel_);
  for (const auto& [index, ranges] : ranges_) {
    for (const NodeRange& range : ranges) variables.note_write(range.address, range.size_bytes);
  }
}

void SessionGraph::note_ranges(std::uint32_t index, const NodeWork& work, bool is_enabled) {
  std::vector<NodeRange> ranges;
  if (is_enabled) add_ranges(work, ranges);
  losses_seen_.reset();
  if (ranges.empty()) {
    ranges_.erase(index);
  } else {
    ranges_[index] = std::move(ranges);
  }
}

bool SessionGraph::owns_its_memory(const MemoryMap& memory) {
  const std::uint64_t losses = memory.losses();  // before the questions: what is lost meanwhile is asked for again
  if (losses_seen_ == losses) return true;
  const bool is_own = std::ranges::all_of(ranges_, [&](const auto& node) { return owns_all(memory, node.second); });
  if (is_own) losses_seen_ = losses;
  return is_own;
}

CUresult SessionGraph::build(std::uint32_t& failed_node) {
  CUresult result = CUDA_SUCCESS;
  if (conditioned_ == nullptr) {
    result = parts_.driver->cuGraphCreate(&graph_, 0);
  } else if (conditioned_->begin_build(*this, description_, event_nodes_.empty(), graph_, result)) {
    for (std::size_t i = 0; i < nodes_.size(); ++i) nodes_[i].handle = conditioned_->built()[i];
    failed_node = static_cast<std::uint32_t>(nodes_.size());
    return CUDA_SUCCESS;
  }
  for (std::uint32_t i = 0; i < nodes_.size() && result == CUDA_SUCCESS; ++i) {
    failed_node = i;
    result = add_node(graph_, nodes_, nodes_[i]);
    if (conditioned_ != nullptr && nodes_[i].handle != nullptr) conditioned_->note_built(nodes_[i].handle);
  }
  if (result == CUDA_SUCCESS) failed_node = static_cast<std::uint32_t>(nodes_.size());
  if (result == CUDA_SUCCESS && conditioned_ != nullptr) conditioned_->end_build(description_);
  return result;
}

CUresult SessionGraph::add_node(CUgraph graph, const std::vector<GraphNode>& nodes, GraphNode& node) {
  std::vector<CUgraphNode> after;
  for (const std::uint32_t before : node.dependencies) after.push_back(nodes[before].handle);
  const Driver& driver = parts_.driver;
  const auto add = [&](const auto& work) {
    using Work = std::decay_t<decltype(work)>;
    if constexpr (std::is_same_v<Work, EmptyNode>) {
      return driver->cuGraphAddEmptyNode(&node.handle, graph, after.data(), after.size());
    } else if constexpr (std::is_same_v<Work, KernelNode>) {
      return add_kernel(graph, node, work, after);
    } else if constexpr (std::is_same_v<Work, CheckedBoxCopy> || std::is_same_v<Work, CheckedFill>) {
      return CheckedCalls(driver).add_node(node.handle, {graph, after}, work, parts_.context);
    } else if constexpr (std::is_same_v<Work, ConditionNode>) {
      return add_condition(graph, node, work, after);
    } else {
      return driver->cuGraphAddEventRecordNode(&node.handle, graph, after.data(), after.size(), work.point->handle);
    }
  };
  return std::visit(add, node.work);
}

CUresult SessionGraph::add_condition(CUgraph graph, GraphNode& node, const ConditionNode& condition, const std::vector<CUgraphNode>& after) {
  CUDA_CONDITIONAL_NODE_PARAMS params{};
  params.handle = condition.condition.handle;
  params.type = static_cast<CUgraphConditionalNodeType>(condition.condition.type);
  params.size = condition.condition.body_count;
  params.ctx = parts_.context;
  CUresult result = CheckedCalls(parts_.driver).add_node(node.handle, {graph, after}, params);
  for (std::size_t i = 0; i < condition.bodies->of.size() && result == CUDA_SUCCESS; ++i) {
    std::vector<GraphNode>& body = condition.bodies->of[i];
    for (std::size_t j = 0; j < body.size() && result == CUDA_SUCCESS; ++j) {
      result = add_node(params.phGraph_out[i], body, body[j]);
    }
  }
  return result;
}

CUresult SessionGraph::add_kernel(CUgraph graph, GraphNode& node, const KernelNode& kernel, const std::vector<CUgraphNode>& after) {
  const CUcontext context = kernel.green != nullptr ? kernel.green->context() : parts_.context;
  const CUDA_KERNEL_NODE_PARAMS params = kernel_node_params(kernel.launch, context, addresses_);
  return parts_.window.sharing([&] {
    const ScopedContext current = enter(parts_.driver, kernel.green.get());
    const CUresult result = parts_.driver->cuGraphAddKernelNode_v2(&node.handle, graph, after.data(), after.size(), &params);
    return result == CUDA_SUCCESS ? set_attributes(node.handle, kernel.launch) : result;
  });
}

CUresult SessionGraph::set_attributes(CUgraphNode node, const LaunchOp& launch) {
  if (launch.is_cooperative) {
    CUlaunchAttributeValue value{};
    value.cooperative = 1;
    const CUresult result = parts_.driver->cuGraphKernelNodeSetAttribute(node, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &value);
    if (result != CUDA_SUCCESS) return result;
  }
  for (std::uint32_t i = 0; i < launch.attribute_count; ++i) {
    CUlaunchAttribute attribute;
    std::memcpy(&attribute, launch.data + launch.parameter_bytes + i * sizeof attribute, sizeof attribute);
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_IGNORE) continue;
    const CUresult result = parts_.driver->cuGraphKernelNodeSetAttribute(node, attribute.id, &attribute.value);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

// The first launch uploads the graph if nobody has, which takes memory as well.
CUresult SessionGraph::instantiate(std::uint64_t flags) {
  const Driver& driver = parts_.driver;
  flags_ = flags;
  CUresult result = parts_.window.sharing([&] { return driver->cuGraphInstantiateWithFlags(&exec_, graph_, flags); });
  for (std::uint32_t i = 0; i < nodes_.size() && result == CUDA_SUCCESS; ++i) {
    if (!nodes_[i].is_enabled) result = driver->cuGraphNodeSetEnabled(exec_, nodes_[i].handle, 0);
  }
  if (working_nodes_ == 0) return result;
  std::unique_ptr<PooledStream> stream;  // of nobody: a new one is in the load log, and its memory comes back with the next executor
  if (result == CUDA_SUCCESS) result = parts_.streams.take(0, 0, stream);
  if (result != CUDA_SUCCESS) return result;
  result = driver->cuGraphUpload(exec_, stream->handle);
  if (result == CUDA_SUCCESS) result = driver->cuStreamSynchronize(stream->handle);
  parts_.streams.give_back(std::move(stream));
  return result;
}

NodeFault SessionGraph::update(GraphScope& scope, std::span<const std::byte> nodes) {
  proto::NodeReader reader(nodes);
  proto::GraphNodeHeader header;
  std::span<const std::byte> dependencies;
  std::span<const std::byte> payload;
  while (reader.next(header, dependencies, payload)) {
    if (header.index >= nodes_.size() || !dependencies.empty()) return {"it names a node that the graph does not have", {}};
    GraphUpdate update{header.index, header.is_enabled != 0, {}};
    if (const NodeFault fault = read_node_work(scope, header, payload, update.work)) return fault;
    if (update.work.index() != nodes_[header.index].work.index()) return {"it changes the kind of a node", {}};
    if (std::holds_alternative<ConditionNode>(update.work)) return {"it changes a conditional node", {}};
    note_kernel(update.work);
    note_ranges(update.index, update.work, update.is_enabled);
    if (auto* event = std::get_if<EventNode>(&update.work)) {
      std::get<EventNode>(nodes_[header.index].work).event = event->event;  // the driver's event stays
      continue;
    }
    if (!updates_) updates_ = std::make_shared<std::vector<GraphUpdate>>();
    updates_->push_back(std::move(update));
    update_bytes_ += sizeof(GraphUpdate) + payload.size();
  }
  return reader.at_end() ? NodeFault{} : NodeFault{"what it holds is no whole node", {}};
}

GraphOp SessionGraph::next_launch(EventTable& events) {
  GraphOp op;
  for (const std::uint32_t index : event_nodes_) {
    const auto& node = std::get<EventNode>(nodes_[index].work);
    const proto::Known<SessionEvent> event = events.find(node.event);
    if (!event) continue;
    event->last = std::make_shared<EventPoint>(parts_.events, node.point->handle, node.point->has_timing);
    event->last->lender = node.point;
    op.points.push_back(event->last);
  }
  op.updates = std::exchange(updates_, nullptr);
  op.update_bytes = std::exchange(update_bytes_, 0);
  op.turn = ++posted_;
  return op;
}

void SessionGraph::note_issued(const GraphOp& op) {
  issued_ = op.turn;
  for (const PointRef& point : op.points) point->is_issued = true;  // even if it failed: who waits for it must not wait for ever
}

CUresult SessionGraph::launch(const GraphOp& op, CUstream stream, IssueLock& issue_lock) {
  if (op.updates) {
    for (GraphUpdate& update : *op.updates) {
      if (unchanged_ == CUDA_SUCCESS) unchanged_ = apply(update);
    }
  }
  if (unchanged_ != CUDA_SUCCESS) return unchanged_;
  const std::lock_guard lock(issue_lock);
  return parts_.driver->cuGraphLaunch(exec_, stream);
}

// What it comes to hold it is made of, should it be made anew.
CUresult SessionGraph::apply(GraphUpdate& update) {
  GraphNode& node = nodes_[update.index];
  const Driver& driver = parts_.driver;
  CUresult result = CUDA_SUCCESS;
  if (node.is_enabled != update.is_enabled) {
    result = driver->cuGraphNodeSetEnabled(exec_, node.handle, update.is_enabled ? 1 : 0);
    if (result != CUDA_SUCCESS) return result;
    node.is_enabled = update.is_enabled;
  }
  // Its memory may have been given back by now. What it is to do comes again with the update that enables it.
  if (!update.is_enabled) return CUDA_SUCCESS;
  if (auto* kernel = std::get_if<KernelNode>(&update.work)) {
    if (std::find(earlier_images_.begin(), earlier_images_.end(), kernel->image) == earlier_images_.end()) earlier_images_.push_back(kernel->image);
    const auto* added = std::get_if<KernelNode>(&node.work);
    kernel->green = added != nullptr ? added->green : nullptr;
    kernel->follows_share = added != nullptr && added->follows_share;
    result = set_kernel(node, *kernel);
  } else if (const auto* copy = std::get_if<CheckedBoxCopy>(&update.work)) {
    result = CheckedCalls(driver).set_node(exec_, node.handle, *copy, parts_.context);
  } else if (const auto* fill = std::get_if<CheckedFill>(&update.work)) {
    result = CheckedCalls(driver).set_node(exec_, node.handle, *fill, parts_.context);
  }
  if (result == CUDA_SUCCESS) node.hold(std::move(update.work));
  return result;
}

CUresult SessionGraph::set_kernel(const GraphNode& node, const KernelNode& kernel) {
  GreenContext* const green = kernel.green.get();
  const CUDA_KERNEL_NODE_PARAMS params = kernel_node_params(kernel.launch, green != nullptr ? green->context() : parts_.context, addresses_);
  const ScopedContext current = enter(parts_.driver, green);
  return parts_.driver->cuGraphExecKernelNodeSetParams_v2(exec_, node.handle, &params);
}

void SessionGraph::destroy_exec() {
  if (exec_ != nullptr) parts_.driver->cuGraphExecDestroy(std::exchange(exec_, nullptr));
}

void SessionGraph::destroy_launchable() {
  destroy_exec();
  if (conditioned_ != nullptr) {
    conditioned_->forget(*this);
    conditioned_ = nullptr;  // with which the driver's graph goes, if nobody else has it
    for (GraphNode& node : nodes_) node.work = EmptyNode{};
    graph_ = nullptr;
  }
}

void SessionGraph::destroy_unheld() {
  if (working_nodes_ == 0) return destroy();
  if (conditioned_ == nullptr && graph_ != nullptr) parts_.driver->cuGraphDestroy(std::exchange(graph_, nullptr));
}

void SessionGraph::destroy() {
  destroy_launchable();
  if (graph_ != nullptr) parts_.driver->cuGraphDestroy(std::exchange(graph_, nullptr));
}

}  // namespace mpsshim::broker
