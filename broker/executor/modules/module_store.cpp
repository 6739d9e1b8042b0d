// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/modules/module_store.hpp"

#include <algorithm>
#include <chrono>
#include <random>
#include <utility>

#include <unistd.h>

#include "broker/compiler/prepared_file.hpp"
#include "broker/executor/link/control_link.hpp"
#include "broker/executor/link/fault.hpp"
#include "broker/executor/window/quiet_window.hpp"
#include "broker/log.hpp"

namespace mpsshim::broker {

namespace {

using Clock = std::chrono::steady_clock;

// Copies of this life; other lives', and other executors', may come here with their numbers.
std::uint64_t first_copy() { return (std::uint64_t{std::random_device{}()} << 32) + 1; }

constexpr unsigned kImageTimeoutMs = 300'000;  // the control process answers in any case; a user's other images may have to be read first

}  // namespace

ModuleStore::ModuleStore(const Driver& driver, ControlLink& control, QuietWindow& window, const FaultReporter& faults, CUdevice device,
                         std::size_t limit_bytes)
    : driver_(driver),
      control_(control),
      window_(window),
      faults_(faults),
      linker_(driver, control, faults),
      compiler_(driver, linker_, device),
      limit_bytes_(limit_bytes),
      next_copy_(first_copy()) {}

ModuleStore::~ModuleStore() {
  for (const auto& [id, cached] : cache_) cached.image->handle = nullptr;
}

CUresult ModuleStore::open() { return driver_->cuStreamCreate(&restore_stream_, CU_STREAM_NON_BLOCKING); }

struct ModuleStore::Loading {
  std::uint64_t session = 0;
  std::uint64_t image = 0;
  PreparedImage prepared;
  std::shared_ptr<const Assertions::Entry> assertions;
  LoadDone done;
};

ImageRef ModuleStore::new_image(std::uint64_t id, std::uint64_t copy) {
  auto* created = new LoadedImage();
  created->image = id;
  created->copy = copy;
  return ImageRef(created, [this](LoadedImage* image) { unload(image); });
}

ImageUse ModuleStore::use_of(Cached& cached, std::uint64_t session) {
  ++cached.users;
  if (cached.image->assertions) cached.image->assertions->assign(session);
  cached.last_used = ++uses_;
  if (cached.image->has_writable_globals) cached.is_clean = false;
  return ImageUse(new ImageRef(cached.image), [this](const ImageRef* used) {
    const std::unique_ptr<const ImageRef> ended(used);
    give_back(*ended);
  });
}

ImageUse ModuleStore::take(std::uint64_t image, std::uint64_t session, bool only_clean, bool& is_clean) {
  const auto [first, last] = cache_.equal_range(image);
  for (auto entry = first; entry != last; ++entry) {
    Cached& cached = entry->second;
    if (cached.image->has_managed) continue;
    if (cached.image->has_references && (cached.users != 0 || cached.owner != 0)) continue;
    if (cached.image->is_exclusive() && (cached.users != 0 || cached.owner != 0)) continue;
    if (cached.image->has_writable_globals && only_clean && !cached.is_clean) continue;
    is_clean = cached.is_clean;
    return use_of(cached, session);
  }
  return nullptr;
}

ImageUse ModuleStore::find(std::uint64_t image, std::uint64_t session) {
  bool is_clean = true;
  std::lock_guard lock(mutex_);
  return take(image, session, true, is_clean);
}

// A copy whose variables cannot be brought back is taken out, and another one is tried.
ImageUse ModuleStore::take_or_restore(std::uint64_t session, std::uint64_t image) {
  if (ImageUse clean = find(image, session)) return clean;
  bool is_clean = true;
  ImageUse use;
  {
    std::lock_guard lock(mutex_);
    use = take(image, session, false, is_clean);
  }
  if (!use || is_clean) return use;
  const CUresult result = restore(session, (*use)->variables);
  if (result == CUDA_SUCCESS) return use;
  log_error("Image {}: the variables of a copy could not be restored ({}); it is loaded again", image, driver_.describe(result));
  (*use)->can_be_restored = false;
  return nullptr;
}

// The last user of a copy. One that cannot serve anybody else goes.
void ModuleStore::give_back(const ImageRef& image) {
  ImageRef ended;  // unloaded outside the lock
  std::vector<ImageRef> evicted;
  std::lock_guard lock(mutex_);
  const auto [first, last] = cache_.equal_range(image->image);
  const auto entry = std::find_if(first, last, [&](const auto& cached) { return cached.second.image == image; });
  if (entry == last || --entry->second.users != 0) return;
  if (image->assertions) image->assertions->assign(0);
  if (image->has_references || (image->has_writable_globals && !image->can_be_restored)) {
    ended = take_out(entry);
    return;
  }
  evicted = beyond_limit();
}

ImageUse ModuleStore::insert(const ImageRef& image, std::uint64_t session) {
  std::vector<ImageRef> evicted;
  std::lock_guard lock(mutex_);
  total_bytes_ += image->cost_bytes;
  const auto entry = cache_.emplace(image->image, Cached{image, 0, true, ++uses_});
  ImageUse use = use_of(entry->second, session);
  evicted = beyond_limit();
  return use;
}

// The least recently used copy that nobody holds; `has_entry`: of those whose assertions are told of.
ModuleStore::Cache::iterator ModuleStore::oldest_unused(bool has_entry) {
  auto oldest = cache_.end();
  for (auto entry = cache_.begin(); entry != cache_.end(); ++entry) {
    const Cached& cached = entry->second;
    if (cached.users != 0 || cached.owner != 0 || cached.image.use_count() != 1) continue;
    if (has_entry && !cached.image->assertions) continue;
    if (oldest == cache_.end() || cached.last_used < oldest->second.last_used) oldest = entry;
  }
  return oldest;
}

// The caller lets go of it without the lock.
ImageRef ModuleStore::take_out(Cache::iterator unused) {
  ImageRef image = std::move(unused->second.image);
  total_bytes_ -= image->cost_bytes;
  cache_.erase(unused);
  return image;
}

std::vector<ImageRef> ModuleStore::beyond_limit() {
  std::vector<ImageRef> evicted;
  while (total_bytes_ > limit_bytes_) {
    const auto oldest = oldest_unused(false);
    if (oldest == cache_.end()) break;
    evicted.push_back(take_out(oldest));
  }
  return evicted;
}

// No kernel of an unused copy runs, and none will once it is taken out: where all entries are taken, its one is free.
std::shared_ptr<const Assertions::Entry> ModuleStore::take_entry() {
  if (assertions_ == nullptr) return nullptr;
  if (std::shared_ptr<const Assertions::Entry> free = assertions_->take()) return free;
  ImageRef evicted;  // ends behind the lock
  const std::lock_guard lock(mutex_);
  const auto oldest = oldest_unused(true);
  if (oldest == cache_.end()) return nullptr;
  evicted = take_out(oldest);
  return evicted->assertions;
}

void ModuleStore::load(std::uint64_t session, std::uint64_t image, LoadDone done, const NeedsPlaces& needs_places, bool has_objects) {
  if (ImageUse known = take_or_restore(session, image)) return done(CUDA_SUCCESS, std::move(known), {});
  auto loading = std::make_shared<Loading>();
  loading->session = session;
  loading->image = image;
  loading->done = std::move(done);
  std::string log;
  ImageCompiler::Image asked{session, image, has_objects, assertions_ != nullptr};
  CUresult result = prepare(asked, loading->prepared, log);
  if (result != CUDA_SUCCESS) return loading->done(result, nullptr, std::move(log));
  if (needs_places && !loading->prepared.managed.empty()) return needs_places(loading->prepared.managed);
  if (!fill_assertions(image, loading->prepared, loading->assertions)) {
    asked.opens_assertions = false;
    result = prepare(asked, loading->prepared, log);
    if (result != CUDA_SUCCESS) return loading->done(result, nullptr, std::move(log));
  }
  // Goes on in the window's thread (QuietWindow::run_jobs).
  window_.submit({.what = "cuModuleLoadData",
                  .session = session,
                  .run =
                      [this, loading](WindowResult window) {
                        if (window == WindowResult::no_window) return loading->done(CUDA_ERROR_MPS_SERVER_NOT_READY, nullptr, {});
                        load_in_window(*loading);
                      },
                  .image_bytes = loading->prepared.content.size()});
}

// Asked for twice where it is compiled: what came of it is an image to be read like any other.
CUresult ModuleStore::prepare(const ImageCompiler::Image& image, PreparedImage& prepared, std::string& log) {
  ImageBytes compiled;
  for (;;) {
    const ImageTarget target = compiler_.target(image.has_objects, image.opens_assertions);
    const ControlLink::FetchedImage fetched = control_.fetch_image(image.session, image.image, target, kImageTimeoutMs);
    log = fetched.log;
    if (fetched.status != CUDA_SUCCESS) return fetched.status;
    const ImageBytes bytes = map_sealed(fetched.image);
    if (bytes.empty()) return CUDA_ERROR_OUT_OF_MEMORY;
    if (!fetched.prepared.valid()) return prepare_here(image, bytes, prepared, log);
    Preparation preparation;
    const bool is_read = read_prepared(fetched.prepared, bytes, preparation);
    const bool is_nothing = preparation.status == CUDA_SUCCESS && preparation.image.content.empty() && preparation.image.inputs.empty();
    if (!is_read || is_nothing) {
      log = "what the process that reads images has made of it is not understood";
      return CUDA_ERROR_INVALID_IMAGE;
    }
    log = std::move(preparation.log);
    if (preparation.status != CUDA_SUCCESS) return preparation.status;
    prepared = std::move(preparation.image);
    if (prepared.inputs.empty() && !prepared.is_compiled_by_loading) return CUDA_SUCCESS;
    if (!compiled.empty()) return prepare_here({image.session, image.image, false, image.opens_assertions}, compiled, prepared, log);  // not kept
    bool is_machine_code = false;
    if (const CUresult result = compiler_.link(image, prepared, is_machine_code, log); result != CUDA_SUCCESS || !is_machine_code) return result;
    compiled = prepared.content;
    tell_compiled(image.image, compiled);
  }
}

// An image that nobody else has read.
CUresult ModuleStore::prepare_here(const ImageCompiler::Image& image, const ImageBytes& bytes, PreparedImage& prepared, std::string& log) {
  ImageBytes compiled;
  const CUresult result = compiler_.prepare(image, bytes, prepared, compiled, log);
  if (result == CUDA_SUCCESS && !compiled.empty()) tell_compiled(image.image, compiled);
  return result;
}

// False: it has to be prepared as it came, and then a failed assertion ends the context. Nobody is refused over it.
bool ModuleStore::fill_assertions(std::uint64_t image, PreparedImage& prepared, std::shared_ptr<const Assertions::Entry>& entry) {
  if (!prepared.why_assertions_fault.empty()) {
    log_info("Image {}: its kernels' failed assertions end the executor's context, as in NVIDIA's driver: {}", image, prepared.why_assertions_fault);
  }
  if (prepared.assertion_sites.empty()) return true;
  entry = take_entry();
  std::vector<std::byte> filled(prepared.content.bytes().begin(), prepared.content.bytes().end());
  if (entry && image::fill_assertions(filled, prepared.assertion_sites, entry->address())) {
    prepared.content = ImageBytes(std::move(filled));
    return true;
  }
  log_warning("Image {}: its kernels' failed assertions end the executor's context, as in NVIDIA's driver: {}", image,
              entry ? "what was made of it is not understood" : "the executor has so many such copies of images that no more can be told apart");
  entry = nullptr;
  return false;
}

void ModuleStore::load_in_window(Loading& loading) {
  // Another client's load of the same image may have come first, or a copy have been given back.
  if (ImageUse known = find(loading.image, loading.session)) return loading.done(CUDA_SUCCESS, std::move(known), {});
  const Clock::time_point start = Clock::now();
  ImageRef image;
  {
    std::lock_guard lock(mutex_);
    image = new_image(loading.image, next_copy_++);
  }
  image->assertions = std::move(loading.assertions);
  std::string log;
  const CUresult result = [&] {
    const std::uint32_t flags =
        (loading.prepared.has_writable_globals ? kLoadHasVariables : 0) | (loading.prepared.takes_code_addresses ? kLoadTakesCodeAddresses : 0);
    const auto in_order = control_.note(LogKind::load, image->image, image->copy, loading.session, flags);
    return faults_.check(load_image(driver_, loading.prepared, *image, log), 0, "cuModuleLoadDataEx");
  }();
  if (result != CUDA_SUCCESS) return loading.done(result, nullptr, std::move(log));
  image->cost_bytes = cost_of(loading.prepared, *image);
  log_info("Session {}: image {} of {} bytes loaded in {} us{}", loading.session, loading.image, loading.prepared.content.size(),
           std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start).count(), words_for_place(*image));
  loading.done(CUDA_SUCCESS, insert(image, loading.session), {});
}

