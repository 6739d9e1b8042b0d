// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/arrays/references.hpp"

#include <algorithm>
#include <iterator>
#include <memory>
#include <string>

#include "interposer/local/acting_session.hpp"

namespace mpsshim::interposer::forward {

namespace {

void take_settings(const proto::ReferenceLookupReply& reply, proto::ReferenceSetRecord& set) {
  set.format = reply.format;
  set.channels = reply.channels;
  set.flags = reply.flags;
  std::copy(std::begin(reply.address_mode), std::end(reply.address_mode), std::begin(set.address_mode));
  set.filter_mode = reply.filter_mode;
  set.mipmap_filter_mode = reply.mipmap_filter_mode;
  set.max_anisotropy = reply.max_anisotropy;
  set.level_bias = reply.level_bias;
  set.min_level = reply.min_level;
  set.max_level = reply.max_level;
  std::copy(std::begin(reply.border), std::end(reply.border), std::begin(set.border));
}

}  // namespace

References& References::instance() {
  return PerSession<References>::get([] { return new References(); });
}

Reference* References::resolve(CUtexref handle) {
  Reference* reference = table_.find(id_of<proto::HandleKind::reference>(handle)).get();
  return reference != nullptr && !reference->is_surface ? reference : nullptr;
}

Reference* References::resolve(CUsurfref handle) {
  Reference* reference = table_.find(id_of<proto::HandleKind::reference>(handle)).get();
  return reference != nullptr && reference->is_surface ? reference : nullptr;
}

Reference* References::add(proto::ModuleId module, bool is_surface) {
  auto object = std::make_unique<Reference>();
  Reference* reference = object.get();
  reference->mutex.assume_held();  // its handle is nobody's yet
  reference->module = module;
  reference->is_surface = is_surface;
  const proto::ReferenceId id = table_.add(std::move(object));
  if (id == proto::ReferenceId{}) return nullptr;  // the object is gone
  reference->id = id;
  reference->set.reference = id;
  return reference;
}

CUresult References::create(Reference*& reference) {
  reference = add({}, false);
  return reference != nullptr ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult References::look_up(Module& module, std::string_view name, bool is_surface, Reference*& reference) {
  const std::lock_guard lock(module.mutex);
  auto& known = is_surface ? module.surfaces : module.textures;
  if (const auto found = known.find(name); found != known.end()) {
    reference = found->second;
    return CUDA_SUCCESS;
  }
  Reference* made = add(module.id, is_surface);
  if (made == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  proto::ReferenceLookupRecord record{};
  record.module = module.id;
  record.reference = made->id;
  record.is_surface = is_surface;
  const auto trailing = std::as_bytes(std::span(name));
  proto::ReferenceLookupReply reply{};
  if (const CUresult error = session().call_kept(record, trailing, reply, made->recipe); error != CUDA_SUCCESS) {
    destroy(*made);
    return error;
  }
  made->mutex.assume_held();  // as in add()
  take_settings(reply, made->set);
  known.emplace(name, made);
  reference = made;
  return CUDA_SUCCESS;
}

// The recipe of the change before this one is needed by launches between the two, until the executor has read this one.
CUresult References::post(Reference& reference) {
  return session().channel().post<proto::ReferenceSetRecord>({}, 0, [&](proto::ReferenceSetRecord& record, std::byte*, Place place) {
    reference.mutex.assume_held();
    record = reference.set;
    session().end_recipe(reference.set_recipe, place);
    reference.set_recipe = session().recipes().add(recipe_of({}, record, place.position));
  });
}

void end_references(const Module& module, Place place) {
  for (const auto* references : {&module.textures, &module.surfaces}) {
    for (const auto& [name, reference] : *references) {
      reference->mutex.assume_held();  // nobody may use it while its module is unloaded
      session().end_recipe(reference->recipe, place);
      session().end_recipe(reference->set_recipe, place);
    }
  }
}

void erase_references(const Module& module) {
  for (const auto* references : {&module.textures, &module.surfaces}) {
    for (const auto& [name, reference] : *references) References::instance().destroy(*reference);
  }
}

}  // namespace mpsshim::interposer::forward
