// SPDX-License-Identifier: Apache-2.0
// Brings the session back on a new executor (docs: Living through faults). Used by one thread, under SessionClient's mutex, while no record
// can be written: the old channel's state is no longer active.
//
//   1. Attach again: new channel, new fence words (values go on), memory restored by the control process.
//   2. Post the recipes in order of creation; every answer must equal the one the application has seen.
//   3. Copy what the old executor had not read, in order, reply slots included.
//   4. Publish the new link.
// A session on trial takes the first two steps, then has its launches run again (run_again.hpp), and is over: nothing is published.
// Should the next executor go as well before it has read anything of 3 (two restarts in a row), all is done again for the one behind it.
// Nothing is changed before step 4 except fence words, which keep their values. Anything that does not come back identical ends the
// session with a sticky error and a line that says what: never silently wrong.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "gen/cuda_api.hpp"
#include "interposer/channel/carry_over.hpp"
#include "interposer/channel/channel.hpp"
#include "interposer/channel/fences.hpp"
#include "interposer/channel/recipe_book.hpp"
#include "interposer/channel/run_again.hpp"
#include "proto/client_requests.hpp"

namespace mpsshim::interposer {

class SessionClient;

class Recovery {
 public:
  Recovery(SessionClient& session, std::shared_ptr<Link> old) : session_(session), old_(std::move(old)) {}

  // CUDA_SUCCESS, or the error that is sticky from now on.
  [[nodiscard]] CUresult run();

 private:
  CUresult try_once();
  [[nodiscard]] bool may_try_again() const;
  CUresult read_old_ring();
  CUresult attach_again();
  CUresult post_recipes();
  CUresult post_recipe(const Recipe& recipe);
  CUresult carry_unread();
  void publish();
  CUresult stand_trial();
  CUresult run_launches(const std::vector<std::uint64_t>& launches, const FenceMemory& fences, proto::TrialEnded& ended);
  [[nodiscard]] bool is_on_trial() const;
  CUresult lost_again(WaitEnd end);
  CUresult refuse(const char* what, std::uint64_t which) const;

  SessionClient& session_;
  std::shared_ptr<Link> old_;
  std::shared_ptr<Link> next_;
  Unread unread_;
  std::optional<std::uint64_t> carried_to_;  // where in the new ring what was unread begins
  bool has_moved_on_ = false;                // the session, from the executor it was being brought back in
  unsigned attempts_ = 0;
  std::optional<NeededRecipes> needed_;                            // on trial: of all recipes
  std::vector<std::pair<RecipeBook::Key, std::uint64_t>> posted_;  // recipes and their place in the new ring
};

}  // namespace mpsshim::interposer
