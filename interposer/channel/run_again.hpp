// SPDX-License-Identifier: Apache-2.0
// What a session on trial had launched, as its old ring still has it, run again in an executor where nobody else is (docs/recovery.md, "Trials").
// Launches alone, in the order they were posted, one stream: copies are checked and cannot fault, and what was copied in front of a kernel that began
// is in memory. Used by recovery's one thread while nobody writes records.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "interposer/channel/fences.hpp"
#include "interposer/channel/link.hpp"
#include "interposer/channel/recipe_book.hpp"
#include "interposer/channel/wait.hpp"

namespace mpsshim::interposer {

// Positions of launches in the old ring that the executor had read and that no fence says have ended, oldest first. `fences` are those of the old
// link.
[[nodiscard]] std::vector<std::uint64_t> find_launches_in_flight(Link& old_link, std::uint64_t consumed, const FenceMemory& fences);

struct RunAgain {
  WaitEnd end = WaitEnd::ready;
  std::uint32_t launches = 0;  // that were posted
  bool has_ended = false;      // all of them have
};
// What of a session's objects these launches need: a program has hundreds of modules, and loading them all takes longer than a client waits.
class NeededRecipes {
 public:
  NeededRecipes(const std::vector<std::uint64_t>& launches, const Link& old_link, const RecipeBook::Entries& recipes);
  [[nodiscard]] bool contains(const Recipe& recipe) const;

 private:
  template <typename Record>
  void note_module(const Recipe& recipe);

  bool are_all_ = false;  // a graph may need any
  std::set<std::uint64_t> functions_, modules_, references_;
};

// WaitEnd::ready: they have ended, or run on after the time that the slowest fault takes to be told of. `fences` are those of the next link.
[[nodiscard]] RunAgain run_again(const std::vector<std::uint64_t>& launches, Link& old_link, Link& next_link, const FenceMemory& fences,
                                 PeerWatch peer);

}  // namespace mpsshim::interposer
