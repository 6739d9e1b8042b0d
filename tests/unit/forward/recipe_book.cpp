// SPDX-License-Identifier: Apache-2.0
#include "interposer/channel/recipe_book.hpp"

#include "tests/support/catch.hpp"
#include "tests/unit/forward/fake_broker.hpp"

using namespace mpsshim;
using interposer::Recipe;
using interposer::RecipeBook;

namespace {

Recipe made_at(std::uint64_t position) {
  Recipe recipe;
  recipe.position = position;
  return recipe;
}

}  // namespace

TEST_CASE("recipe book: a new executor needs what was made before its predecessor stopped reading and had not ended by then") {
  Recipe recipe = made_at(100);
  CHECK_FALSE(RecipeBook::is_needed(recipe, 100));  // the record itself is carried over
  CHECK(RecipeBook::is_needed(recipe, 101));
  recipe.ended = true;
  recipe.end_position = 500;
  CHECK(RecipeBook::is_needed(recipe, 500));  // records before the end are carried over and use it
  CHECK_FALSE(RecipeBook::is_needed(recipe, 501));
}

TEST_CASE("recipe book: an ended entry stays until its end was read") {
  RecipeBook book;
  const auto first = book.add(made_at(0));
  const auto second = book.add(made_at(40));
  book.end(first, 1000, 80);
  CHECK(book.find(first) != nullptr);
  book.end(second, 1040, 1001);  // by now the first end was read
  CHECK(book.find(first) == nullptr);
  CHECK(book.find(second) != nullptr);
  book.end(77, 0, 0);  // no such entry: nothing happens
  CHECK(book.entries().size() == 1);
}

TEST_CASE("recipe book: positions follow the records into the next ring") {
  RecipeBook book;
  const auto read = book.add(made_at(100));
  const auto carried = book.add(made_at(900));
  const auto over = book.add(made_at(200));
  const auto ending = book.add(made_at(300));
  book.end(over, 700, 0);
  book.end(ending, 850, 0);
  const test::ChannelEnds old_ends = test::make_channel(1);
  old_ends.link->end.consumed = 800;
  old_ends.link->end.carried_to = 64;
  book.carry_over(*old_ends.link);
  CHECK(book.find(read)->position == 100);
  CHECK(book.find(carried)->position == 164);
  CHECK(book.find(over) == nullptr);
  CHECK(book.find(ending)->end_position == 114);
}
