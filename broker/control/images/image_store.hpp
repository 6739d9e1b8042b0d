// SPDX-License-Identifier: Apache-2.0
// Module images: each content once, in a sealed memory file, and the load log: the order in which each executor loaded and unloaded them and
// made what else takes device memory in between (LogKind).
// A client offers the digest of an image; where the content is not known yet it fills a file and has it sealed. Equal content then has one id
// for all: equal is what has the same size and digest (proto/content_hash.hpp), which is made here from the sealed content, never believed.
// Sealing reads the content in slices, a slice a turn of the loop, so that a large image of one client does not hold up the others.
// A client that offers the digest of a content it does not have may load that image, if it is of its own house (users who share executors:
// ExecutorId::user); what a session can do with a loaded image is to run it in its own memory. Users who share nothing have each content once each,
// so nobody learns by a digest what another user has loaded.
// Machine code that was compiled from an image is kept beside it, so that no later executor has to ask for it; beyond a limit the least recently used
// goes, of images that no load log names first.
// An image's id is a random number: who names it has been given it.
// An image lives as long as a session holds it or the log names it: an executor's next life replays it. Addresses of module variables
// depend on the whole order, so loads that were undone stay in it, up to a limit; beyond it they are struck, and a client whose
// variables then come back elsewhere is told so by the comparison that every recovery makes.
// Owned by SessionManager. Sizes and ids come from clients and are checked here.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include <cuda.h>
#include <sys/types.h>

#include "broker/control/base/event_loop.hpp"
#include "broker/control/base/executor_id.hpp"
#include "broker/control/base/handover.hpp"
#include "broker/control_messages.hpp"
#include "proto/content_hash.hpp"
#include "proto/segment.hpp"

namespace mpsshim::broker::control {

inline constexpr std::uint64_t kMaxImageBytes = 4ull << 30;
inline constexpr std::size_t kMaxOpenImages = 64;  // of one session, not sealed yet
inline constexpr std::uint64_t kMaxCompiledBytes = 256ull << 20;
inline constexpr std::size_t kMaxUndoneLoads = 4096;            // in the load log: seconds of loading, for who would else lose its session
inline constexpr std::size_t kMaxUndoneImages = 256;            // that nothing but undone loads keeps; each is a descriptor
inline constexpr std::uint64_t kMaxUndoneBytes = 256ull << 20;  // of those images
inline constexpr std::size_t kMaxLogEntries = 1u << 16;         // what goes beyond, addresses may move for

class ImageStore {
 public:
  using Sealed = std::function<void(CUresult status, std::uint64_t image)>;
  struct Entry {
    ExecutorId executor;
    LogKind kind = LogKind::load;
    std::uint64_t object = 0;  // an image, or what LogKind says
    std::uint64_t copy = 0;    // the executor's number for what it loaded: an image may be loaded more than once
    std::uint32_t flags = 0;   // of a load: kLoad...
    [[nodiscard]] bool is_of_image() const { return kind == LogKind::load || kind == LogKind::unload; }
  };

  explicit ImageStore(EventLoop& loop) : loop_(loop) {}

  // Hands out the file to fill; it stays the store's. `file` is -1 on failure.
  [[nodiscard]] CUresult open(std::uint64_t session, std::uint64_t size_bytes, std::uint64_t& image, int& file, uid_t house = kHome);
  // The same where the digest is known to the client. CUDA_SUCCESS and a `file` of -1: the content is known, the session holds the image now.
  [[nodiscard]] CUresult offer(std::uint64_t session, std::uint64_t size_bytes, const proto::ContentDigest& digest, std::uint64_t& image, int& file,
                               uid_t house = kHome);
  // Calls `done` once, now or in a later turn, unless the session is released before. The id is another one where the content was known.
  void seal(std::uint64_t session, std::uint64_t image, Sealed done);
  void release_session(std::uint64_t session);