// The next executor gets the machine code instead of the text.
void ModuleStore::tell_compiled(std::uint64_t image, const ImageBytes& compiled) {
  const proto::FileDescriptor file = proto::create_memory_file("mpsshim-cubin", compiled.size());
  const auto size = static_cast<ssize_t>(compiled.size());
  if (!file.valid() || pwrite(file.get(), compiled.data(), compiled.size(), 0) != size || !proto::seal(file, proto::Seal::content)) {
    return log_warning("What image {} was compiled to cannot be kept for the next executor; it will be compiled again. Free memory.", image);
  }
  control_.send({message::ImageCompiled{.image = image}, {.cubin = file.get()}});
}

// The last reference is gone. Unloading waits for every running kernel, so it is left to a window; nobody waits for it.
void ModuleStore::unload(LoadedImage* image) {
  std::shared_ptr<LoadedImage> last(image);
  if (image->handle == nullptr) return;
  window_.submit({.what = "cuModuleUnload", .deferrable = true, .run = [this, last](WindowResult) {
                    const auto in_order = control_.note(LogKind::unload, last->image, last->copy);
                    faults_.check(driver_->cuModuleUnload(last->handle), 0, "cuModuleUnload");
                    log_info("Image {} of {} bytes unloaded", last->image, last->cost_bytes);
                  }});
}

}  // namespace mpsshim::broker
