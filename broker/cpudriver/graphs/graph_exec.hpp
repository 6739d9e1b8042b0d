// SPDX-License-Identifier: Apache-2.0
//
// An instantiated graph. A launch takes the steps as they are at that moment; updates made afterwards make a new list
// and leave launches that are queued alone. One exec never runs beside itself: each launch waits for the one before,
// whichever stream it went to. The nodes of a launch run one after the other; parallel branches are CUDA's permission,
// not its promise.
#pragma once

#include <cuda.h>

#include <memory>
#include <vector>

#include "broker/cpudriver/graphs/graph.hpp"
#include "broker/cpudriver/streams/scheduler.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::cpudriver {

class GraphExec {
 public:
  using Steps = std::vector<Graph::Step>;

  // `conditions`: those of the graph, which begin each launch with their defaults.
  explicit GraphExec(Steps steps, std::vector<std::shared_ptr<Condition>> conditions = {});

  // The node as it was named when the graph was instantiated. CUDA_ERROR_INVALID_VALUE: not in it, or of another type.
  CUresult set_work(CUgraphNode node, NodeWork work);
  CUresult set_enabled(CUgraphNode node, bool is_enabled);
  CUresult enabled(CUgraphNode node, bool& is_enabled) const;

  void launch(const StreamPtr& stream);

 private:
  // The step of the node in a list that no launch shares; null if there is none. Under the mutex.
  Graph::Step* writable(CUgraphNode node) REQUIRES(mutex_);

  const std::vector<std::shared_ptr<Condition>> conditions_;
  mutable Mutex mutex_;
  std::shared_ptr<Steps> steps_ GUARDED_BY(mutex_);  // shared with queued launches: replaced, never changed, while they hold it
  Position last_launch_ GUARDED_BY(mutex_);
};

}  // namespace mpsshim::cpudriver
