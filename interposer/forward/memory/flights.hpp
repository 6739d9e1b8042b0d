// SPDX-License-Identifier: Apache-2.0
// The pieces of one copy through staging memory that are under way, the oldest first. Lives as long as the call that copies, in its thread; the crew
// may have a piece in hand, and is waited for before the object goes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "interposer/forward/memory/copy_crew.hpp"
#include "interposer/forward/memory/staging_area.hpp"

namespace mpsshim::interposer::forward {

struct Flight {
  StagingPiece piece;
  std::size_t at = 0;
  std::uint32_t fence = 0;
  CopyTask task;
};

class Flights {
 public:
  static constexpr std::size_t kMost = 16;

  explicit Flights(CopyCrew& crew) : crew_(crew) {}
  Flights(const Flights&) = delete;
  // Nobody may read or write the caller's memory once its call has returned, whatever the reason.
  ~Flights() {
    for (; first_ != end_; ++first_) crew_.finish(front().task);
  }

  [[nodiscard]] std::size_t count() const { return end_ - first_; }
  [[nodiscard]] bool has_room() const { return count() < kMost; }
  Flight& push(const StagingPiece& piece, std::size_t at) {
    Flight& flight = flights_[end_++ % kMost];
    flight.piece = piece;
    flight.at = at;
    return flight;
  }
  [[nodiscard]] Flight& operator[](std::size_t index) { return flights_[(first_ + index) % kMost]; }
  [[nodiscard]] Flight& front() { return (*this)[0]; }
  void pop() { ++first_; }

 private:
  CopyCrew& crew_;
  std::array<Flight, kMost> flights_;
  std::size_t first_ = 0;
  std::size_t end_ = 0;
};

}  // namespace mpsshim::interposer::forward
