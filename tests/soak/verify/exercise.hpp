// SPDX-License-Identifier: Apache-2.0
// An exercise does one thing that programs do, knows what must come of it, and looks. One object a thread and kind; a source file each.
#pragma once

#include <memory>
#include <span>

#include "tally.hpp"
#include "transfers.hpp"
#include "workplace.hpp"

namespace mpsshim::soak {

class Exercise {
 public:
  Exercise() = default;
  Exercise(const Exercise&) = delete;
  virtual ~Exercise() = default;
  // One sequence, verified at its end, when nothing of it is under way any more. Throws where something is wrong.
  virtual void run() = 0;
};

struct Tools {
  Workplace& work;
  Transfers& transfers;
};

struct ExerciseRow {
  Kind kind;
  unsigned weight;  // how often it has its turn among the others
  std::unique_ptr<Exercise> (*make)(const Tools& tools);
};

// All of them (exercises.cpp).
[[nodiscard]] std::span<const ExerciseRow> exercises();

[[nodiscard]] std::unique_ptr<Exercise> make_chains(const Tools& tools);
[[nodiscard]] std::unique_ptr<Exercise> make_uploads(const Tools& tools);
[[nodiscard]] std::unique_ptr<Exercise> make_downloads(const Tools& tools);
[[nodiscard]] std::unique_ptr<Exercise> make_words(const Tools& tools);
[[nodiscard]] std::unique_ptr<Exercise> make_boxes(const Tools& tools);
[[nodiscard]] std::unique_ptr<Exercise> make_allocations(const Tools& tools);
[[nodiscard]] std::unique_ptr<Exercise> make_branches(const Tools& tools);
[[nodiscard]] std::unique_ptr<Exercise> make_graphs(const Tools& tools);
[[nodiscard]] std::unique_ptr<Exercise> make_modules(const Tools& tools);
[[nodiscard]] std::unique_ptr<Exercise> make_texts(const Tools& tools);
[[nodiscard]] std::unique_ptr<Exercise> make_printing(const Tools& tools);
[[nodiscard]] std::unique_ptr<Exercise> make_gemms(const Tools& tools);  // nullptr: not here

}  // namespace mpsshim::soak
