// SPDX-License-Identifier: Apache-2.0
// A session of this process with the broker, on one device: attached at the first call that needs the device, moved to the next executor when one is
// replaced, ended by the first fatal error. One object a session (ActingSession), never destroyed (calls arrive after destructors have run).
//
// Any thread. Errors are of two kinds. Sticky: the session is over; every later call gets the same error. Asynchronous: a post failed in the
// executor; the next call that may report it takes it, as CUDA does. The broker's answers are trusted, their sizes and layouts checked.
// Longer than other headers because what keeps a recipe is templates.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "gen/cuda_api.hpp"
#include "interposer/channel/channel.hpp"
#include "interposer/channel/fences.hpp"
#include "interposer/channel/known_images.hpp"
#include "interposer/channel/recipe_book.hpp"
#include "interposer/channel/wait.hpp"
#include "interposer/local/acting_session.hpp"
#include "interposer/local/devices.hpp"
#include "proto/client_requests.hpp"
#include "proto/mutex.hpp"
#include "proto/segment.hpp"

namespace mpsshim::interposer {

class Connection;

// To how much of that device's memory, in MiB, the environment holds this process (CUDA_MPS_PINNED_DEVICE_MEM_LIMIT); 0: it does not.
[[nodiscard]] std::uint32_t asked_memory_limit_mib(std::uint32_t broker_device);

class SessionClient final : private Channel::Guardian {
 public:
  [[nodiscard]] static SessionClient& instance();

  // Opens the session if there is none. CUDA_SUCCESS: the functions below may be used. One load once attached.
  [[nodiscard]] CUresult ensure_attached() {
    if (attached_.load(std::memory_order_acquire)) [[likely]]
      return sticky_.load(std::memory_order_relaxed);
    return attach();
  }
  [[nodiscard]] bool is_attached() const { return attached_.load(std::memory_order_acquire); }

  // Every later call of this process gets `error`: what it has not been given it must not compute without. The caller has told the user.
  CUresult give_up(CUresult error);
  // The same, where streams of the session will go no further: calls of other threads that wait for them end with it, too.
  void end_with(CUresult error);

  // The sticky error, else the asynchronous one, which is taken. Three loads where there is none.
  [[nodiscard]] CUresult take_error();
  // Of what has ended without a wait: the sticky error, where a kernel has failed by itself.
  [[nodiscard]] CUresult kernel_error() { return look_for_kernel_error(); }
  // ensure_attached and take_error: what a call that uses the device begins with.
  [[nodiscard]] CUresult begin_call() {
    if (const CUresult error = ensure_attached(); error != CUDA_SUCCESS) [[unlikely]]
      return error;
    return take_error();
  }
  // Writes what this process's kernels have printed to its standard output, or error, unless another thread is about to: then that is waited for.
  // What a call that has waited for the GPU ends with: two loads where there is nothing.
  void take_output() {
    const bool waits = header_.load(std::memory_order_acquire)->output_waiting.load(std::memory_order_acquire) != 0;
    // Second: the control process clears the word for a thread that has counted itself before it asked.
    if (waits || output_writers_.load(std::memory_order_acquire) != 0) [[unlikely]]
      write_output();
  }
  // Looks at the session's state without waiting, for queries that a program may repeat for ever. Recovers if the session has moved.
  [[nodiscard]] CUresult look();
  // For queries and waits of work, which may wait for work on another device: the process's other sessions that have moved go along. The calling
  // thread may be the only one there is. Not while a recovery is under way, or with the channel's lock.
  void follow_others() const override;
  [[nodiscard]] bool has_other_moved() const override;

  [[nodiscard]] Channel& channel() { return channel_; }
  [[nodiscard]] FenceMemory& fences() { return fences_; }
  // Guarded by the channel's lock: use inside a post's `fill`, where recipes are written and ended.
  [[nodiscard]] RecipeBook& recipes() { return recipes_; }
  void end_recipe(RecipeBook::Key key, Place place);

  // A call that makes what the next executor has to have as well. It is made again where the executor that answered, and so what it made, is gone
  // before the recipe is kept. `recipe_for(reply)` gives the recipe, or nothing where nothing was made. `answer` has all bytes, also of an error.
  template <typename Record, typename Reply, typename RecipeFor>
  [[nodiscard]] CUresult call_kept(const Record& record, std::span<const std::byte> trailing, Reply& reply, Answer& answer, RecipeBook::Key& key,
                                   RecipeFor&& recipe_for) {
    for (;;) {
      answer = Answer{};
      if (const CUresult error = channel_.call({}, record, trailing, reply, &answer); error != CUDA_SUCCESS) return error;
      std::optional<Recipe> recipe = recipe_for(reply);
      if (!recipe || keep_recipe(std::move(*recipe), answer, key)) return CUDA_SUCCESS;
    }
  }
  // The same where the record itself is the recipe.
  template <typename Record, typename Reply>
  [[nodiscard]] CUresult call_kept(const Record& record, std::span<const std::byte> trailing, Reply& reply, Answer& answer, RecipeBook::Key& key) {
    return call_kept(record, trailing, reply, answer, key, [&](const Reply&) { return recipe_of({}, record, 0, trailing); });
  }
  template <typename Record, typename Reply>
  [[nodiscard]] CUresult call_kept(const Record& record, std::span<const std::byte> trailing, Reply& reply, RecipeBook::Key& key) {
    Answer answer;
    return call_kept(record, trailing, reply, answer, key);
  }

