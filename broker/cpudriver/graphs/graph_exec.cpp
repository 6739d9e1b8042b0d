// SPDX-License-Identifier: Apache-2.0
#include "broker/cpudriver/graphs/graph_exec.hpp"

#include <algorithm>
#include <optional>

namespace mpsshim::cpudriver {
namespace {

// One launch under way. Memory operations may have to wait, so it can stop at any step and go on there.
class GraphRun {
 public:
  // `stamps`: of the steps that record events, in their order.
  GraphRun(std::shared_ptr<const GraphExec::Steps> steps, std::vector<Event::Stamp> stamps, std::vector<std::shared_ptr<Condition>> conditions)
      : steps_(std::move(steps)), stamps_(std::move(stamps)), conditions_(std::move(conditions)) {}

  CUresult run() {
    if (!has_begun_) {
      for (const auto& condition : conditions_) condition->begin_launch();
    }
    has_begun_ = true;
    for (; next_ < steps_->size(); ++next_) {
      const Graph::Step& step = (*steps_)[next_];
      if (!step.is_enabled) continue;
      const CUresult result = perform_step(step);
      if (result != CUDA_SUCCESS) return result;
      if (Scheduler::get().failure() != CUDA_SUCCESS) return CUDA_SUCCESS;  // cancelled; the guilty has reported it
    }
    return CUDA_SUCCESS;
  }

 private:
  CUresult perform_step(const Graph::Step& step) {
    if (const auto* conditional = std::get_if<Conditional>(step.work.get())) return perform(*conditional, step.bodies);
    return std::visit([this](const auto& work) { return perform(work); }, *step.work);
  }

  CUresult perform(const Conditional& conditional, const std::vector<GraphExec::Steps>& bodies) {
    std::uint32_t value = conditional.condition->value();
    switch (conditional.type) {
      case CU_GRAPH_COND_TYPE_IF: {
        const std::size_t chosen = value != 0 ? 0 : 1;
        return chosen < bodies.size() ? perform_body(bodies[chosen]) : CUDA_SUCCESS;
      }
      case CU_GRAPH_COND_TYPE_WHILE:
        for (; value != 0; value = conditional.condition->value()) {
          if (const CUresult result = perform_body(bodies[0]); result != CUDA_SUCCESS) return result;
          if (Scheduler::get().failure() != CUDA_SUCCESS) return CUDA_SUCCESS;
        }
        return CUDA_SUCCESS;
      default: return value < bodies.size() ? perform_body(bodies[value]) : CUDA_SUCCESS;  // a switch
    }
  }
  // Nothing in a body waits for anybody: may_be_in_body() in api/graph_exec.cpp.
  CUresult perform_body(const GraphExec::Steps& body) {
    for (const Graph::Step& step : body) {
      if (const CUresult result = perform_step(step); result != CUDA_SUCCESS) return result;
    }
    return CUDA_SUCCESS;
  }

  CUresult perform(const Conditional&) { return CUDA_ERROR_UNKNOWN; }  // comes with its bodies
  CUresult perform(const NoWork&) { return CUDA_SUCCESS; }
  CUresult perform(const KernelLaunch& launch) { return launch.run(); }
  CUresult perform(const Copy& copy) { return copy.run(); }
  CUresult perform(const Fill& fill) { return fill.run(); }
  CUresult perform(const HostCall& call) {
    call.function(call.data);
    return CUDA_SUCCESS;
  }
  CUresult perform(const MemoryOperations& operations) {
    if (!memory_operations_) memory_operations_ = operations;
    const CUresult result = memory_operations_->run();
    if (result != CUDA_ERROR_NOT_READY) memory_operations_.reset();
    return result;
  }

  CUresult perform(const EventMark&) {
    Event::set(stamps_[next_stamp_++]);
    return CUDA_SUCCESS;
  }

  const std::shared_ptr<const GraphExec::Steps> steps_;
  const std::vector<Event::Stamp> stamps_;
  const std::vector<std::shared_ptr<Condition>> conditions_;
  bool has_begun_ = false;
  std::size_t next_ = 0;
  std::size_t next_stamp_ = 0;
  std::optional<MemoryOperations> memory_operations_;  // of the step that is waiting
};

template <class List>
auto* find_step(List& steps, CUgraphNode node) {
  const auto* const wanted = reinterpret_cast<const GraphNode*>(node);
  const auto found = std::find_if(steps.begin(), steps.end(), [wanted](const auto& step) { return step.node == wanted; });
  return found == steps.end() ? nullptr : &*found;
}

}  // namespace

GraphExec::GraphExec(Steps steps, std::vector<std::shared_ptr<Condition>> conditions)
    : conditions_(std::move(conditions)), steps_(std::make_shared<Steps>(std::move(steps))) {}

Graph::Step* GraphExec::writable(CUgraphNode node) {
  // A launch can let go of the list meanwhile, never take hold of it: that needs the mutex.
  if (steps_.use_count() > 1) steps_ = std::make_shared<Steps>(*steps_);
  return find_step(*steps_, node);
}

CUresult GraphExec::set_work(CUgraphNode node, NodeWork work) {
  auto replacement = std::make_shared<const NodeWork>(std::move(work));
  const std::lock_guard lock(mutex_);
  Graph::Step* const step = writable(node);
  if (step == nullptr || step->work->index() != replacement->index()) return CUDA_ERROR_INVALID_VALUE;
  step->work = std::move(replacement);
  return CUDA_SUCCESS;
}

CUresult GraphExec::set_enabled(CUgraphNode node, bool is_enabled) {
  const std::lock_guard lock(mutex_);
  Graph::Step* const step = writable(node);
  if (step == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUgraphNodeType type = type_of(*step->work);
  const bool can_be_disabled =
      type == CU_GRAPH_NODE_TYPE_KERNEL || type == CU_GRAPH_NODE_TYPE_MEMSET || type == CU_GRAPH_NODE_TYPE_MEMCPY;
  if (!can_be_disabled) return CUDA_ERROR_INVALID_VALUE;
  step->is_enabled = is_enabled;
  return CUDA_SUCCESS;
}

CUresult GraphExec::enabled(CUgraphNode node, bool& is_enabled) const {
  const std::lock_guard lock(mutex_);
  const auto* const step = find_step(*steps_, node);
  if (step == nullptr) return CUDA_ERROR_INVALID_VALUE;
  is_enabled = step->is_enabled;
  return CUDA_SUCCESS;
}

void GraphExec::launch(const StreamPtr& stream) {
  Operation operation;
  operation.is_launch = true;
  const std::lock_guard lock(mutex_);
  std::vector<Event::Stamp> stamps;
  for (const Graph::Step& step : *steps_) {
    if (std::holds_alternative<EventMark>(*step.work)) stamps.push_back(Event::new_stamp());
  }
  operation.run = [run = std::make_shared<GraphRun>(steps_, stamps, conditions_)] { return run->run(); };
  operation.after.push_back(last_launch_);
  last_launch_ = Scheduler::get().submit(stream, std::move(operation));
  auto stamp = stamps.begin();
  for (const Graph::Step& step : *steps_) {
    if (const auto* mark = std::get_if<EventMark>(step.work.get())) mark->event->record(last_launch_, *stamp++);
  }
}

}  // namespace mpsshim::cpudriver
