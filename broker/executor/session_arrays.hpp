// SPDX-License-Identifier: Apache-2.0
// The arrays, textures and surfaces of a session: which id is which driver object, and their end. Arrays are memory of the driver's own, at no
// address, so what they hold cannot be kept for another executor; a session that has some does not move.
//
// Touched by the session's worker, and by the window that takes the session down. Textures are known to kernels by the driver's handle, which
// is therefore the client's; it is checked against the session's own before it is given to the driver.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "broker/driver/driver.hpp"
#include "broker/executor/external_memory.hpp"
#include "proto/handle_table.hpp"
#include "proto/ids.hpp"

namespace mpsshim::broker {

struct SessionArray {
  CUarray array = nullptr;
  CUmipmappedArray mipmapped = nullptr;            // the one or the other
  ImportedMemoryRef external{};                    // that it is mapped onto: ends after it
  std::optional<CUDA_ARRAY3D_DESCRIPTOR> shape{};  // an array's, as the driver tells it
  bool is_part = false;                            // a level or a plane: ends with its parent
  std::vector<proto::ArrayId> parts;               // found in it
};

class SessionArrays {
 public:
  static constexpr std::size_t kMostArrays = 4'096;
  static constexpr std::size_t kMostSamplers = 16'384;

  explicit SessionArrays(const Driver& driver) : driver_(driver) {}
  SessionArrays(const SessionArrays&) = delete;

  using Table = proto::HandleTable<proto::HandleKind::array, SessionArray>;
  [[nodiscard]] Table& table() { return table_; }
  // False: the id is in use.
  [[nodiscard]] bool add(proto::ArrayId id, const SessionArray& array);
  // Out of the table, its parts too. What is named by the ticket is destroyed by destroy(), in a window once nothing uses it, or with the rest.
  using Ticket = std::uint64_t;
  [[nodiscard]] Ticket retire(proto::ArrayId id);
  [[nodiscard]] Ticket retire(const SessionArray& array);  // one that never was in the table
  [[nodiscard]] Ticket retire_sampler(std::uint64_t handle, bool is_surface);
  void destroy(Ticket ticket);
  [[nodiscard]] bool holds_any() const { return arrays_ != 0; }
  // Kernels know them by the driver's handles, which another executor has given away already, perhaps.
  [[nodiscard]] bool holds_samplers() const { return !textures_.empty() || !surfaces_.empty(); }
  [[nodiscard]] bool has_room() const { return arrays_ < kMostArrays; }

  // Textures and surfaces count in one number space each.
  [[nodiscard]] std::set<std::uint64_t>& samplers(bool are_surfaces) { return are_surfaces ? surfaces_ : textures_; }

  void release_all();

 private:
  struct Leaving {
    SessionArray array;
    std::uint64_t texture = 0;
    std::uint64_t surface = 0;
  };
  [[nodiscard]] Ticket leave(const Leaving& leaving);
  void destroy(const Leaving& leaving) const;

  const Driver& driver_;
  std::mutex mutex_;  // leaving_: windows end what the worker has retired
  std::map<Ticket, Leaving> leaving_;
  Ticket last_ticket_ = 0;
  Table table_;
  std::size_t arrays_ = 0;
  std::set<std::uint64_t> textures_;
  std::set<std::uint64_t> surfaces_;
};

}  // namespace mpsshim::broker
