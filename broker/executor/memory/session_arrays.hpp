// SPDX-License-Identifier: Apache-2.0
// The arrays, textures and surfaces of a session: which id is which driver object, and their end. Arrays are memory of the driver's own, at no
// address, so what they hold cannot be kept for another executor; a session that has some does not move.
//
// The driver's array ends with the last that uses it, whatever the client has destroyed: its levels and planes, textures and surfaces, and jobs
// that were given it hold it (ArrayHold). Streams' work is awaited by who retires. What nobody holds any more is gathered, and a window ends it.
//
// Touched by the session's worker, and by the window that takes the session down; holds are let go by the worker or in windows. Textures are known
// to kernels by the driver's handle, which is therefore the client's; it is checked against the session's own before it is given to the driver.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "broker/driver/driver.hpp"
#include "broker/executor/link/device_grant.hpp"
#include "broker/executor/memory/external_memory.hpp"
#include "proto/handle_table.hpp"
#include "proto/ids.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::broker {

using ArrayHold = std::shared_ptr<const void>;

struct SessionArray {
  CUarray array = nullptr;
  CUmipmappedArray mipmapped = nullptr;            // the one or the other
  ImportedMemoryRef external{};                    // that it is mapped onto, until own(): ends after it
  std::optional<CUDA_ARRAY3D_DESCRIPTOR> shape{};  // an array's, as the driver tells it
  ArrayHold hold{};                                // of the driver's array, a part's of its parent's; null: nobody's to destroy
  bool is_part = false;                            // a level or a plane: ends with its parent
  std::vector<proto::ArrayId> parts{};             // found in it
};

class SessionArrays {
 public:
  static constexpr std::size_t kMostArrays = 4'096;
  static constexpr std::size_t kMostSamplers = 16'384;

  explicit SessionArrays(const Driver& driver) : driver_(driver) {}
  SessionArrays(const SessionArrays&) = delete;
  ~SessionArrays();  // asks nothing of the driver: release_all() does

  using Table = proto::HandleTable<proto::HandleKind::array, SessionArray>;
  [[nodiscard]] Table& table() { return table_; }
  // False: the id is in use.
  [[nodiscard]] bool add(proto::ArrayId id, const SessionArray& array);
  // For an array that the driver has just made, which is no part. Any thread. `grant`: for its memory, where that is the device's.
  void own(SessionArray& made, DeviceGrant grant = {});

  // Out of the table, its parts and theirs too; held until let_go(), once no stream uses it any more. Texture and surface are destroyed with that.
  using Ticket = std::uint64_t;
  [[nodiscard]] Ticket retire(proto::ArrayId id);
  [[nodiscard]] Ticket retire_sampler(std::uint64_t handle, bool is_surface);
  void let_go(Ticket ticket);
  [[nodiscard]] bool is_leaving() const { return !leaving_arrays_.empty() || has_job || has_ended(); }
  // What nobody holds any more. destroy_ended(): in a window.
  [[nodiscard]] bool has_ended() const { return has_ended_.load(std::memory_order_relaxed); }
  void destroy_ended();
  bool has_job = false;  // a window for them is asked for
  [[nodiscard]] bool holds_any() const { return arrays_ != 0; }
  // Kernels know them by the driver's handles, which another executor has given away already, perhaps.
  [[nodiscard]] bool holds_samplers() const { return !textures_.empty() || !surfaces_.empty(); }
  [[nodiscard]] bool has_room() const { return arrays_ < kMostArrays; }

  // Textures and surfaces count in one number space each. By handle: what they read; null: linear memory.
  using Samplers = std::map<std::uint64_t, ArrayHold>;
  [[nodiscard]] Samplers& samplers(bool are_surfaces) { return are_surfaces ? surfaces_ : textures_; }

  void release_all();

 private:
  // What the driver has: one of the four.
  struct Object {
    CUarray array = nullptr;
    CUmipmappedArray mipmapped = nullptr;
    ImportedMemoryRef external;
    std::uint64_t texture = 0;
    std::uint64_t surface = 0;
    ArrayHold read;  // by the texture or surface: ends after it
    std::shared_ptr<const DeviceGrant> grant{};
  };
  void end(const Object& object);

  const Driver& driver_;
  std::map<Ticket, ArrayHold> leaving_arrays_;
  std::map<Ticket, Object> leaving_samplers_;
  Ticket last_ticket_ = 0;
  Mutex mutex_;  // ended_
  std::vector<Object> ended_ GUARDED_BY(mutex_);
  std::atomic<bool> has_ended_{false};
  Table table_;
  std::size_t arrays_ = 0;
  Samplers textures_;
  Samplers surfaces_;
};

}  // namespace mpsshim::broker
