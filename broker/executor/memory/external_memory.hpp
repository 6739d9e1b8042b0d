// SPDX-License-Identifier: Apache-2.0
// Memory of other interfaces that a session has imported (CUDA's external memory), and the buffers mapped of it. The driver chooses their
// addresses; such a range is the session's own, and nobody else's but who has mapped the same memory, from map() to forget(). What it holds is
// whoever's has exported it, and cannot be had again by another executor: a session that has some does not move.
//
// The driver's object ends with the last thing mapped of it, whatever the client has destroyed: work under way must not lose its memory, since that
// would bring down the context of everybody. Owned by MemoryMap. Thread safe; one lock, not held while the driver is called. Ids, offsets and sizes
// come from the client: CheckedMemory makes parts of them. The descriptor was looked at by the control process.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "broker/driver/driver.hpp"
#include "proto/ids.hpp"
#include "proto/mutex.hpp"
#include "proto/segment.hpp"

namespace mpsshim::broker {

class CheckedExternalBuffer;
class MemoryMap;

// One object of the driver's. The last to let go of it does so in a quiet window.
class ImportedMemory {
 public:
  // With a descriptor claimed from `map`, which it gives back at its end.
  ImportedMemory(const Driver& driver, MemoryMap& map, CUexternalMemory handle, std::uint64_t size_bytes, std::shared_ptr<const void> piece)
      : driver_(driver), map_(map), handle_(handle), size_bytes_(size_bytes), piece_(std::move(piece)) {}
  ImportedMemory(const ImportedMemory&) = delete;
  ~ImportedMemory();

  [[nodiscard]] CUexternalMemory handle() const { return handle_; }
  [[nodiscard]] std::uint64_t size_bytes() const { return size_bytes_; }

 private:
  const Driver& driver_;
  MemoryMap& map_;
  const CUexternalMemory handle_;
  const std::uint64_t size_bytes_;
  const std::shared_ptr<const void> piece_;
};
using ImportedMemoryRef = std::shared_ptr<const ImportedMemory>;

class ExternalMemory {
 public:
  // Of one session.
  static constexpr std::size_t kMostImports = 1'024;
  static constexpr std::size_t kMostBuffers = 1'024;  // holds() looks at each

  ExternalMemory(const Driver& driver, MemoryMap& map) : driver_(driver), map_(map) {}
  ExternalMemory(const ExternalMemory&) = delete;

  struct Request {
    std::uint64_t size_bytes = 0;
    std::uint64_t announced_bytes = 0;  // what there is, as the control process has found it
    std::uint32_t handle_type = 0;      // CUexternalMemoryHandleType
    std::uint32_t flags = 0;
    std::shared_ptr<const void> piece{};  // goes with the driver's object
  };
  // The descriptor is the driver's from then on where that answers CUDA_SUCCESS.
  [[nodiscard]] CUresult import(proto::ExternalMemoryId id, const Request& request, proto::FileDescriptor descriptor);
  [[nodiscard]] ImportedMemoryRef find(proto::ExternalMemoryId id) const;  // null: there is none
  [[nodiscard]] CUresult map(const CheckedExternalBuffer& part, std::uint64_t& address);

  // What the client has given up is refused at once, and ended by release(), in a window once nothing uses it. 0: there is no such thing.
  using Ticket = std::uint64_t;
  [[nodiscard]] Ticket forget(std::uint64_t address);
  [[nodiscard]] Ticket retire(proto::ExternalMemoryId id);
  [[nodiscard]] CUresult release(Ticket ticket);

  [[nodiscard]] bool holds(std::uint64_t address, std::uint64_t size_bytes) const;
  [[nodiscard]] bool holds_any() const;
  [[nodiscard]] std::uint64_t losses() const { return losses_; }  // counts forget()
  // In a quiet window, when the session has ended.
  void release_all();

 private:
  struct Buffer {
    std::uint64_t address = 0;  // 0: no buffer, but what an id meant
    std::uint64_t size_bytes = 0;
    ImportedMemoryRef memory;
  };
  [[nodiscard]] Ticket leave(Buffer buffer) REQUIRES(mutex_);
  [[nodiscard]] CUresult end(const Buffer& buffer) const;

  const Driver& driver_;
  MemoryMap& map_;
  mutable Mutex mutex_;
  std::map<std::uint64_t, ImportedMemoryRef> imports_ GUARDED_BY(mutex_);  // by id
  std::multimap<std::uint64_t, Buffer> buffers_ GUARDED_BY(mutex_);        // by address: the driver may give what overlaps the same one
  std::map<Ticket, Buffer> leaving_ GUARDED_BY(mutex_);
  Ticket last_ticket_ GUARDED_BY(mutex_) = 0;
  std::atomic<std::uint64_t> losses_{0};
};

}  // namespace mpsshim::broker
