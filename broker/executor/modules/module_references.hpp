// SPDX-License-Identifier: Apache-2.0
// Texture and surface references of a module (CUDA Driver API manual, "Texture Reference Management [DEPRECATED]"). The driver's objects belong
// to its module and hold one binding at a time; a launch uses what is bound when it is given to the driver. So each launch of such a module
// carries what was set when its record came, and whoever issues it sets that on the driver's objects first, if it differs from the last.
// A module with references is one client's own copy; its kernels are in no graph, where CUDA does not permit references.
//
// add() and set() are the session's worker's, apply() is of whoever issues: the same worker, or a quiet window while the worker stands still.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "broker/driver/driver.hpp"
#include "broker/executor/memory/checked_resources.hpp"
#include "gen/records.hpp"

namespace mpsshim::broker {

// The driver's object: one of the two.
struct ReferenceHandle {
  CUtexref texture = nullptr;
  CUsurfref surface = nullptr;
};

// Settings are of `set`, what is read is `source`, checked. Both are asked for again when a launch is to use them.
struct ReferenceBinding {
  proto::ReferenceSetRecord set{};
  CheckedBinding source;
  std::weak_ptr<const void> hold{};  // of the array (ArrayHold): another one may have its id by then
};

class ModuleReferences {
 public:
  using Bindings = std::vector<std::shared_ptr<const ReferenceBinding>>;  // by number; null: nothing was set

  // Its number.
  std::size_t add(const ReferenceHandle& handle);
  void set(std::size_t number, const ReferenceBinding& binding);
  // As they are now; null: nothing was set on any.
  [[nodiscard]] std::shared_ptr<const Bindings> bindings() const { return bindings_; }

  [[nodiscard]] CUresult apply(const Driver& driver, const Bindings& bindings);

 private:
  std::vector<ReferenceHandle> handles_;
  std::shared_ptr<const Bindings> bindings_;
  Bindings applied_;
};

// How a texture reference reads before anything is set on it.
[[nodiscard]] proto::ReferenceLookupReply read_settings(const Driver& driver, CUtexref texture);

}  // namespace mpsshim::broker
