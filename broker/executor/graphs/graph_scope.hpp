// SPDX-License-Identifier: Apache-2.0
// What a client's description of a graph may name: memory, functions, events, green contexts and conditions of its own session. Made by the session
// for one reading, on its worker (Session::graph_scope).
#pragma once

#include <cstdint>

#include "broker/executor/context/objects.hpp"
#include "broker/executor/context/parts.hpp"
#include "broker/executor/graphs/conditioned_graph.hpp"
#include "broker/executor/memory/checked_memory.hpp"

namespace mpsshim::broker {

struct GraphScope {
  ExecutorParts& parts;
  const std::uint64_t session;  // its id
  const CheckedMemory memory;
  FunctionTable& functions;
  EventTable& events;
  GreenTable& greens;
  SessionConditions& conditions;
  const GreenContextRef share{};       // where kernel nodes run that name no green context; null: on the whole device
  const unsigned priority_rank = 0;    // its client's priority (PriorityRanks)
  bool uses_device_heap = false;  // set by what was read: the session is to be told (Session::note_heap_use)
};

}  // namespace mpsshim::broker
