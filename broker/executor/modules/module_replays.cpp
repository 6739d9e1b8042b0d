// SPDX-License-Identifier: Apache-2.0
// Copies of images that an earlier executor had: loaded again in its order, before the first session, and given back to the sessions whose
// variables they hold.
#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "broker/executor/link/fault.hpp"
#include "broker/executor/modules/module_store.hpp"
#include "broker/log.hpp"
#include "proto/trace.hpp"

namespace mpsshim::broker {

namespace {

bool is_same_place(const LoadedImage::Variable& a, const LoadedImage::Variable& b) { return a.address == b.address && a.size_bytes == b.size_bytes; }

// The load wrote the same there: no function or variable whose address is in it lies elsewhere.
bool is_alike_loaded(const LoadedImage::Variable& a, const LoadedImage::Variable& b) {
  return a.size_bytes == b.size_bytes && a.loaded_hash == b.loaded_hash;
}

// It holds what its load wrote, which nobody else can have seen. So it may stand as it is loaded now.
bool is_as_loaded(const LoadedImage::Variable& kept) { return !kept.is_looked_up && loaded_hash_of(kept.content) == kept.loaded_hash; }

// Code that was compiled as a whole has no addresses of functions, so variables that lie where they lay are all that its contents name. Of code that
// has none but in variables (tables of functions), memory can hold one only where a kernel took it out of such a variable and left it there.
bool has_its_functions(const LoadedImage& image, std::span<const LoadedImage::Variable> kept) {
  return !image.takes_code_addresses || std::ranges::equal(kept, image.variables, [&](const auto& before, const auto& now) {
    return is_alike_loaded(before, now) || (!image.code_takes_addresses && before.size_bytes == now.size_bytes && is_as_loaded(before));
  });
}

// Those that are to hold again what they held.
std::vector<LoadedImage::Variable> changed_of(const LoadedImage& image, std::span<const LoadedImage::Variable> kept) {
  std::vector<LoadedImage::Variable> changed;
  for (std::size_t i = 0; i < kept.size(); ++i) {
    if (!image.takes_code_addresses || is_alike_loaded(kept[i], image.variables[i])) changed.push_back(kept[i]);
  }
  return changed;
}

}  // namespace

// Every copy stays where it was loaded, so that later ones come back at their addresses; it serves clients to come like any other.
CUresult ModuleStore::replay(std::uint64_t id, std::uint64_t copy, std::uint64_t owner, const proto::FileDescriptor& file) {
  PreparedImage prepared;
  std::string log;
  ImageBytes compiled;
  ImageCompiler::Image asked{0, id, false, assertions_ != nullptr};
  CUresult result = compiler_.prepare_again(asked, file, prepared, compiled, log);
  if (result != CUDA_SUCCESS) return result;
  if (!compiled.empty()) tell_compiled(id, compiled);
  const ImageRef image = new_image(id, copy);
  if (!fill_assertions(id, prepared, image->assertions)) {
    asked.opens_assertions = false;
    if ((result = compiler_.prepare_again(asked, file, prepared, compiled, log)) != CUDA_SUCCESS) return result;
  }
  result = load_image(driver_, prepared, *image, log);
  if (result != CUDA_SUCCESS) {
    log_error("Image {} could not be loaded again: {} {}", id, driver_.describe(result), log);
    return result;
  }
  image->cost_bytes = cost_of(prepared, *image);
  log_info("Image {} loaded again{}", id, words_for_place(*image));
  std::lock_guard lock(mutex_);  // no eviction here: the log goes on
  total_bytes_ += image->cost_bytes;
  cache_.emplace(id, Cached{image, 0, true, ++uses_, image->has_writable_globals ? owner : 0});
  return CUDA_SUCCESS;
}

void ModuleStore::reserve(std::uint64_t image, std::uint64_t copy, std::uint64_t owner) {
  const std::lock_guard lock(mutex_);
  const auto [first, last] = cache_.equal_range(image);
  for (auto entry = first; entry != last; ++entry) {
    Cached& cached = entry->second;
    if (cached.image->copy == copy) cached.owner = cached.image->has_writable_globals ? owner : 0;
  }
}

bool ModuleStore::has_kept(std::span<const KeptVariable> table, std::span<const std::byte> contents) {
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::vector<LoadedImage::Variable>> copies;
  for (const KeptVariable& kept : table) {
    const std::span<const std::byte> content = contents_of(kept, contents);
    copies[{kept.image, kept.copy}].push_back(
        {kept.address, kept.size_bytes, {content.begin(), content.end()}, true, kept.loaded_hash, kept.is_looked_up != 0});
  }
  const std::lock_guard lock(mutex_);
  return std::ranges::all_of(copies, [&](const auto& copy) REQUIRES(mutex_) {
    const auto [first, last] = cache_.equal_range(copy.first.first);
    return std::any_of(first, last, [&](const auto& entry) {
      const LoadedImage& image = *entry.second.image;
      return image.copy == copy.first.second && std::ranges::equal(copy.second, image.variables, is_same_place) &&
             has_its_functions(image, copy.second);
    });
  });
}

// A session that goes to another executor and comes back has that copy here twice: the one it left, and one that was loaded for it again.
CUresult ModuleStore::take_kept(std::uint64_t session, std::uint64_t image, std::uint64_t copy, std::span<const LoadedImage::Variable> kept,
                                ImageUse& use) {
  const char* why = "no copy of that number";
  {
    const std::lock_guard lock(mutex_);
    const auto [first, last] = cache_.equal_range(image);
    for (auto entry = first; entry != last && !use; ++entry) {
      Cached& cached = entry->second;
      if (cached.image->copy != copy || cached.users != 0 || (cached.owner != 0 && cached.owner != session)) continue;
      why = "its variables at other addresses";
      if (!std::ranges::equal(kept, cached.image->variables, is_same_place)) continue;
      why = "functions at other addresses, which its variables hold";
      if (!has_its_functions(*cached.image, kept)) continue;
      cached.owner = 0;
      use = use_of(cached, session);
    }
  }
  if (!use) {
    log_error("Session {}: image {} has {}; its client is told", session, image, why);
    return CUDA_ERROR_MPS_SERVER_NOT_READY;
  }
  const CUresult result = restore(session, changed_of(**use, kept));
  if (result != CUDA_SUCCESS) use = nullptr;
  return result;
}

CUresult ModuleStore::put_elsewhere(std::uint64_t session, const LoadedImage& image, std::vector<LoadedImage::Variable> kept) {
  if (!std::ranges::equal(kept, image.variables, is_alike_loaded)) return CUDA_ERROR_MPS_SERVER_NOT_READY;
  for (std::size_t i = 0; i < kept.size(); ++i) kept[i].address = image.variables[i].address;
  return restore(session, kept);
}

CUresult ModuleStore::restore(std::uint64_t session, std::span<const LoadedImage::Variable> variables) {
  const std::lock_guard lock(restore_mutex_);
  const proto::trace::Span span("driver", "restoring variables", {"session", session}, {"pieces", variables.size()});
  CUresult result = CUDA_SUCCESS;
  if (restore_stream_ == nullptr) result = open();
  if (result == CUDA_SUCCESS) result = restore_variables(driver_, variables, restore_stream_);
  return faults_.check(result, session, "restoring a module's variables");
}

void ModuleStore::forget_owner(std::uint64_t session) {
  const std::lock_guard lock(mutex_);
  for (auto& [image, cached] : cache_) {
    if (cached.owner == session) cached.owner = 0;
  }
}

// At its place in the log, so that later loads find the addresses free that they found free before.
void ModuleStore::replay_unload(std::uint64_t image, std::uint64_t copy) {
  std::lock_guard lock(mutex_);
  const auto [first, last] = cache_.equal_range(image);
  const auto loaded = std::find_if(first, last, [&](const auto& cached) { return cached.second.image->copy == copy; });
  if (loaded == last) return;
  LoadedImage& gone = *loaded->second.image;
  total_bytes_ -= gone.cost_bytes;
  faults_.check(driver_->cuModuleUnload(std::exchange(gone.handle, nullptr)), 0, "cuModuleUnload");
  cache_.erase(loaded);
}

}  // namespace mpsshim::broker
