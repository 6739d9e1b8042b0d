// SPDX-License-Identifier: Apache-2.0
// Modules and libraries. An image is read where it lies (its length from its own headers), given to the control process once, and loaded by
// the executor under an id chosen here. The functions of a small module come with the answer; others, and globals, are asked for by name,
// once each.
//
// Any thread; a module's tables are guarded by its mutex. Handles are ids. A library is loaded as one module, when it is loaded: the
// runtime asks for the first kernel right behind, and an image that cannot be loaded is reported by the call that gave it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gen/cuda_api.hpp"
#include "interposer/forward/functions.hpp"
#include "interposer/forward/jit_options.hpp"
#include "interposer/forward/memory/managed_blocks.hpp"
#include "interposer/local/acting_session.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::interposer::forward {

struct Global {
  std::uint64_t address = 0;
  std::uint64_t size_bytes = 0;
};

struct Reference;

struct Module {
  proto::ModuleId id;
  std::uint32_t function_count = 0;
  CUcontext context = nullptr;  // null: of a library, which belongs to the process
  RecipeBook::Key recipe = 0;
  std::uint64_t image = 0;                // known to the control process for the life of the session
  std::unique_ptr<ManagedBlock> managed;  // its __managed__ variables, if it has any: `image` is the placed one
  ManagedBlock::Variables managed_elsewhere;  // of a library that another session has loaded first: they are that one's
  bool has_objects = false;               // of a linked image: what it was linked of is at hand
  bool has_writable_globals = false;      // kernels may have changed what loading gives

  std::vector<std::byte> described;  // the executor's reply to ModuleLoad: functions that need not be asked for

  Mutex mutex;
  std::map<std::string, Function*, std::less<>> functions GUARDED_BY(mutex);
  std::map<std::string, Global, std::less<>> globals GUARDED_BY(mutex);
  std::vector<RecipeBook::Key> global_recipes GUARDED_BY(mutex);
  std::map<std::string, Reference*, std::less<>> textures GUARDED_BY(mutex);  // references that were asked for (arrays/references.hpp)
  std::map<std::string, Reference*, std::less<>> surfaces GUARDED_BY(mutex);
  std::vector<std::string> names GUARDED_BY(mutex);  // of all functions, once they were asked for
};

// A module's references end with it: their recipes inside the post that says so, then their handles.
void end_references(const Module& module, Place place);
void erase_references(const Module& module);

struct Library {
  LibraryId id;
  LibraryId origin;  // what the program calls it: another session's, where this is its counterpart
  Module* module = nullptr;
  Mutex mutex;
  std::map<std::string, Kernel*, std::less<>> kernels GUARDED_BY(mutex);
};

// Of a library of another session; null: it is none, or cannot be loaded here, with a line.
[[nodiscard]] Library* counterpart_of(CUlibrary library);
// Unloads it in every session of the process.
[[nodiscard]] CUresult unload_everywhere(CUlibrary library);

class Modules {
 public:
  [[nodiscard]] static Modules& instance();

  [[nodiscard]] Module* resolve(CUmodule handle) { return modules_.find(id_of<proto::HandleKind::module>(handle)).get(); }
  // One that another session has loaded is this session's of the same image, loaded when it is first asked for (library_counterparts.cpp).
  [[nodiscard]] Library* resolve_library(CUlibrary handle) {
    Library* const library = libraries_.find(id_of<proto::HandleKind::library>(handle)).get();
    return library != nullptr || !has_several_sessions() ? library : counterpart_of(handle);
  }
  [[nodiscard]] Module* find(proto::ModuleId id) { return modules_.find(id).get(); }

  [[nodiscard]] CUresult load(const void* image, JitOptions& options, CUcontext context, Module*& module);
  [[nodiscard]] CUresult load_file(const char* path, JitOptions& options, CUcontext context, Module*& module);
  // CUDA_ERROR_INVALID_HANDLE: there is none, or another thread was faster.
  [[nodiscard]] CUresult unload(proto::ModuleId id);

  [[nodiscard]] CUresult get_function(Module& module, std::string_view name, Function*& function);
  [[nodiscard]] CUresult get_global(Module& module, std::string_view name, Global& global);
  // CUDA_ERROR_NOT_FOUND: it has no __managed__ variable of that name.
  [[nodiscard]] static CUresult get_managed(const Module& module, std::string_view name, Global& global);
  // Names of all functions of the module.
  [[nodiscard]] CUresult function_names(Module& module, std::vector<std::string>& names);

  // Loads what another session of this process has loaded. `origin`: what the program calls it.
  [[nodiscard]] CUresult adopt_library(const KnownImages::Told& told, bool has_objects, LibraryId origin, Library*& library);
  [[nodiscard]] CUresult add_library(Module& module, Library*& library);
  [[nodiscard]] CUresult get_kernel(Library& library, std::string_view name, Kernel*& kernel);
  [[nodiscard]] CUresult unload_library(Library& library);
  // The primary context is made again after a reset: libraries are still there, and their variables hold what loading gives.
  [[nodiscard]] CUresult renew_libraries();

  void unload_all_of(CUcontext context);

 private:
  // `has_objects`: it is linked, and CUDA_ERROR_NO_BINARY_FOR_GPU means that it is to be loaded with what it was linked of behind it.
  [[nodiscard]] CUresult load_bytes(std::span<const std::byte> content, JitOptions& options, CUcontext context, Module*& module,
                                    bool has_objects = false);
  // CUDA_SUCCESS without a module: __managed__ variables need places, `wanted` says which.
  [[nodiscard]] CUresult load_image(std::uint64_t image, JitOptions& options, CUcontext context, Module*& module, std::vector<std::byte>& wanted,
                                    bool has_objects = false);
  [[nodiscard]] CUresult load_placed(std::unique_ptr<ManagedBlock> block, JitOptions& options, CUcontext context, Module*& module);
  [[nodiscard]] CUresult call_load(Module& module, JitOptions& options, std::vector<std::byte>& wanted);
  // Its __managed__ variables hold what loading gives.
  [[nodiscard]] CUresult initialise_managed(Module& module);
  [[nodiscard]] CUresult renew(Library& library);

  proto::HandleTable<proto::HandleKind::module, Module> modules_{ActingSession::index()};
  proto::HandleTable<proto::HandleKind::library, Library> libraries_{ActingSession::index()};
  Mutex renewal_mutex_;  // held while libraries are made anew, and while one leaves the table
  Mutex ending_mutex_;   // one module ends at a time
  Mutex mutex_;          // held while modules come and go
};

}  // namespace mpsshim::interposer::forward
