// SPDX-License-Identifier: Apache-2.0
// What a session's ids stand for. Owned by the session's tables and touched by its worker alone.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "broker/executor/base/event_pool.hpp"
#include "broker/executor/green/green_context.hpp"
#include "broker/executor/modules/module_references.hpp"
#include "broker/executor/modules/module_store.hpp"
#include "proto/handle_table.hpp"
#include "proto/ids.hpp"

namespace mpsshim::broker {

struct SessionEvent {
  bool has_timing = true;
  PointRef last;                        // the last record in session order; empty: never recorded
  std::optional<std::int64_t> kept_ns;  // when it was recorded in an earlier executor, by the host's clock; it means nothing once there is `last`
};

struct SessionModule {
  ImageRef image;
  ImageUse use;                                     // while it lasts nobody else gets this copy, if the image has variables
  std::vector<proto::FunctionId> functions;         // found in it; they end with it
  std::shared_ptr<ModuleReferences> references{};   // null: the image has no texture or surface references
  std::vector<proto::ReferenceId> reference_ids{};  // found in it
  std::vector<std::uint64_t> globals{};             // variables found in it, by address: the session's own until it is unloaded
};

struct SessionFunction {
  const LoadedFunction* loaded = nullptr;          // lives as long as its module's image
  ImageUse use{};                                  // that image: graphs that name the function keep it
  std::shared_ptr<ModuleReferences> references{};  // its module's
  int carve_out = kDefaultCarveOut;                // as this session has set it
};

struct SessionReference {
  std::shared_ptr<ModuleReferences> references;
  std::size_t number = 0;
  bool is_surface = false;
};

using EventTable = proto::HandleTable<proto::HandleKind::event, SessionEvent>;
using ModuleTable = proto::HandleTable<proto::HandleKind::module, SessionModule>;
using FunctionTable = proto::HandleTable<proto::HandleKind::function, SessionFunction>;
using ReferenceTable = proto::HandleTable<proto::HandleKind::reference, SessionReference>;
using GreenTable = proto::HandleTable<proto::HandleKind::green_context, GreenContextRef>;

}  // namespace mpsshim::broker