  // For the executor, on behalf of a session (0: its own). -1 if there is no such sealed image or the session does not hold it.
  [[nodiscard]] int sealed_file(std::uint64_t session, std::uint64_t image, std::uint64_t& size_bytes) const;
  // False if there is no such image.
  [[nodiscard]] bool note(const Entry& entry);
  // What the executor of a device has compiled from the image: given out instead of the image from now on. The file's content is sealed.
  void keep_compiled(unsigned device, std::uint64_t image, proto::FileDescriptor file);
  [[nodiscard]] int compiled_file(unsigned device, std::uint64_t image);  // -1: none
  // What of an executor's log the next one is to make again, and no more. *Needed*: a load that some session may have an address in; everything
  // up to the last of these, in its order, whoever it was for, since addresses depend on all that came before. Behind it loads without variables
  // of images that a session holds, which would be asked for at once; the rest is made again when it is wanted.
  // `has_owner`: some session has that copy, with variables it is to have again; `is_held`: that image.
  struct Wanted {
    std::function<bool(const Entry&)> has_owner;
    std::function<bool(std::uint64_t image)> is_held;
  };
  // A new executor is to make these of another one first.
  void copy_log(ExecutorId from, ExecutorId to, const Wanted& wanted);
  // The executor's next life begins: the rest leaves the log. Returns how many entries that are.
  std::size_t shorten(ExecutorId executor, const Wanted& wanted);
  [[nodiscard]] bool is_held(std::uint64_t image, std::uint64_t session) const;
  [[nodiscard]] bool is_held(std::uint64_t image) const;  // by anybody
  [[nodiscard]] bool has_log(ExecutorId executor) const;
  // The executor is gone for good; a later one of the same number begins with nothing.
  void forget_log(ExecutorId executor);
  [[nodiscard]] const std::vector<Entry>& log() const { return log_; }
  [[nodiscard]] std::size_t count() const { return images_.size(); }
  [[nodiscard]] bool is_sealing() const;  // some answer is still to come
  // While somebody is being told the log entry by entry (a standby), it is not shortened.
  void keep_undone(bool keeps) { keeps_undone_ = keeps; }
  // So many loads in the log were undone, or keep so many images, that it is shortened at the next unload, or end of a session, unless they are kept.
  [[nodiscard]] bool has_too_much_undone() const;
  void save(StateWriter& state) const;
  void restore(StateReader& state);  // into a new store
  [[nodiscard]] std::uint64_t total_bytes() const { return total_bytes_; }
  struct Holding {
    std::size_t count = 0;
    std::uint64_t bytes = 0;
  };
  [[nodiscard]] Holding held_by(std::uint64_t session) const;

 private:
  enum class State { open, sealing, sealed };
  struct Image {
    std::uint64_t size_bytes = 0;
    proto::ContentDigest digest{};
    uid_t house = kHome;
    State state = State::open;
    std::size_t log_entries = 0;
    std::int64_t loaded = 0;  // loads in the log less unloads
    proto::FileDescriptor file;
    std::set<std::uint64_t> sessions;
  };
  struct SealJob;

  void step(const std::shared_ptr<SealJob>& job);
  [[nodiscard]] CUresult hash_slice(SealJob& job, const Image& image);
  void finish(SealJob& job, CUresult status, std::uint64_t image);
  void erase(std::map<std::uint64_t, Image>::iterator image);
  void struck(const Entry& entry);  // an entry that has left the log
  [[nodiscard]] std::vector<bool> select(ExecutorId executor, const Wanted& wanted) const;  // by place in the log
  void remove_from_log(const std::vector<bool>& stays);
  void drop_if_unused(std::uint64_t image);
  void hold(Image& image, std::uint64_t session);
  [[nodiscard]] std::uint64_t new_id() const;
  [[nodiscard]] Holding undone_images() const;
  void strike_undone();  // where there are too many

  EventLoop& loop_;
  std::uint64_t total_bytes_ = 0;
  std::map<std::uint64_t, Holding> holdings_;  // by session
  std::map<std::uint64_t, Image> images_;
  struct Identity {
    uid_t house = kHome;
    std::uint64_t size_bytes = 0;
    proto::ContentDigest digest{};
    auto operator<=>(const Identity&) const = default;
  };
  [[nodiscard]] static Identity identity_of(const Image& image) { return {image.house, image.size_bytes, image.digest}; }
  std::map<Identity, std::uint64_t> known_;  // sealed images
  struct Compiled {
    unsigned device = 0;
    std::uint64_t image = 0;
    std::uint64_t size_bytes = 0;
    proto::FileDescriptor file;
  };
  std::list<Compiled> compiled_;  // the last used one in front
  std::vector<Entry> log_;
  std::size_t undone_ = 0;  // unloads in the log
  bool keeps_undone_ = false;
};

}  // namespace mpsshim::broker::control
