// SPDX-License-Identifier: Apache-2.0
// Every record that the spec marks with `recipe` is kept by somebody: an object whose recipe nobody keeps would be missing in the next executor,
// and only a program that outlives one would notice. What is declared here is made where recipe_of() is used for that record, nowhere else.
#include "interposer/channel/recipe_book.hpp"

namespace mpsshim::interposer {

#define MPSSHIM_KEPT(Structure) extern template void RecipeKeeper<proto::Structure>::mark();
#include "gen/kept_recipes.inc"

namespace {

[[gnu::used, gnu::retain]] constexpr void (*kKept[])() = {
#define MPSSHIM_KEPT(Structure) &RecipeKeeper<proto::Structure>::mark,
#include "gen/kept_recipes.inc"
};

}  // namespace

}  // namespace mpsshim::interposer
