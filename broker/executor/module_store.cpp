// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/module_store.hpp"

#include <algorithm>
#include <utility>

#include <unistd.h>

#include "broker/executor/control_link.hpp"
#include "broker/executor/fault.hpp"
#include "broker/executor/image_file.hpp"
#include "broker/executor/quiet_window.hpp"
#include "broker/log.hpp"

namespace mpsshim::broker {

namespace {

constexpr unsigned kImageTimeoutMs = 10'000;
constexpr unsigned kEagerFunctions = 64;  // a module with at most so many has all of them looked up in the window that loads it

void note_load(ControlLink& control, std::uint64_t session, std::uint64_t image, bool is_load) {
  ExecutorPacket packet;
  packet.header = {ExecutorMessage::module_note, 0, session};
  packet.object = image;
  packet.purpose = is_load ? 1 : 0;
  control.send(packet);
}

CUresult describe(const Driver& driver, CUfunction handle, LoadedFunction& function) {
  function.handle = handle;
  for (int i = 0; i < 16; ++i) {
    int value = 0;
    if (driver->cuFuncGetAttribute(&value, static_cast<CUfunction_attribute>(i), handle) != CUDA_SUCCESS) continue;
    function.attribute[i] = value;
    function.attribute_valid |= 1u << i;
  }
  function.local_bytes = static_cast<std::uint32_t>(function.attribute[CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES]);
  for (std::size_t i = 0;; ++i) {
    std::size_t offset = 0;
    std::size_t size = 0;
    const CUresult result = driver->cuFuncGetParamInfo(handle, i, &offset, &size);
    if (result == CUDA_ERROR_INVALID_VALUE) return CUDA_SUCCESS;  // one past the last
    if (result != CUDA_SUCCESS) return result;
    function.parameters.push_back({static_cast<std::uint32_t>(offset), static_cast<std::uint32_t>(size)});
    function.parameter_bytes = static_cast<std::uint32_t>(offset + size);
  }
}

// In a window (or from memory). Adds the function to the image's map.
CUresult look_up(const Driver& driver, LoadedImage& image, const std::string& name, const LoadedFunction*& found) {
  CUfunction handle = nullptr;
  CUresult result = driver->cuModuleGetFunction(&handle, image.handle, name.c_str());
  if (result != CUDA_SUCCESS) return result;
  auto function = std::make_unique<LoadedFunction>();
  result = describe(driver, handle, *function);
  if (result != CUDA_SUCCESS) return result;
  std::lock_guard lock(image.mutex);
  found = image.functions.try_emplace(name, std::move(function)).first->second.get();
  return CUDA_SUCCESS;
}

CUresult list_names(const Driver& driver, LoadedImage& image, std::vector<std::string>& names) {
  std::vector<CUfunction> handles(image.function_count);
  if (handles.empty()) return CUDA_SUCCESS;
  CUresult result = driver->cuModuleEnumerateFunctions(handles.data(), image.function_count, image.handle);
  for (std::size_t i = 0; result == CUDA_SUCCESS && i < handles.size(); ++i) {
    const char* name = nullptr;
    result = driver->cuFuncGetName(&name, handles[i]);
    if (result == CUDA_SUCCESS) names.emplace_back(name);
  }
  return result;
}

void look_up_all(const Driver& driver, LoadedImage& image) {
  std::vector<std::string> names;
  if (image.function_count > kEagerFunctions || list_names(driver, image, names) != CUDA_SUCCESS) return;
  for (const std::string& name : names) {
    const LoadedFunction* function = nullptr;
    const CUresult result = look_up(driver, image, name, function);
    if (result != CUDA_SUCCESS) log_debug("Image {}: {} could not be looked up ahead: {}", image.image, name, driver.describe(result));
  }
}

}  // namespace

ModuleStore::ModuleStore(const Driver& driver, ControlLink& control, QuietWindow& window, const FaultReporter& faults, CUdevice device)
    : driver_(driver), control_(control), window_(window), faults_(faults), compiler_(driver, device) {}

struct ModuleStore::Loading {
  std::uint64_t session = 0;
  PreparedImage prepared;
  ImageRef image;
  LoadDone done;
};

ImageRef ModuleStore::new_image(std::uint64_t id) {
  auto* created = new LoadedImage();
  created->image = id;
  return ImageRef(created, [this](LoadedImage* image) { unload(image); });
}

void ModuleStore::load(std::uint64_t session, std::uint64_t image, LoadDone done) {
  ImageRef known;
  {
    std::lock_guard lock(mutex_);
    if (const auto found = shared_.find(image); found != shared_.end()) known = found->second;
  }
  if (known) return done(CUDA_SUCCESS, known, {});
  const std::optional<proto::FileDescriptor> file = control_.fetch_image(image, kImageTimeoutMs);
  auto loading = std::make_shared<Loading>();
  loading->session = session;
  loading->done = std::move(done);
  if (!file) return loading->done(CUDA_ERROR_INVALID_HANDLE, nullptr, "the image is not known to the broker");
  std::string log;
  const CUresult result = compiler_.prepare(*file, loading->prepared, log);
  if (result != CUDA_SUCCESS) return loading->done(result, nullptr, std::move(log));
  loading->image = new_image(image);
  loading->image->has_writable_globals = loading->prepared.has_writable_globals;
  window_.submit({"cuModuleLoadData", session, false, [this, loading](WindowResult window) {
                    if (window == WindowResult::no_window) return loading->done(CUDA_ERROR_MPS_SERVER_NOT_READY, nullptr, {});
                    load_in_window(*loading);
                  }});
}

void ModuleStore::load_in_window(Loading& loading) {
  LoadedImage& image = *loading.image;
  if (!image.has_writable_globals) {  // another client's load of the same image may have come first
    std::lock_guard lock(mutex_);
    if (const auto found = shared_.find(image.image); found != shared_.end()) loading.image = found->second;
  }
  if (loading.image->handle != nullptr) return loading.done(CUDA_SUCCESS, loading.image, {});
  note_load(control_, loading.session, image.image, true);
  std::string log;
  const CUresult result = load_prepared(loading.prepared, image, log);
  if (result != CUDA_SUCCESS) return loading.done(result, nullptr, std::move(log));
  if (!image.has_writable_globals) {
    std::lock_guard lock(mutex_);
    shared_[image.image] = loading.image;
  }
  loading.done(CUDA_SUCCESS, loading.image, {});
}

CUresult ModuleStore::load_prepared(const PreparedImage& prepared, LoadedImage& image, std::string& log) {
  std::array<char, 4096> error_log{};
  std::array options{CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  std::array<void*, 2> values{error_log.data(), reinterpret_cast<void*>(error_log.size())};
  CUresult result = faults_.check(driver_->cuModuleLoadDataEx(&image.handle, prepared.content.data(), static_cast<unsigned>(options.size()),
                                                              options.data(), values.data()),
                                  0, "cuModuleLoadDataEx");
  if (result != CUDA_SUCCESS) {
    image.handle = nullptr;
    log.assign(error_log.data());
    return result;
  }
  unsigned count = 0;
  if (driver_->cuModuleGetFunctionCount(&count, image.handle) == CUDA_SUCCESS) image.function_count = count;
  look_up_all(driver_, image);
  return CUDA_SUCCESS;
}

// The last user is gone. Unloading waits for every running kernel, so it is left to a window; nobody waits for it.
void ModuleStore::unload(LoadedImage* image) {
  std::shared_ptr<LoadedImage> last(image);
  if (image->handle == nullptr) return;
  window_.submit({"cuModuleUnload", 0, true, [this, last](WindowResult) {
                    note_load(control_, 0, last->image, false);
                    faults_.check(driver_->cuModuleUnload(last->handle), 0, "cuModuleUnload");
                  }});
}

void ModuleStore::find_function(std::uint64_t session, const ImageRef& image, std::string name, FunctionDone done) {
  const LoadedFunction* known = nullptr;
  {
    std::lock_guard lock(image->mutex);
    if (const auto found = image->functions.find(name); found != image->functions.end()) known = found->second.get();
  }
  if (known != nullptr) return done(CUDA_SUCCESS, known);
  window_.submit({"cuModuleGetFunction", session, false, [this, image, session, name = std::move(name), done = std::move(done)](WindowResult window) {
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
  window_.submit({"cuModuleGetGlobal", session, false, [this, image, session, name = std::move(name), done = std::move(done)](WindowResult window) {
                    if (window == WindowResult::no_window) return done(CUDA_ERROR_MPS_SERVER_NOT_READY, 0, 0);
                    CUdeviceptr address = 0;
                    std::size_t size = 0;
                    const CUresult result = faults_.check(driver_->cuModuleGetGlobal_v2(&address, &size, image->handle, name.c_str()), session,
                                                          "cuModuleGetGlobal");
                    if (result == CUDA_SUCCESS) {
                      std::lock_guard lock(image->mutex);
                      image->globals[name] = {address, size};
                    }
                    done(result, address, size);
                  }});
}

void ModuleStore::list_functions(std::uint64_t session, const ImageRef& image, NamesDone done) {
  window_.submit({"cuModuleEnumerateFunctions", session, false, [this, image, session, done = std::move(done)](WindowResult window) {
                    std::vector<std::string> names;
                    if (window == WindowResult::no_window) return done(CUDA_ERROR_MPS_SERVER_NOT_READY, std::move(names));
                    const CUresult result = faults_.check(list_names(driver_, *image, names), session, "cuModuleEnumerateFunctions");
                    done(result, std::move(names));
                  }});
}

CUresult ModuleStore::replay(std::uint64_t id, const proto::FileDescriptor& file) {
  PreparedImage prepared;
  std::string log;
  CUresult result = compiler_.prepare(file, prepared, log);
  if (result != CUDA_SUCCESS) return result;
  const ImageRef image = new_image(id);
  image->has_writable_globals = prepared.has_writable_globals;
  result = load_prepared(prepared, *image, log);
  if (result != CUDA_SUCCESS) {
    log_error("Image {} could not be loaded again: {} {}", id, driver_.describe(result), log);
    return result;
  }
  std::lock_guard lock(mutex_);
  if (image->has_writable_globals) {
    replayed_.push_back(image);  // holds its place in the order of loads, so that later ones come back at their addresses
  } else {
    shared_[id] = image;
  }
  return CUDA_SUCCESS;
}

// At its place in the log, so that later loads find the addresses free that they found free before.
void ModuleStore::replay_unload(std::uint64_t image) {
  const auto loaded = std::find_if(replayed_.begin(), replayed_.end(), [&](const ImageRef& ref) { return ref->image == image; });
  if (loaded == replayed_.end()) return;
  faults_.check(driver_->cuModuleUnload(std::exchange((*loaded)->handle, nullptr)), 0, "cuModuleUnload");
  replayed_.erase(loaded);
}

}  // namespace mpsshim::broker
