// SPDX-License-Identifier: Apache-2.0
// Texture and surface references (CUDA Driver API manual, "Texture Reference Management [DEPRECATED]", "Surface Reference Management
// [DEPRECATED]"). What is set on one is kept here and answered from here; every change is posted, whole, for the launches that come later.
// Handles are ids.
//
// A reference belongs to its module and ends with it, or was made by cuTexRefCreate: no kernel reads through such a one, so nobody is told of it.
// Any thread; CUDA leaves it to the application not to set one reference from two threads at once, and its mutex keeps that from being a crash.
#pragma once

#include <cstdint>
#include <mutex>
#include <string_view>

#include "gen/cuda_api.hpp"
#include "gen/records.hpp"
#include "interposer/forward/modules.hpp"
#include "interposer/local/acting_session.hpp"
#include "proto/handle_table.hpp"
#include "proto/mutex.hpp"
#include "proto/references.hpp"

namespace mpsshim::interposer::forward {

struct Reference {
  proto::ReferenceId id;
  proto::ModuleId module;  // {}: of none
  bool is_surface = false;
  RecipeBook::Key recipe = 0;
  Mutex mutex;
  proto::ReferenceSetRecord set GUARDED_BY(mutex){};  // as it is now
  RecipeBook::Key set_recipe GUARDED_BY(mutex) = 0;   // of the latest change
};

class References {
 public:
  [[nodiscard]] static References& instance();

  // Null if the handle is none of that kind.
  [[nodiscard]] Reference* resolve(CUtexref handle);
  [[nodiscard]] Reference* resolve(CUsurfref handle);

  // Of a module; asked for twice it is the same. CUDA_ERROR_NOT_FOUND: it has none of that name.
  [[nodiscard]] CUresult look_up(Module& module, std::string_view name, bool is_surface, Reference*& reference);
  [[nodiscard]] CUresult create(Reference*& reference);
  void destroy(Reference& reference) { (void)table_.take(reference.id); }

  // Changes what is set and tells the executor. The reference's mutex is held by the call.
  template <typename Change>
  [[nodiscard]] CUresult change(Reference& reference, Change&& change) {
    const std::lock_guard lock(reference.mutex);
    change(reference.set);
    return reference.module == proto::ModuleId{} ? CUDA_SUCCESS : post(reference);
  }

 private:
  [[nodiscard]] Reference* add(proto::ModuleId module, bool is_surface);
  [[nodiscard]] static CUresult post(Reference& reference) REQUIRES(reference.mutex);

  proto::HandleTable<proto::HandleKind::reference, Reference> table_{ActingSession::index()};
};

}  // namespace mpsshim::interposer::forward
