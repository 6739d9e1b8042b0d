// SPDX-License-Identifier: Apache-2.0
// What clients find in a loaded image: functions, variables, texture and surface references. What is known is answered from memory; the driver's
// look-ups wait for every running kernel, so each is a job of a quiet window.
#include <utility>

#include "broker/executor/link/fault.hpp"
#include "broker/executor/modules/module_store.hpp"
#include "broker/executor/window/quiet_window.hpp"

namespace mpsshim::broker {

const LoadedFunction* ModuleStore::find_function(LoadedImage& image, std::string_view name) {
  std::lock_guard lock(image.mutex);
  const auto found = image.functions.find(name);
  return found != image.functions.end() ? found->second.get() : nullptr;
}

void ModuleStore::find_function(std::uint64_t session, const ImageRef& image, std::string name, FunctionDone done) {
  if (const LoadedFunction* known = find_function(*image, name)) return done(CUDA_SUCCESS, known);
  window_.submit({.what = "cuModuleGetFunction",
                  .session = session,
                  .run = [this, image, session, name = std::move(name), done = std::move(done)](WindowResult window) {
                    if (window == WindowResult::no_window) return done(CUDA_ERROR_MPS_SERVER_NOT_READY, nullptr);
                    const LoadedFunction* function = nullptr;
                    const CUresult result = faults_.check(look_up(driver_, *image, name, function), session, "cuModuleGetFunction");
                    done(result, function);
                  }});
}

void ModuleStore::find_global(std::uint64_t session, const ImageRef& image, std::string name, GlobalDone done) {
  {
    std::unique_lock lock(image->mutex);
    if (const auto found = image->globals.find(name); found != image->globals.end()) {
      const auto [address, size] = found->second;
      lock.unlock();
      return done(CUDA_SUCCESS, address, size);
    }
  }
  window_.submit({.what = "cuModuleGetGlobal",
                  .session = session,
                  .run = [this, image, session, name = std::move(name), done = std::move(done)](WindowResult window) {
                    if (window == WindowResult::no_window) return done(CUDA_ERROR_MPS_SERVER_NOT_READY, 0, 0);
                    CUdeviceptr address = 0;
                    std::size_t size = 0;
                    const CUresult result =
                        faults_.check(driver_->cuModuleGetGlobal_v2(&address, &size, image->handle, name.c_str()), session, "cuModuleGetGlobal");
                    if (result == CUDA_SUCCESS) {
                      std::lock_guard lock(image->mutex);
                      image->globals[name] = {address, size};
                    }
                    done(result, address, size);
                  }});
}

void ModuleStore::find_reference(std::uint64_t session, const ImageRef& image, std::string name, bool is_surface, ReferenceDone done) {
  window_.submit({.what = is_surface ? "cuModuleGetSurfRef" : "cuModuleGetTexRef",
                  .session = session,
                  .run = [this, image, session, is_surface, name = std::move(name), done = std::move(done)](WindowResult window) {
                    ReferenceHandle handle;
                    if (window == WindowResult::no_window) return done(CUDA_ERROR_MPS_SERVER_NOT_READY, handle, {});
                    const CUresult result = is_surface ? driver_->cuModuleGetSurfRef(&handle.surface, image->handle, name.c_str())
                                                       : driver_->cuModuleGetTexRef(&handle.texture, image->handle, name.c_str());
                    if (faults_.check(result, session, is_surface ? "cuModuleGetSurfRef" : "cuModuleGetTexRef") != CUDA_SUCCESS) {
                      return done(result, {}, {});
                    }
                    done(result, handle, is_surface ? proto::ReferenceLookupReply{} : read_settings(driver_, handle.texture));
                  }});
}

void ModuleStore::list_functions(std::uint64_t session, const ImageRef& image, NamesDone done) {
  std::vector<std::string> known;
  {
    std::lock_guard lock(image->mutex);
    known = image->names;
  }
  if (!known.empty() || image->function_count == 0) return done(CUDA_SUCCESS, std::move(known));
  window_.submit(
      {.what = "cuModuleEnumerateFunctions", .session = session, .run = [this, image, session, done = std::move(done)](WindowResult window) {
         std::vector<std::string> names;
         if (window == WindowResult::no_window) return done(CUDA_ERROR_MPS_SERVER_NOT_READY, std::move(names));
         const CUresult result = faults_.check(list_names(driver_, *image, names), session, "cuModuleEnumerateFunctions");
         done(result, std::move(names));
       }});
}

}  // namespace mpsshim::broker
