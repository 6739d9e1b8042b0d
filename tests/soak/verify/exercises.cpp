// SPDX-License-Identifier: Apache-2.0
#include "exercise.hpp"

namespace mpsshim::soak {

namespace {

constexpr ExerciseRow kRows[] = {
    {Kind::chains, 400, make_chains},    {Kind::uploads, 60, make_uploads},  {Kind::downloads, 60, make_downloads},
    {Kind::words, 60, make_words},       {Kind::boxes, 25, make_boxes},      {Kind::allocations, 60, make_allocations},
    {Kind::branches, 60, make_branches}, {Kind::graphs, 20, make_graphs},    {Kind::modules, 4, make_modules},
    {Kind::texts, 1, make_texts},        {Kind::printing, 1, make_printing}, {Kind::gemms, 150, make_gemms},
};

}  // namespace

std::span<const ExerciseRow> exercises() { return kRows; }

}  // namespace mpsshim::soak
