// SPDX-License-Identifier: Apache-2.0
// Texture and surface references of modules (module_references.hpp). They are looked up in a quiet window, like variables, and set when their
// turn in the ring comes, for the launches behind.
#include <memory>
#include <utility>

#include "broker/executor/modules/module_store.hpp"
#include "broker/executor/records/dispatch.hpp"

namespace mpsshim::broker {

namespace {

constexpr std::size_t kMostReferences = 256;  // of a module; PTX in unified mode has 128 of each kind

// On the worker. The module may have gone meanwhile: then so has what was found in it.
CUresult add_reference(Session& session, const proto::ReferenceLookupRecord& record, const ImageRef& image, const ReferenceHandle& handle) {
  const proto::Known<SessionModule> module = session.modules().find(record.module);
  if (!module || module->image != image) return CUDA_ERROR_INVALID_HANDLE;
  if (module->reference_ids.size() >= kMostReferences) return CUDA_ERROR_OUT_OF_MEMORY;
  auto reference = std::make_unique<SessionReference>();
  reference->references = module->references;
  reference->is_surface = handle.surface != nullptr;
  SessionReference* const added = reference.get();
  if (!session.references().insert(record.reference, std::move(reference))) return CUDA_ERROR_INVALID_HANDLE;
  added->number = module->references->add(handle);
  module->reference_ids.push_back(record.reference);
  return CUDA_SUCCESS;
}

// What is read of memory, if it is memory that is read.
bool owns_memory_of(Session& session, const CheckedBinding& source) {
  const CheckedRange* const linear = source.linear();
  return linear == nullptr || session.memory().owns_device(linear->address(), linear->size_bytes());
}

}  // namespace

CUresult find_bindings(Session& session, const SessionFunction& function, std::shared_ptr<const LaunchReferences>& found) {
  if (function.references == nullptr || function.references->bindings() == nullptr) return CUDA_SUCCESS;
  auto launch = std::make_shared<LaunchReferences>(LaunchReferences{function.references, function.references->bindings()});
  for (const auto& binding : *launch->bindings) {
    if (binding == nullptr) continue;
    const proto::Known<SessionArray> array = session.arrays().table().find(binding->set.array);
    if (binding->source.names_array() && (!array || array->hold != binding->hold.lock())) return CUDA_ERROR_INVALID_HANDLE;  // destroyed since
    if (!owns_memory_of(session, binding->source)) return CUDA_ERROR_INVALID_VALUE;                                          // freed since
  }
  found = std::move(launch);
  return CUDA_SUCCESS;
}

void handle(OutOfLineCall& incoming, const proto::ReferenceLookupRecord& record) {
  const proto::Known<SessionModule> module = incoming.find(incoming.session.modules(), record.module);
  if (!module) return;
  if (!record.reference.has_kind()) return incoming.malformed("its reference id is of another kind");
  if (module->references == nullptr) return incoming.reject(CUDA_ERROR_NOT_FOUND);  // the image has none
  incoming.session.start_job(
      [reply = incoming.share_reply(), record, image = module->image, name = incoming.text()](const std::shared_ptr<Session>& session) {
        session->parts().modules.find_reference(
            session->id(), image, name, record.is_surface,
            [session, reply, record, image](CUresult result, const ReferenceHandle& handle, const proto::ReferenceLookupReply& settings) {
              session->finish_job([session, reply, record, image, result, handle, settings] {
                reply->answer_with(result == CUDA_SUCCESS ? add_reference(*session, record, image, handle) : result, settings);
              });
            });
      });
}

void handle(SessionPost& incoming, const proto::ReferenceSetRecord& record) {
  const proto::Known<SessionReference> reference = incoming.find(incoming.session.references(), record.reference);
  if (!reference) return;
  Checked<CheckedBinding> source = incoming.checked().binding(record, reference->is_surface);
  if (!source) return incoming.refuse(source.refusal());
  ReferenceBinding binding{record, *source, {}};
  const proto::Known<SessionArray> array = incoming.session.arrays().table().find(record.array);
  if (array) binding.hold = array->hold;
  reference->references->set(reference->number, binding);
}

}  // namespace mpsshim::broker
