// SPDX-License-Identifier: Apache-2.0
// What to post to a new executor so that this process has its objects again: the records that made them, byte for byte, with the answers
// they got. A new executor must give the same answers, since the application has seen them (layouts, addresses).
//
// Order is the order of creation. Guarded by the channel's lock: an entry is written in the very moment its record is, so that recovery,
// which stops all writing first, finds each object either here or among the records that the old executor had not read yet.
// An object whose end has been posted but not read yet is still needed by records in between: its recipe is kept until then.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "gen/records.hpp"
#include "interposer/channel/link.hpp"
#include "proto/record.hpp"

namespace mpsshim::interposer {

struct Recipe {
  proto::RecordId id{};
  proto::StreamId stream;
  std::vector<std::byte> body;
  std::vector<std::byte> trailing;
  bool is_call = false;
  bool has_contents = false;              // the executor puts back what the object held, or answers that it is gone
  std::vector<std::byte> expected_reply;  // of a call
  std::uint64_t position = 0;             // of the record that made the object, in the current epoch
  bool ended = false;
  std::uint64_t end_position = 0;  // of the record that ends it
};

class RecipeBook {
 public:
  using Key = std::uint64_t;  // 0: none
  using Entries = std::map<Key, Recipe>;

  Key add(Recipe recipe) {
    entries_.emplace(++last_key_, std::move(recipe));
    return last_key_;
  }
  // The object's end is posted at `position`; `consumed` is how far the executor has read.
  void end(Key key, std::uint64_t position, std::uint64_t consumed);
  // The object ended without a record of its own (a function with its module).
  void forget(Key key) { entries_.erase(key); }
  // True if a new executor needs the recipe, given how far the old one had read.
  [[nodiscard]] static bool is_needed(const Recipe& recipe, std::uint64_t consumed) {
    return recipe.position < consumed && !(recipe.ended && recipe.end_position < consumed);
  }
  // After recovery: positions of what was carried over are those of the next link. Posted recipes have had theirs set.
  void carry_over(const Link& old_link);

  [[nodiscard]] Entries& entries() { return entries_; }
  [[nodiscard]] Recipe* find(Key key) {
    const auto found = entries_.find(key);
    return found == entries_.end() ? nullptr : &found->second;
  }

 private:
  Entries entries_;
  std::vector<Key> ended_;  // entries whose end has been posted, oldest first
  Key last_key_ = 0;
};

// There is one for each record whose recipe some code keeps, and for no other. kept_recipes.cpp asks for all that the spec marks: a row that says
// `recipe` and that nobody keeps does not link.
template <typename Record>
struct RecipeKeeper {
  static void mark();
};
// A function of its own, which no optimisation leaves out. Not in the structure: there it would be made by whoever asks for it.
template <typename Record>
[[gnu::noinline]] void RecipeKeeper<Record>::mark() {
  asm volatile("");
}

// The recipe of a record as it is about to be posted.
template <typename Record>
[[nodiscard]] Recipe recipe_of(proto::StreamId stream, const Record& record, std::uint64_t position, std::span<const std::byte> trailing = {}) {
  static_assert(Record::kRecipe != proto::RecordRecipe::none);
  RecipeKeeper<Record>::mark();
  Record again = record;
  if constexpr (Record::kRecipe == proto::RecordRecipe::restoring) again.restores = true;
  const auto body = std::as_bytes(std::span(&again, 1)).first(Record::kBodyBytes);
  Recipe recipe;
  recipe.id = Record::kId;
  recipe.stream = stream;
  recipe.body.assign(body.begin(), body.end());
  recipe.trailing.assign(trailing.begin(), trailing.end());
  recipe.is_call = Record::kIsCall;
  recipe.position = position;
  return recipe;
}

}  // namespace mpsshim::interposer
