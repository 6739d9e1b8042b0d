// SPDX-License-Identifier: Apache-2.0
// Images loaded into the executor's context, kept for the next client. An image without variables is loaded once for all (equal content has
// one image id: the control process sees to that); of one with variables each client has a copy to itself, which gets back what the variables
// held at first before another client has it. Copies that nobody uses stay loaded until the cache exceeds its limit; the least recently used
// one goes first, in a quiet window.
// Loads, first look-ups and unloads wait for every running kernel, so they run in quiet windows; what is answered from memory does not.
// Every load and unload is noted with the control process before it is made: the next executor makes the same ones in the same order.
//
// Threads: load and look-up are called by helpers and may be slow; find_* may be called by workers; handles are read by workers.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "broker/executor/modules/loaded_image.hpp"
#include "broker/executor/modules/module_references.hpp"
#include "broker/kept_variables.hpp"
#include "proto/mutex.hpp"
#include "proto/segment.hpp"

namespace mpsshim::broker {

class ControlLink;
class FaultReporter;
class QuietWindow;

using ImageRef = std::shared_ptr<LoadedImage>;     // it stays loaded
using ImageUse = std::shared_ptr<const ImageRef>;  // a client uses it: a copy with variables is nobody else's

class ModuleStore {
 public:
  ModuleStore(const Driver& driver, ControlLink& control, QuietWindow& window, const FaultReporter& faults, CUdevice device, std::size_t limit_bytes);
  ModuleStore(const ModuleStore&) = delete;
  ~ModuleStore();  // unloads nothing: the context ends with the process

  [[nodiscard]] LinkerClient& linker() { return linker_; }

  // What it needs of the driver, made before any image is loaded.
  [[nodiscard]] CUresult open();

  using LoadDone = std::function<void(CUresult, ImageUse, std::string log)>;
  using FunctionDone = std::function<void(CUresult, const LoadedFunction*)>;
  using GlobalDone = std::function<void(CUresult, CUdeviceptr, std::size_t)>;
  using ReferenceDone = std::function<void(CUresult, const ReferenceHandle&, const proto::ReferenceLookupReply&)>;
  using NamesDone = std::function<void(CUresult, std::vector<std::string>)>;

  // For images that may assert, before any is loaded. Without it their assertions are the driver's affair.
  void set_assertions(Assertions& assertions) { assertions_ = &assertions; }
  [[nodiscard]] Assertions* assertions() { return assertions_; }

  // From memory, at once; nullptr where that is not possible.
  [[nodiscard]] ImageUse find(std::uint64_t image, std::uint64_t session = 0);
  [[nodiscard]] static const LoadedFunction* find_function(LoadedImage& image, std::string_view name);

  // Called with neither error nor image: the image has these __managed__ variables, and the client is to place them first.
  using NeedsPlaces = std::function<void(const std::vector<image::ManagedVariable>&)>;
  // All five may answer from the calling thread or, later, from the window's. `session` is for logs and the load log.
  // Without `needs_places` such an image is loaded as it is.
  // `has_objects`: ImageTarget's.
  void load(std::uint64_t session, std::uint64_t image, LoadDone done, const NeedsPlaces& needs_places, bool has_objects = false);
  void find_function(std::uint64_t session, const ImageRef& image, std::string name, FunctionDone done);
  void find_global(std::uint64_t session, const ImageRef& image, std::string name, GlobalDone done);
  // A texture or surface reference, and how it reads at first.
  void find_reference(std::uint64_t session, const ImageRef& image, std::string name, bool is_surface, ReferenceDone done);
  void list_functions(std::uint64_t session, const ImageRef& image, NamesDone done);
  // Loads again what an earlier executor had loaded, in its order; before the first session. `owner`: the session that had this copy then, and
  // is to have it again with its variables; 0: none.
  [[nodiscard]] CUresult replay(std::uint64_t image, std::uint64_t copy, std::uint64_t owner, const proto::FileDescriptor& file);
  // That copy, replayed before, has this owner.
  void reserve(std::uint64_t image, std::uint64_t copy, std::uint64_t owner);
  // That copy, its variables holding `kept` when this returns; by a helper. CUDA_ERROR_MPS_SERVER_NOT_READY: it is not there, or they have moved, or
  // functions have whose addresses they hold.
  [[nodiscard]] CUresult take_kept(std::uint64_t session, std::uint64_t image, std::uint64_t copy, std::span<const LoadedImage::Variable> kept,
                                   ImageUse& use);
  // The same in a copy that was loaded anew, whose variables lie elsewhere. CUDA_ERROR_MPS_SERVER_NOT_READY: it has others, or what they hold depends
  // on where things lie.
  [[nodiscard]] CUresult put_elsewhere(std::uint64_t session, const LoadedImage& image, std::vector<LoadedImage::Variable> kept);
  // Whether each copy in the table is here, its variables where they were, and functions whose addresses they hold.
  [[nodiscard]] bool has_kept(std::span<const KeptVariable> table, std::span<const std::byte> contents = {});
  // The owner does not come back: its copies are anybody's.
  void forget_owner(std::uint64_t session);
  void replay_unload(std::uint64_t image, std::uint64_t copy);

