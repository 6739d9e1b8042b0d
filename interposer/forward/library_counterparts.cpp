// SPDX-License-Identifier: Apache-2.0
// Libraries and kernels belong to the process, whichever session they were loaded in. A call in another session's name that is given such a handle
// means the same library there: it is loaded from the image that the control process has of the first, and found again from then on.
#include <map>
#include <mutex>
#include <string>

#include "interposer/forward/functions.hpp"
#include "interposer/forward/memory/managed_memory.hpp"
#include "interposer/forward/memory/pinned.hpp"
#include "interposer/forward/modules.hpp"
#include "interposer/local/acting_session.hpp"
#include "interposer/local/devices.hpp"
#include "interposer/log.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::interposer::forward {

namespace {

struct Counterparts {
  Mutex mutex;  // held while one is loaded: others that need it wait
  std::map<CUlibrary, Library*> libraries GUARDED_BY(mutex);
  std::map<CUkernel, Kernel*> kernels GUARDED_BY(mutex);
};
Counterparts& counterparts() {
  return PerSession<Counterparts>::get([] { return new Counterparts(); });
}

// f(Library&) in the name of the session that has loaded it. False: there is none.
template <typename F>
bool at_home(CUlibrary handle, F&& f) {
  const std::uint32_t home = id_of<proto::HandleKind::library>(handle).realm();
  if (home >= session_count() || home == ActingSession::index()) return false;
  const ActingSession acting(home);
  Library* const library = Modules::instance().resolve_library(handle);
  if (library != nullptr) f(*library);
  return library != nullptr;
}

CUresult load(CUlibrary handle, Library*& library) {
  std::optional<KnownImages::Told> told;
  bool has_objects = false;
  bool is_reached = true;
  ManagedBlock::Variables managed;
  const std::uint32_t own = ActingSession::index();
  const bool is_there = at_home(handle, [&](const Library& found) {
    told = session().told_by(found.module->image);
    has_objects = found.module->has_objects;
    if (found.module->managed == nullptr) return;
    managed = found.module->managed->variables;
    is_reached = PinnedMemory::instance().find(managed.begin()->second.range.address).has_value() || ManagedMemory::is_reached_by(own);
  });
  if (!is_there) return CUDA_ERROR_INVALID_HANDLE;
  if (!told || !is_reached) return CUDA_ERROR_NOT_SUPPORTED;  // its __managed__ variables migrate, to and from a device that this one does not reach
  if (const CUresult error = session().begin_call(); error != CUDA_SUCCESS) return error;
  const CUresult error = Modules::instance().adopt_library(*told, has_objects, id_of<proto::HandleKind::library>(handle), library);
  if (error == CUDA_SUCCESS) library->module->managed_elsewhere = std::move(managed);
  return error;
}

Library* find_or_load(Counterparts& own, CUlibrary handle) REQUIRES(own.mutex) {
  if (const auto found = own.libraries.find(handle); found != own.libraries.end()) return found->second;
  Library* library = nullptr;
  const CUresult error = load(handle, library);
  if (error != CUDA_SUCCESS) {
    if (error != CUDA_ERROR_INVALID_HANDLE) {
      log_line(
          "A library that this process has loaded on one device cannot be loaded on device %d (CUDA error %d): its kernels are no handles there.",
          session_device(), static_cast<int>(error));
    }
    return nullptr;
  }
  own.libraries.emplace(handle, library);
  return library;
}

}  // namespace

Library* counterpart_of(CUlibrary handle) {
  const LibraryId id = id_of<proto::HandleKind::library>(handle);
  if (!id.has_kind() || id.realm() >= session_count() || id.realm() == ActingSession::index()) return nullptr;
  Counterparts& own = counterparts();
  const std::lock_guard lock(own.mutex);
  return find_or_load(own, handle);
}

Kernel* counterpart_of(CUkernel handle) {
  const proto::Id<proto::HandleKind::kernel> id = id_of<proto::HandleKind::kernel>(handle);
  if (!id.has_kind() || id.realm() >= session_count() || id.realm() == ActingSession::index()) return nullptr;
  Counterparts& own = counterparts();
  const std::lock_guard lock(own.mutex);
  if (const auto found = own.kernels.find(handle); found != own.kernels.end()) return found->second;
  std::string name;
  CUlibrary library = nullptr;
  {
    const ActingSession acting(id.realm());
    const Kernel* const kernel = Functions::instance().resolve_kernel(handle);
    if (kernel == nullptr) return nullptr;
    name = kernel->function->name;
    library = to_handle<CUlibrary>(kernel->library);
  }
  Library* const here = find_or_load(own, library);
  Kernel* kernel = nullptr;
  if (here == nullptr || Modules::instance().get_kernel(*here, name, kernel) != CUDA_SUCCESS) return nullptr;
  own.kernels.emplace(handle, kernel);
  return kernel;
}

CUresult unload_everywhere(CUlibrary handle) {
  const std::uint32_t home = id_of<proto::HandleKind::library>(handle).realm();
  if (home >= session_count()) return CUDA_ERROR_INVALID_HANDLE;
  for (std::uint32_t index = 0; index < session_count(); ++index) {
    if (index == home) continue;
    const ActingSession acting(index);
    Counterparts& own = counterparts();
    const std::lock_guard lock(own.mutex);
    const auto found = own.libraries.find(handle);
    if (found == own.libraries.end()) continue;
    std::erase_if(own.kernels, [&](const auto& entry) { return entry.second->library == found->second->id; });
    const CUresult error = Modules::instance().unload_library(*found->second);
    own.libraries.erase(found);
    if (error != CUDA_SUCCESS) return error;
  }
  const ActingSession acting(home);
  if (const CUresult error = session().begin_call(); error != CUDA_SUCCESS) return error;
  Library* const library = Modules::instance().resolve_library(handle);
  return library != nullptr ? Modules::instance().unload_library(*library) : CUDA_ERROR_INVALID_HANDLE;
}

}  // namespace mpsshim::interposer::forward