  // Waits until fence word `index` has reached `target`.
  [[nodiscard]] CUresult wait_fence(std::uint32_t index, std::uint32_t target, const char* reason) {
    return wait_fence(index, target, reason, Wait::style_of_thread());
  }
  [[nodiscard]] CUresult wait_fence(std::uint32_t index, std::uint32_t target, const char* reason, WaitPlan plan);

  // For queries: whether the work in front of that fence has ended. Does not wait for the GPU.
  [[nodiscard]] bool has_ended(std::uint32_t index, std::uint32_t target);

  // Address ranges of this session, kept free in this process.
  [[nodiscard]] const proto::Lease& device_lease() const { return device_lease_; }
  [[nodiscard]] const proto::Lease& pinned_lease() const { return pinned_lease_; }

  // Makes an image known to the control process; `image` is the id that ModuleLoad uses. The same content is sent once; its id stays valid
  // for the life of the session, whichever executor serves it.
  [[nodiscard]] CUresult upload_image(std::span<const std::byte> content, std::uint64_t& image);
  // The same of an image that another session of this process has sent, whose content nobody has here any more: `told` is what told_by() says there.
  // CUDA_ERROR_INVALID_IMAGE: the control process does not have it.
  [[nodiscard]] CUresult adopt_image(const KnownImages::Told& told, std::uint64_t& image);
  [[nodiscard]] std::optional<KnownImages::Told> told_by(std::uint64_t image) { return known_images_.told_by(image); }
  [[nodiscard]] CUresult create_segment(proto::SegmentPurpose purpose, std::uint64_t size_bytes, std::uint64_t address, proto::FileDescriptor& file,
                                        std::uint64_t& segment);
  // A segment of events of another session; CUDA_ERROR_INVALID_HANDLE: there is none of that name (any more).
  [[nodiscard]] CUresult open_segment(const proto::MemoryName& name, std::uint64_t size_bytes, std::uint64_t address, proto::FileDescriptor& file,
                                      std::uint64_t& segment);
  [[nodiscard]] CUresult open_peer_segment(std::uint64_t address, std::uint64_t& segment);  // pinned memory of another one of this process

 private:
  // Keeps the recipe of a call that was answered. False: the executor that answered is gone and so is what it made.
  [[nodiscard]] bool keep_recipe(Recipe recipe, const Answer& answer, RecipeBook::Key& key);
  friend class Recovery;

  SessionClient();
  CUresult attach();
  CUresult attach_locked() REQUIRES(attach_mutex_);
  // One Attach: descriptors mapped, nothing published yet.
  CUresult request_link(proto::Attached& attached, std::shared_ptr<Link>& link, proto::FileDescriptor& fences);
  CUresult reserve(proto::Lease& lease, proto::Reservation& reservation);

  template <typename Request>
  CUresult request_segment(const Request& question, proto::FileDescriptor& file, std::uint64_t& segment);
  CUresult give_image(std::span<const std::byte> content, const proto::ImageOffer& offer, std::uint64_t& image);

  void write_output();
  CUresult recover(std::uint64_t epoch) override;
  CUresult fail(CUresult error) override;
  CUresult look_for_kernel_error() override { return fences_.has_kernel_error() ? fail_by_kernel() : CUDA_SUCCESS; }
  CUresult fail_by_kernel();
  void publish_header(proto::ChannelHeader& header) {
    header_.store(&header, std::memory_order_release);
    watch_thread_percentage(broker_ordinal(settle_session_device()), header.thread_percentage);
  }
  static bool has_hung_up(const void* self);
  [[nodiscard]] bool has_moved() const;

  const std::uint32_t index_ = ActingSession::index();
  std::atomic<bool> attached_{false};
  std::atomic<CUresult> sticky_{CUDA_SUCCESS};
  Mutex attach_mutex_;  // also held through a recovery: other threads wait for it here
  Channel channel_;
  FenceMemory fences_;
  RecipeBook recipes_;
  Mutex output_mutex_;  // pieces are written in their order
  std::atomic<unsigned> output_writers_{0};
  KnownImages known_images_;
  proto::Lease device_lease_;
  proto::Lease pinned_lease_;
  proto::Reservation device_reservation_ GUARDED_BY(attach_mutex_);
  proto::Reservation pinned_reservation_ GUARDED_BY(attach_mutex_);
  // The header of the link in use, for looks without the lock. Headers of earlier epochs stay mapped (kept_).
  std::atomic<proto::ChannelHeader*> header_{nullptr};
  std::vector<std::shared_ptr<Link>> kept_ GUARDED_BY(attach_mutex_);
};

}  // namespace mpsshim::interposer
