// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/modules.hpp"

#include <cerrno>
#include <cstring>

#include "interposer/forward/hooks.hpp"
#include "interposer/forward/memory/globals.hpp"
#include "interposer/forward/memory/managed_residence.hpp"
#include "interposer/forward/read_file.hpp"
#include "interposer/forward/streams.hpp"
#include "interposer/local/acting_session.hpp"
#include "proto/image/image.hpp"
#include "proto/managed_variables.hpp"

namespace mpsshim::interposer::forward {

namespace {

using Bytes = std::span<const std::byte>;

// The bytes behind an image pointer; of a linked fat binary (-rdc) the linked container, then the objects it was made of. Empty: it is no image
// the driver would take.
std::vector<Bytes> bytes_of(const void* image) {
  const image::Extent extent = image::extent_of(image);
  switch (extent.form) {
    case image::Form::fatbin_wrapper: return image::containers_of(image);
    case image::Form::fatbin:
    case image::Form::elf:
    case image::Form::ptx: return {{static_cast<const std::byte*>(image), extent.bytes}};
    case image::Form::archive:
    case image::Form::unknown: break;
  }
  return {};
}

// The next executor is to say that it has put back what the module's variables held: one that knows nothing of that does not.
Recipe restoring_recipe(proto::ModuleLoadRecord record, proto::ModuleLoadReply reply, Answer& answer) {
  record.restores = true;
  reply.globals = proto::ModuleGlobals::restored;
  static_assert(proto::ModuleLoadReply::kBodyBytes == sizeof reply);
  std::memcpy(answer.payload.data(), &reply, std::min(sizeof reply, answer.payload.size()));
  Recipe recipe = recipe_of({}, record, 0);
  recipe.has_contents = true;
  return recipe;
}

}  // namespace

Modules& Modules::instance() {
  return PerSession<Modules>::get([] { return new Modules(); });
}

CUresult Modules::load(const void* image, JitOptions& options, CUcontext context, Module*& module) {
  const std::vector<Bytes> parts = bytes_of(image);
  if (parts.empty()) return CUDA_ERROR_INVALID_IMAGE;
  // Mostly the linked container has code for the device, and the objects, which are as large, stay here.
  const bool has_objects = parts.size() > 1;
  const CUresult error = load_bytes(parts.front(), options, context, module, has_objects);
  if (error != CUDA_ERROR_NO_BINARY_FOR_GPU || !has_objects) return error;
  if (context != nullptr) return CUDA_ERROR_INVALID_IMAGE;  // natively, too, objects are linked for libraries alone
  std::vector<std::byte> all;
  for (const Bytes& part : parts) all.insert(all.end(), part.begin(), part.end());
  return load_bytes(all, options, context, module);
}

CUresult Modules::load_file(const char* path, JitOptions& options, CUcontext context, Module*& module) {
  std::vector<std::byte> content;
  if (!read_file(path, content)) return errno == ENOENT || errno == EACCES ? CUDA_ERROR_FILE_NOT_FOUND : CUDA_ERROR_INVALID_VALUE;
  content.push_back(std::byte{0});  // ends a PTX text; behind the end of any other form
  const std::size_t length = image::length_of(content);
  return load_bytes(std::span(content).first(length), options, context, module);
}

CUresult Modules::load_bytes(std::span<const std::byte> content, JitOptions& options, CUcontext context, Module*& module, bool has_objects) {
  if (content.empty()) return CUDA_ERROR_INVALID_IMAGE;
  std::uint64_t image = 0;
  if (const CUresult error = session().upload_image(content, image); error != CUDA_SUCCESS) return error;
  std::unique_ptr<ManagedBlock> block = ManagedBlocks::instance().take(image);
  if (block != nullptr) return load_placed(std::move(block), options, context, module);
  std::vector<std::byte> wanted;
  const CUresult error = load_image(image, options, context, module, wanted, has_objects);
  if (error != CUDA_SUCCESS || module != nullptr) return error;
  if (const CUresult made = ManagedBlocks::instance().make(image, content, wanted, block); made != CUDA_SUCCESS) return made;
  return load_placed(std::move(block), options, context, module);
}

CUresult Modules::load_image(std::uint64_t image, JitOptions& options, CUcontext context, Module*& module, std::vector<std::byte>& wanted,
                             bool has_objects) {
  module = nullptr;
  auto object = std::make_unique<Module>();
  Module* loaded = object.get();
  loaded->context = context;
  loaded->image = image;
  loaded->has_objects = has_objects;
  {
    const std::lock_guard lock(mutex_);
    const proto::ModuleId id = modules_.add(std::move(object));
    if (id == proto::ModuleId{}) return CUDA_ERROR_OUT_OF_MEMORY;  // the table is full, the object gone
    loaded->id = id;
  }
  const CUresult error = call_load(*loaded, options, wanted);
  if (error != CUDA_SUCCESS || !wanted.empty()) {
    const std::lock_guard lock(mutex_);
    (void)modules_.take(loaded->id);
    return error;
  }
  module = loaded;
  return CUDA_SUCCESS;
}

CUresult Modules::call_load(Module& module, JitOptions& options, std::vector<std::byte>& wanted) {
  proto::ModuleLoadRecord record{};
  record.module = module.id;
  record.image = module.image;
  record.offers = proto::ModuleOffer::places_managed;
  record.offers.set(proto::ModuleOffer::has_objects, module.has_objects);
  proto::ModuleLoadReply reply{};
  Answer answer;  // of add_module() in the executor's handlers_module.cpp, or of whatever refuses it there
  const auto recipe_for = [&](const proto::ModuleLoadReply& loaded) -> std::optional<Recipe> {
    if (loaded.globals == proto::ModuleGlobals::need_places) return std::nullopt;
    return loaded.globals == proto::ModuleGlobals::none ? recipe_of({}, record, 0) : restoring_recipe(record, loaded, answer);
  };
  if (const CUresult error = session().call_kept(record, {}, reply, answer, module.recipe, recipe_for); error != CUDA_SUCCESS) {
    const std::size_t skip = std::min(answer.payload.size(), proto::ModuleLoadReply::kBodyBytes);
    const auto log = std::span(answer.payload).subspan(skip);
    options.report({reinterpret_cast<const char*>(log.data()), log.size()});
    return error;
  }
  if (reply.globals == proto::ModuleGlobals::need_places) {
    wanted.assign(answer.payload.begin() + proto::ModuleLoadReply::kBodyBytes, answer.payload.end());
    return wanted.empty() ? CUDA_ERROR_MPS_RPC_FAILURE : CUDA_SUCCESS;
  }
  options.report({});
  if (reply.adds_for_system) ManagedResidence::note_system_atomics();
  module.function_count = reply.function_count;
  module.has_writable_globals = reply.globals != proto::ModuleGlobals::none;
  module.described = std::move(answer.payload);
  return CUDA_SUCCESS;
}

CUresult Modules::unload(proto::ModuleId id) {
  const std::lock_guard ending(ending_mutex_);
  const proto::Known<Module> known = modules_.find(id);
  if (!known) return CUDA_ERROR_INVALID_HANDLE;
  Module& module = *known;
  module.mutex.assume_held();  // CUDA forbids using a handle while it is destroyed
  // Its next owner writes there.
  if (module.managed != nullptr || !module.managed_elsewhere.empty()) {
    if (const CUresult error = synchronize_all_streams(); error != CUDA_SUCCESS) return error;
  }
  if (module.managed != nullptr) ManagedBlocks::instance().give_back(std::move(module.managed));
  const CUresult error = session().channel().post<proto::ModuleUnloadRecord>({}, 0, [&](proto::ModuleUnloadRecord& record, std::byte*, Place place) {
    module.mutex.assume_held();
    record.module = module.id;
    session().end_recipe(module.recipe, place);
    for (const auto& [name, function] : module.functions) Functions::instance().end_recipes(*function, place);
    for (const RecipeBook::Key key : module.global_recipes) session().end_recipe(key, place);
    end_references(module, place);
  });
  Globals::instance().remove(module.id);
  erase_references(module);
  for (const auto& [name, function] : module.functions) Functions::instance().erase(function->id);
  const std::lock_guard lock(mutex_);
  (void)modules_.take(module.id);
  return error;
}

CUresult Modules::get_function(Module& module, std::string_view name, Function*& function) {
  const std::lock_guard lock(module.mutex);
  if (const auto found = module.functions.find(name); found != module.functions.end()) {
    function = found->second;
    return CUDA_SUCCESS;
  }
  const auto described = std::span(module.described).subspan(std::min(module.described.size(), proto::ModuleLoadReply::kBodyBytes));
  CUresult error = Functions::instance().bind(module.id, described, name, function);
  if (error == CUDA_ERROR_NOT_FOUND) error = Functions::instance().look_up(module.id, name, function);
  if (error != CUDA_SUCCESS) return error;
  module.functions.emplace(name, function);
  return CUDA_SUCCESS;
}

CUresult Modules::get_global(Module& module, std::string_view name, Global& global) {
  if (get_managed(module, name, global) == CUDA_SUCCESS) return CUDA_SUCCESS;
  const std::lock_guard lock(module.mutex);
  if (const auto found = module.globals.find(name); found != module.globals.end()) {
    global = found->second;
    return CUDA_SUCCESS;
  }
  proto::GlobalLookupRecord record{};
  record.module = module.id;
  const auto trailing = std::as_bytes(std::span(name));
  proto::GlobalLookupReply reply{};
  RecipeBook::Key key = 0;
  if (const CUresult error = session().call_kept(record, trailing, reply, key); error != CUDA_SUCCESS) return error;
  module.global_recipes.push_back(key);
  global = {reply.address, reply.size_bytes};
  module.globals.emplace(name, global);
  Globals::instance().add(module.id, global.address, global.size_bytes);
  return CUDA_SUCCESS;
}

CUresult Modules::function_names(Module& module, std::vector<std::string>& names) {
  const std::lock_guard lock(module.mutex);
  while (module.names.size() < module.function_count) {
    proto::FunctionListRecord record{};
    record.module = module.id;
    record.first = static_cast<std::uint32_t>(module.names.size());
    proto::FunctionListReply reply{};
    Answer answer;
    const CUresult error = session().channel().call({}, record, {}, reply, &answer);
    if (error != CUDA_SUCCESS) return error;
    const auto trailing = std::span(answer.payload).subspan(proto::FunctionListReply::kBodyBytes);
    std::string_view text(reinterpret_cast<const char*>(trailing.data()), trailing.size());
    for (std::uint32_t i = 0; i < reply.returned; ++i) {
      const std::size_t end = text.find('\0');
      if (end == std::string_view::npos) return CUDA_ERROR_MPS_RPC_FAILURE;
      module.names.emplace_back(text.substr(0, end));
      text.remove_prefix(end + 1);
    }
    if (reply.returned == 0) break;
  }
  names = module.names;
  return CUDA_SUCCESS;
}

CUresult Modules::add_library(Module& module, Library*& library) {
  auto object = std::make_unique<Library>();
  library = object.get();
  library->module = &module;
  const std::lock_guard lock(mutex_);
  const LibraryId id = libraries_.add(std::move(object));
  if (id == LibraryId{}) return CUDA_ERROR_OUT_OF_MEMORY;
  library->id = library->origin = id;
  return CUDA_SUCCESS;
}

CUresult Modules::adopt_library(const KnownImages::Told& told, bool has_objects, LibraryId origin, Library*& library) {
  std::uint64_t image = 0;
  if (const CUresult error = session().adopt_image(told, image); error != CUDA_SUCCESS) return error;
  JitOptions none;
  Module* module = nullptr;
  std::vector<std::byte> wanted;
  if (const CUresult error = load_image(image, none, nullptr, module, wanted, has_objects); error != CUDA_SUCCESS) return error;
  if (module == nullptr) return CUDA_ERROR_MPS_RPC_FAILURE;  // an image has the places of its __managed__ variables
  if (const CUresult error = add_library(*module, library); error != CUDA_SUCCESS) return error;
  library->origin = origin;
  return CUDA_SUCCESS;
}

CUresult Modules::get_kernel(Library& library, std::string_view name, Kernel*& kernel) {
  const std::lock_guard lock(library.mutex);
  if (const auto found = library.kernels.find(name); found != library.kernels.end()) {
    kernel = found->second;
    return CUDA_SUCCESS;
  }
  Function* function = nullptr;
  if (const CUresult error = get_function(*library.module, name, function); error != CUDA_SUCCESS) return error;
  kernel = Functions::instance().add_kernel(library.id, *function);
  if (kernel == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  library.kernels.emplace(name, kernel);
  return CUDA_SUCCESS;
}

CUresult Modules::unload_library(Library& library) {
  std::unique_ptr<Library> taken;
  {
    // Out of the table first: who makes libraries anew finds those alone that have their module.
    const std::lock_guard renewing(renewal_mutex_);
    const std::lock_guard lock(mutex_);
    taken = libraries_.take(library.id);
  }
  if (taken == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  taken->mutex.assume_held();  // it is nobody else's any more
  for (const auto& [name, kernel] : taken->kernels) Functions::instance().erase_kernel(kernel->id);
  return unload(taken->module->id);
}

// Kernels keep their handles and what was set on them, not so the functions that they were taken for.
CUresult Modules::renew(Library& library) {
  const std::lock_guard lock(library.mutex);
  Module* const old = library.module;
  Module* fresh = nullptr;
  JitOptions none;
  std::vector<std::byte> wanted;
  if (const CUresult error = load_image(old->image, none, nullptr, fresh, wanted); error != CUDA_SUCCESS) return error;
  if (fresh == nullptr) return CUDA_ERROR_MPS_RPC_FAILURE;
  library.module = fresh;
  fresh->managed = std::move(old->managed);  // a reset has waited for all work
  fresh->managed_elsewhere = std::move(old->managed_elsewhere);
  if (fresh->managed != nullptr) {
    if (const CUresult error = initialise_managed(*fresh); error != CUDA_SUCCESS) return error;
  }
  for (const auto& [name, kernel] : library.kernels) {
    Function* function = nullptr;
    if (const CUresult error = get_function(*fresh, name, function); error != CUDA_SUCCESS) return error;
    const Function& before = *kernel->function;
    kernel->function = function;
    if (const CUresult error = Functions::instance().copy_attributes(before, *function); error != CUDA_SUCCESS) return error;
  }
  return unload(old->id);
}

CUresult Modules::renew_libraries() {
  const std::lock_guard renewing(renewal_mutex_);  // none of them is unloaded meanwhile
  std::vector<Library*> changed;
  {
    const std::lock_guard lock(mutex_);
    libraries_.for_each([&](LibraryId, Library& library) {
      if (library.module->has_writable_globals || library.module->managed != nullptr) changed.push_back(&library);
    });
  }
  for (Library* library : changed) {
    if (const CUresult error = renew(*library); error != CUDA_SUCCESS) return error;
  }
  return CUDA_SUCCESS;
}

void Modules::unload_all_of(CUcontext context) {
  std::vector<proto::ModuleId> ended;
  {
    const std::lock_guard lock(mutex_);
    modules_.for_each([&](proto::ModuleId id, const Module& module) {
      if (module.context == context) ended.push_back(id);
    });
  }
  for (const proto::ModuleId id : ended) (void)unload(id);
}

CUresult visit_functions(CUmodule handle, void (*visit)(void* user, CUfunction function), void* user, std::uint32_t& count) {
  Modules& modules = Modules::instance();
  Module* module = modules.resolve(handle);
  if (module == nullptr) {
    const Library* library = modules.resolve_library(reinterpret_cast<CUlibrary>(handle));
    if (library == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    module = library->module;
  }
  std::vector<std::string> names;
  if (const CUresult error = modules.function_names(*module, names); error != CUDA_SUCCESS) return error;
  count = 0;
  for (const std::string& name : names) {
    Function* function = nullptr;
    if (const CUresult error = modules.get_function(*module, name, function); error != CUDA_SUCCESS) return error;
    visit(user, to_handle<CUfunction>(function->id));
    ++count;
  }
  return CUDA_SUCCESS;
}

}  // namespace mpsshim::interposer::forward
