// SPDX-License-Identifier: Apache-2.0
// Module images: each content once, in a sealed memory file, and the order in which the executor loaded and unloaded them.
// A client opens an image, fills the file, and has it sealed; equal content then has one id for all (equal is what compares equal byte for
// byte; a hash only finds candidates). Sealing reads the content in slices, a slice a turn of the loop, so that a large image of one client
// does not hold up the others.
// An image lives as long as a session holds it or the load log names it: a new executor replays that log (addresses of module globals depend on
// the whole order, so nothing is struck from it; an application that loads and unloads without end lets it grow).
// Owned by SessionManager. Sizes and ids come from clients and are checked here.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include <cuda.h>

#include "broker/control/event_loop.hpp"
#include "proto/segment.hpp"

namespace mpsshim::broker::control {

inline constexpr std::uint64_t kMaxImageBytes = 4ull << 30;
inline constexpr std::size_t kMaxOpenImages = 64;  // of one session, not sealed yet

class ImageStore {
 public:
  using Sealed = std::function<void(CUresult status, std::uint64_t image)>;
  struct Entry {
    unsigned device = 0;
    std::uint64_t image = 0;
    bool load = true;  // false: unload
  };

  explicit ImageStore(EventLoop& loop) : loop_(loop) {}

  // Hands out the file to fill; it stays the store's. `file` is -1 on failure.
  [[nodiscard]] CUresult open(std::uint64_t session, std::uint64_t size_bytes, std::uint64_t& image, int& file);
  // Calls `done` once, now or in a later turn, unless the session is released before. The id is another one where the content was known.
  void seal(std::uint64_t session, std::uint64_t image, Sealed done);
  void release_session(std::uint64_t session);

  // For the executor, on behalf of a session (0: its own). -1 if there is no such sealed image or the session does not hold it.
  [[nodiscard]] int sealed_file(std::uint64_t session, std::uint64_t image, std::uint64_t& size_bytes) const;
  // False if there is no such image.
  [[nodiscard]] bool note(unsigned device, std::uint64_t image, bool load);
  [[nodiscard]] const std::vector<Entry>& log() const { return log_; }
  [[nodiscard]] std::size_t count() const { return images_.size(); }

 private:
  enum class State { open, sealing, sealed };
  struct Image {
    std::uint64_t size_bytes = 0;
    std::uint64_t hash = 0;
    State state = State::open;
    bool logged = false;
    proto::FileDescriptor file;
    std::set<std::uint64_t> sessions;
  };
  struct SealJob;

  void step(const std::shared_ptr<SealJob>& job);
  [[nodiscard]] CUresult hash_slice(SealJob& job, Image& image);
  [[nodiscard]] CUresult compare_slice(SealJob& job, const Image& image);
  void finish(SealJob& job, CUresult status, std::uint64_t image);
  void drop_if_unused(std::uint64_t image);

  EventLoop& loop_;
  std::uint64_t next_id_ = 1;
  std::map<std::uint64_t, Image> images_;
  std::vector<Entry> log_;
};

}  // namespace mpsshim::broker::control
