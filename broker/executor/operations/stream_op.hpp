// SPDX-License-Identifier: Apache-2.0
// One decoded and checked operation of a stream, as it waits in a StreamQueue. Ids are already objects, and memory is what CheckedMemory has made:
// nothing in here is looked up or checked again. The flags of event records and waits mean something in captures only, so they end here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "broker/driver/driver.hpp"
#include "broker/executor/base/event_pool.hpp"
#include "broker/executor/memory/checked_types.hpp"
#include "broker/executor/memory/checked_words.hpp"
#include "broker/executor/modules/module_references.hpp"
#include "broker/executor/modules/module_store.hpp"

namespace mpsshim::broker {

// What a launch reads through: its module's texture and surface references, and what they were bound to when its record came.
struct LaunchReferences {
  std::shared_ptr<ModuleReferences> references;
  std::shared_ptr<const ModuleReferences::Bindings> bindings;
};

struct LaunchOp {
  const LoadedFunction* function = nullptr;
  std::uint32_t grid[3] = {};
  std::uint32_t block[3] = {};
  std::uint32_t shared_bytes = 0;
  std::uint32_t parameter_bytes = 0;  // padded to 8; the attributes follow
  std::uint32_t attribute_count = 0;
  bool is_cooperative = false;
  bool is_multi_device = false;     // cooperative, and its kernel may ask for the grid of all devices, of which there is one
  // May not be in a chain whatever its attributes: it is cooperative, prints, its cluster is in its image, its module has references, or it has too
  // many parameters.
  bool is_single = false;
  ClusterShape cluster;             // its attributes say no more than this; not set: they do, or there are none
  const std::byte* data = nullptr;  // parameters and attributes: in the worker's batch until own(), then in `owned`
  std::unique_ptr<std::byte[]> owned;
  std::shared_ptr<const LaunchReferences> references;  // null: none, or nothing is set on them

  // While no function's cluster is changed (cluster_setting.hpp).
  [[nodiscard]] bool has_cluster_of_function() const { return cluster.is_set() && function->cluster.is_settled_as(cluster); }
  [[nodiscard]] bool may_be_in_chain() const { return !is_single && (attribute_count == 0 || has_cluster_of_function()); }
  [[nodiscard]] std::size_t data_bytes() const { return parameter_bytes + attribute_count * sizeof(CUlaunchAttribute); }
  void own() {
    if (owned || data_bytes() == 0) return;
    owned = std::make_unique<std::byte[]>(data_bytes());
    std::memcpy(owned.get(), data, data_bytes());
    data = owned.get();
  }
};

struct RecordOp {
  PointRef point;  // empty: only the fence, because the event could not be had
  bool has_fence = false;
  std::uint32_t fence_value = 0;

  [[nodiscard]] bool takes_time() const { return point != nullptr && point->has_timing; }
};

struct WaitOp {
  PointRef point;
};

struct FenceOp {
  std::uint32_t value = 0;
};

// Later work of the stream is held back until the client has run its host function of this number. The fence in front of it, which tells the
// client that it may, is queued with it.
struct HostOp {
  std::uint32_t fence_value = 0;
  std::uint32_t number = 0;
};

// Later work is held back until the word has such a value. The GPU is not given the wait, for it would hold up what stands behind it in its
// hardware connection, other clients' work included: the word is looked at, or fetched, again and again (value_waits.cpp).
struct ValueWaitOp {
  CheckedWord word;
  std::uint64_t value = 0;
  std::uint32_t condition = 0;
  std::uint32_t probe = 0;  // the last one sent for it
  bool was_probed = false;

  [[nodiscard]] bool is_met_by(std::uint64_t content) const;
};

// Later work is held back until the record is complete, and for good if it was abandoned and the work in front of it is needed.
struct SharedWaitOp {
  CheckedSharedRecord record;
  bool needs_work = false;

  [[nodiscard]] bool is_over() const;
};

// A write of one word, or, without one, a flush of remote writes.
struct ValueWriteOp {
  std::optional<CheckedWord> word;
  std::uint64_t value = 0;
  std::uint32_t flags = 0;
};

class SessionGraph;
struct GraphUpdate;

// A launch of an executable graph. Launches of one graph are issued in their session's order, whatever their streams: `turn` counts them.
struct GraphOp {
  std::shared_ptr<SessionGraph> graph;
  std::shared_ptr<std::vector<GraphUpdate>> updates;  // come into force with this launch; null: none
  std::size_t update_bytes = 0;
  std::uint64_t turn = 0;
  std::vector<PointRef> points;  // that it records
};

using StreamOp = std::variant<LaunchOp, CheckedCopy, CheckedBoxCopy, CheckedArrayCopy, CheckedFill, RecordOp, WaitOp, FenceOp, HostOp, ValueWaitOp,
                              SharedWaitOp, ValueWriteOp, GraphOp>;

// It launches a kernel that may call printf().
[[nodiscard]] bool may_print(const StreamOp& op);
// Of its kernels; 0: it launches none.
[[nodiscard]] std::uint32_t local_bytes_of(const StreamOp& op);

}  // namespace mpsshim::broker