 private:
  struct Loading;
  struct Cached {
    ImageRef image;
    unsigned users = 0;
    bool is_clean = true;  // its variables hold what they held at first
    std::uint64_t last_used = 0;
    std::uint64_t owner = 0;  // the session it is reserved for
  };
  using Cache = std::multimap<std::uint64_t, Cached>;  // by image id; everything that is loaded

  [[nodiscard]] ImageRef new_image(std::uint64_t id, std::uint64_t copy);
  [[nodiscard]] CUresult prepare(const ImageCompiler::Image& image, PreparedImage& prepared, std::string& log);
  [[nodiscard]] CUresult prepare_here(const ImageCompiler::Image& image, const ImageBytes& bytes, PreparedImage& prepared, std::string& log);
  // Has the copy to be loaded tell of its assertions, where the image was opened for that.
  [[nodiscard]] bool fill_assertions(std::uint64_t image, PreparedImage& prepared, std::shared_ptr<const Assertions::Entry>& entry);
  void load_in_window(Loading& loading);
  [[nodiscard]] ImageUse take(std::uint64_t image, std::uint64_t session, bool only_clean, bool& is_clean) REQUIRES(mutex_);
  [[nodiscard]] ImageUse use_of(Cached& cached, std::uint64_t session) REQUIRES(mutex_);
  [[nodiscard]] ImageUse take_or_restore(std::uint64_t session, std::uint64_t image);
  [[nodiscard]] CUresult restore(std::uint64_t session, std::span<const LoadedImage::Variable> variables);
  [[nodiscard]] ImageUse insert(const ImageRef& image, std::uint64_t session);
  void give_back(const ImageRef& image);
  [[nodiscard]] Cache::iterator oldest_unused(bool has_entry) REQUIRES(mutex_);
  [[nodiscard]] ImageRef take_out(Cache::iterator unused) REQUIRES(mutex_);
  [[nodiscard]] std::vector<ImageRef> beyond_limit() REQUIRES(mutex_);
  [[nodiscard]] std::shared_ptr<const Assertions::Entry> take_entry();
  void unload(LoadedImage* image);
  void tell_compiled(std::uint64_t image, const ImageBytes& compiled);

  const Driver& driver_;
  ControlLink& control_;
  QuietWindow& window_;
  const FaultReporter& faults_;
  LinkerClient linker_;
  const ImageCompiler compiler_;
  const std::size_t limit_bytes_;
  Assertions* assertions_ = nullptr;
  Mutex mutex_;
  Cache cache_ GUARDED_BY(mutex_);
  std::size_t total_bytes_ GUARDED_BY(mutex_) = 0;
  std::uint64_t uses_ GUARDED_BY(mutex_) = 0;
  std::uint64_t next_copy_ GUARDED_BY(mutex_);
  Mutex restore_mutex_;
  CUstream restore_stream_ GUARDED_BY(restore_mutex_) = nullptr;
};

}  // namespace mpsshim::broker
