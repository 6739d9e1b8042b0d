// SPDX-License-Identifier: Apache-2.0
// The arrows of a stream's queued work in the timeline (proto/post_arrow.hpp): noted as it is queued, drawn as the driver has been given it. Without
// a timeline there are none. Owned by a StreamQueue (StreamNotes).
// The session's worker; draw_aside() is the quiet window's thread, while the queue stands still.
#pragma once

#include <cstdint>
#include <list>
#include <optional>

#include "broker/executor/base/progress.hpp"
#include "proto/trace.hpp"

namespace mpsshim::broker {

class PostArrows {
 public:
  // Of the operation at `position`, the last one that was queued.
  void note(std::uint32_t position, std::uint64_t number) { queued_.push_back({position, number}); }
  // Nothing of what is queued will be handed over.
  void forget() { queued_.clear(); }

  // Everything up to `position` has been handed over. Called inside the event that did it, so that the arrows end there.
  void draw(std::uint32_t position) {
    for (; is_first_by(position); queued_.pop_front()) proto::trace::arrow_head(queued_.front().number);
  }
  // The same of one that another thread will hand over.
  void set_aside(std::uint32_t position) {
    while (is_first_by(position)) aside_.splice(aside_.end(), queued_, queued_.begin());
  }
  void draw_aside() {
    for (const Arrow& arrow : aside_) proto::trace::arrow_head(arrow.number);
    aside_.clear();
  }

 private:
  struct Arrow {
    std::uint32_t position = 0;
    std::uint64_t number = 0;
  };

  [[nodiscard]] bool is_first_by(std::uint32_t position) const { return !queued_.empty() && progress_reached(position, queued_.front().position); }

  std::list<Arrow> queued_;  // an empty list has no memory of its own
  std::list<Arrow> aside_;
};

// In the scope of a ScopedCall that hands over all up to `position`, or what was set aside: at its end their arrows are drawn.
class DrawnArrows {
 public:
  DrawnArrows(PostArrows& arrows, std::optional<std::uint32_t> position) : arrows_(arrows), position_(position) {}
  DrawnArrows(const DrawnArrows&) = delete;
  DrawnArrows& operator=(const DrawnArrows&) = delete;
  ~DrawnArrows() {
    if (!proto::trace::enabled()) [[likely]]
      return;
    position_ ? arrows_.draw(*position_) : arrows_.draw_aside();
  }

 private:
  PostArrows& arrows_;
  const std::optional<std::uint32_t> position_;
};

}  // namespace mpsshim::broker
