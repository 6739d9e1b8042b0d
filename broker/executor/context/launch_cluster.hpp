// SPDX-License-Identifier: Apache-2.0
// What a launch that has been read, or a graph's kernel node, means for the cluster of its function (cluster_setting.hpp). On the session's worker,
// outside its gate.
#pragma once

#include <cstdint>

#include "broker/executor/context/parts.hpp"
#include "broker/executor/modules/module_store.hpp"
#include "broker/executor/window/quiet_window.hpp"

namespace mpsshim::broker {

// Before the launch is queued. `shape`: as cluster_for_chain() says; not set: any launch but one that a chain takes with a cluster. An error, which
// is noted: it cannot be launched as it is.
[[nodiscard]] inline CUresult settle_cluster(const ExecutorParts& parts, std::uint64_t session, const LoadedFunction& function, ClusterShape shape) {
  if (function.cluster.suits(shape)) [[likely]]
    return CUDA_SUCCESS;
  if (!shape.is_set() && function.cluster.close()) return CUDA_SUCCESS;
  const CUresult result = parts.window.exclusively([&] { return function.cluster.change(parts.driver, function.handle, shape); });
  return parts.faults.check(result, session, "cuFuncSetAttribute");
}

}  // namespace mpsshim::broker
