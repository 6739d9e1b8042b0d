// SPDX-License-Identifier: Apache-2.0
#include "interposer/channel/recipe_book.hpp"

#include <algorithm>

namespace mpsshim::interposer {

void RecipeBook::end(Key key, std::uint64_t position, std::uint64_t consumed) {
  const auto found = entries_.find(key);
  if (found == entries_.end()) return;
  found->second.ended = true;
  found->second.end_position = position;
  ended_.push_back(key);
  // Ends that have been read by now are over: the list stays as long as the ring is deep.
  const auto is_over = [&](Key candidate) {
    const auto entry = entries_.find(candidate);
    if (entry == entries_.end()) return true;
    if (entry->second.end_position >= consumed) return false;
    entries_.erase(entry);
    return true;
  };
  const auto first_live = std::find_if_not(ended_.begin(), ended_.end(), is_over);
  ended_.erase(ended_.begin(), first_live);
}

void RecipeBook::carry_over(const Link& old_link) {
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    Recipe& recipe = entry->second;
    if (recipe.ended && !old_link.was_carried(recipe.end_position)) {
      entry = entries_.erase(entry);
      continue;
    }
    if (recipe.ended) recipe.end_position = old_link.carried_to(recipe.end_position);
    if (old_link.was_carried(recipe.position)) recipe.position = old_link.carried_to(recipe.position);
    ++entry;
  }
  std::erase_if(ended_, [&](Key key) { return entries_.find(key) == entries_.end(); });
}

}  // namespace mpsshim::interposer
