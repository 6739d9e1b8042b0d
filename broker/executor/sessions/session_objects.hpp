// SPDX-License-Identifier: Apache-2.0
// What one client has in the executor: its memory, its arrays, and what its ids stand for. A part of Session, which says when it is made and how it
// ends; what belongs to the device has been given back before this is destroyed.
// Threads: memory() and the ids are safe anywhere, the rest is the owning worker's alone, but for helpers where it says so.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "broker/control_messages.hpp"
#include "broker/executor/context/objects.hpp"
#include "broker/executor/context/parts.hpp"
#include "broker/executor/context/session_times.hpp"
#include "broker/executor/graphs/conditioned_graph.hpp"
#include "broker/executor/graphs/graph_scope.hpp"
#include "broker/executor/graphs/graph_set.hpp"
#include "broker/executor/memory/checked_memory.hpp"
#include "broker/executor/memory/memory_map.hpp"
#include "broker/executor/memory/session_arrays.hpp"
#include "broker/executor/modules/link_state.hpp"

namespace mpsshim::broker {

class SessionObjects {
 public:
  SessionObjects(const SessionObjects&) = delete;

  [[nodiscard]] std::uint64_t id() const { return id_; }
  [[nodiscard]] ExecutorParts& parts() const { return parts_; }
  [[nodiscard]] MemoryMap& memory() { return memory_; }

  // --- the owning worker only, from here on ---
  [[nodiscard]] EventTable& events() { return events_; }
  [[nodiscard]] SessionTimes& times() { return times_; }
  [[nodiscard]] ModuleTable& modules() { return modules_; }
  [[nodiscard]] FunctionTable& functions() { return functions_; }
  [[nodiscard]] ReferenceTable& references() { return references_; }
  [[nodiscard]] LinkTable& links() { return links_; }
  [[nodiscard]] SessionArrays& arrays() { return arrays_; }
  [[nodiscard]] CheckedMemory checked() { return {memory_, arrays_}; }  // helpers, too, where it says so
  [[nodiscard]] GraphSet& graphs() { return graphs_; }
  [[nodiscard]] SessionConditions& conditions() { return conditions_; }
  [[nodiscard]] GreenTable& greens() { return greens_; }
  // What a description of a graph may name.
  [[nodiscard]] GraphScope graph_scope() { return {parts_, id_, checked(), functions_, events_, greens_, conditions_, share_.green, priority_rank_}; }
  // The green context that it has in place of the whole device; null: it has that.
  [[nodiscard]] const GreenContextRef& share() const { return share_.green; }
  // Of this session, in the driver; those included that are about to be made, or to end.
  [[nodiscard]] const GreenContextCount& green_count() const { return green_count_; }

 protected:
  SessionObjects(ExecutorParts& parts, const message::SessionOpen& open)
      : parts_(parts),
        id_(open.session),
        priority_rank_(open.client_priority),
        memory_(parts.driver, parts.control, parts.device, id_, open.device_lease, open.pinned_lease, parts.chunks, parts.bulk_lane,
                open.device_limit_bytes),
        arrays_(parts.driver),
        times_(parts.driver),
        graphs_(parts) {}
  ~SessionObjects() = default;

  ExecutorParts& parts_;
  const std::uint64_t id_;
  unsigned priority_rank_;  // its client's priority
  MemoryMap memory_;
  SessionArrays arrays_;  // some of external memory
  EventTable events_;
  SessionTimes times_;
  ModuleTable modules_;
  FunctionTable functions_;
  ReferenceTable references_;
  LinkTable links_;
  GraphSet graphs_;
  SessionConditions conditions_;
  GreenTable greens_;
  SessionShare share_;
  SessionShare left_share_;  // that it had before, where it may have that again
  const GreenContextCount green_count_ = std::make_shared<std::atomic<unsigned>>(0);
};

}  // namespace mpsshim::broker
