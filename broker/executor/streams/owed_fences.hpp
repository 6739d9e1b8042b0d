// SPDX-License-Identifier: Apache-2.0
// Fences of a stream's event records that nobody has been told to write yet (docs/execution.md, "Owed fences"). Each write of words holds the stream
// up for some 3 us, and most events are only waited for by other streams, on the GPU. So where the GPU is behind with a stream whose client does not
// look for such fences the next words that are written anyway bring them; whom that is too late for asks, and the worker asks the driver's event. The
// stream's worker alone. What the client says in the word decides when something is looked at, and nothing else.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "broker/driver/driver.hpp"
#include "broker/executor/base/event_pool.hpp"
#include "proto/channel.hpp"

namespace mpsshim::broker {

class OwedFences {
 public:
  explicit OwedFences(proto::FenceWord& word);

  // A record's turn has come: learns whether the client has asked about events since the last one.
  void note_record();
  // There have been many records, and the client, which can ask about them, has not.
  [[nodiscard]] bool is_usual() const { return eager_ == 0 && last_asks_ != 0; }
  [[nodiscard]] bool may_owe(std::uint32_t value) const { return is_usual() && !is_wanted(value); }
  // From before the record is issued until its words are; it is behind all others.
  void announce(std::uint32_t value) { word_.owed.store(value, std::memory_order_relaxed); }
  // Issued. False: the client has begun to look for it meanwhile, and may not have seen that it is owed.
  [[nodiscard]] bool add(std::uint32_t position, std::uint32_t value, PointRef point);

  // What the next words are to tell; none: no fence.
  [[nodiscard]] std::optional<std::uint32_t> untold() const { return untold_ > 0 ? std::optional(owed_.back().value) : std::nullopt; }
  void note_told() { untold_ = 0; }

  [[nodiscard]] bool is_empty() const { return owed_.empty(); }
  // Forgets what words have brought: has_completed(position).
  template <typename HasCompleted>
  void settle(HasCompleted has_completed) {
    while (!owed_.empty() && has_completed(owed_.front().position)) pop();
  }
  // Somebody looks for one of them.
  [[nodiscard]] bool is_any_wanted() const;
  // Writes those whose work has ended by the driver's events, and answers. The driver's error, if it has one.
  [[nodiscard]] CUresult look(const Driver& driver);

 private:
  struct Owed {
    std::uint32_t position = 0;
    std::uint32_t value = 0;
    PointRef point;
  };

  static constexpr unsigned kEagerRecords = 32;  // behind an ask, and at first
  static constexpr unsigned kMostLooks = 16;     // a turn

  [[nodiscard]] bool is_wanted(std::uint32_t value) const;
  void pop();

  proto::FenceWord& word_;
  std::deque<Owed> owed_;
  std::size_t untold_ = 0;  // so many at the back
  unsigned eager_ = kEagerRecords;
  std::uint32_t last_asks_;
  std::uint32_t answered_;
};

// `value` or what is behind it already: the GPU may write the word at the same time.
void raise_fence(proto::FenceWord& word, std::uint32_t value);

}  // namespace mpsshim::broker
