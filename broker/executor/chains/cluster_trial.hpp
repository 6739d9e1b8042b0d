// SPDX-License-Identifier: Apache-2.0
// Whether the driver gives nodes of prepared graphs the clusters that chains need (cluster_setting.hpp). NVIDIA does not say so; it was measured with
// one driver (docs/experiments/2026-11-26-what-nodes-do-with-clusters.md). So it is tried at the executor's start, in every life, before anything
// runs.
#pragma once

#include "broker/driver/driver.hpp"

namespace mpsshim::broker {

struct ExecutorCore;

// The executor's own.
struct ClusterTrialKernels {
  CUfunction width = nullptr;  // writes the width of its cluster to the word of its only parameter
  CUfunction reset = nullptr;  // does nothing, and becomes the core's reset_function
};

// Sets has_chained_clusters and has_clustered_nodes; where one of them is false, a line in the log says why.
void try_clusters(ExecutorCore& core, const ClusterTrialKernels& kernels);

}  // namespace mpsshim::broker
