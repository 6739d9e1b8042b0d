// SPDX-License-Identifier: Apache-2.0
// A part of an executable graph that the executor runs in one go: what is said to it, and the recipe of that. A graph without host functions and
// pageable memory is one part.
//
// Any thread, one at a time: GraphExec sees to that. Ends by destroy(), after which nothing is left in the executor but launches under way.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "gen/cuda_api.hpp"
#include "interposer/forward/graphs/node_work.hpp"
#include "interposer/forward/streams.hpp"
#include "proto/ids.hpp"

namespace mpsshim::interposer::forward {

class ExecPart {
 public:
  ExecPart() = default;
  ExecPart(const ExecPart&) = delete;

  // The next node, behind earlier ones. Returns its number.
  std::uint32_t add(const NodeWork& work, std::span<const std::uint32_t> before);
  // `failed_node` is the one that was refused, or the number of nodes. After an error, too, destroy() is to be called.
  [[nodiscard]] CUresult instantiate(std::uint64_t flags, std::uint32_t& failed_node);
  // What the node does in the launches that come from now on.
  [[nodiscard]] CUresult change(std::uint32_t node, const NodeWork& work, bool is_enabled);
  [[nodiscard]] CUresult launch(Stream& stream);
  [[nodiscard]] CUresult destroy();

 private:
  [[nodiscard]] CUresult post_description();
  [[nodiscard]] CUresult call_instantiate(std::uint64_t flags, std::uint32_t& failed_node);

  proto::GraphExecId id_;
  std::vector<std::byte> description_;         // until it is posted
  std::vector<RecipeBook::Key> node_recipes_;  // of each node's latest change
  std::vector<RecipeBook::Key> recipes_;       // description and instantiation
};

}  // namespace mpsshim::interposer::forward
