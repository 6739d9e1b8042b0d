// SPDX-License-Identifier: Apache-2.0
// The driver's calls on memory that clients name: each takes what CheckedMemory has made (checked_types.hpp), and hands its addresses to the
// driver as they are. Which thread calls, and under which lock, is the caller's affair.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "broker/driver/driver.hpp"
#include "broker/executor/base/progress.hpp"
#include "broker/executor/memory/checked_resources.hpp"
#include "broker/executor/memory/checked_types.hpp"
#include "broker/executor/memory/checked_words.hpp"
#include "gen/records.hpp"

namespace mpsshim::broker {

class CheckedCalls {
 public:
  explicit CheckedCalls(const Driver& driver) : driver_(driver) {}

  // --- in stream order ---
  [[nodiscard]] CUresult copy(const CheckedCopy& copy, CUstream stream) const;
  [[nodiscard]] CUresult copy(const CheckedBoxCopy& copy, CUstream stream) const;
  [[nodiscard]] CUresult copy(const CheckedArrayCopy& copy, CUstream stream) const;
  [[nodiscard]] CUresult fill(const CheckedFill& fill, CUstream stream) const;
  [[nodiscard]] CUresult write(const CheckedWord& word, std::uint64_t value, unsigned flags, CUstream stream) const;
  [[nodiscard]] CUresult flush_remote_writes(CUstream stream) const;
  // The word, to row `index` of the progress table.
  [[nodiscard]] CUresult probe(const CheckedWord& word, const Progress& progress, std::uint32_t index, CUstream stream) const;

  // --- graphs ---
  struct NodePlace {
    CUgraph graph;
    const std::vector<CUgraphNode>& after;
  };
  [[nodiscard]] CUresult add_node(CUgraphNode& node, const NodePlace& place, const CheckedBoxCopy& copy, CUcontext context) const;
  [[nodiscard]] CUresult add_node(CUgraphNode& node, const NodePlace& place, const CheckedFill& fill, CUcontext context) const;
  // A conditional node: no address is in it, but the parameters could hold some.
  [[nodiscard]] CUresult add_node(CUgraphNode& node, const NodePlace& place, CUDA_CONDITIONAL_NODE_PARAMS& condition) const;
  [[nodiscard]] CUresult set_node(CUgraphExec exec, CUgraphNode node, const CheckedBoxCopy& copy, CUcontext context) const;
  [[nodiscard]] CUresult set_node(CUgraphExec exec, CUgraphNode node, const CheckedFill& fill, CUcontext context) const;

  // --- textures, surfaces and references to them ---
  [[nodiscard]] CUresult make_texture(CUtexObject& made, const CheckedResource& resource, const CUDA_TEXTURE_DESC& texture,
                                      const CUDA_RESOURCE_VIEW_DESC* view) const;
  [[nodiscard]] CUresult make_surface(CUsurfObject& made, const CheckedResource& resource) const;
  [[nodiscard]] CUresult bind(CUtexref texture, const CheckedBinding& binding) const;

  // --- external memory ---
  [[nodiscard]] CUresult map(CUdeviceptr& address, const CheckedExternalBuffer& buffer) const;
  [[nodiscard]] CUresult map(CUmipmappedArray& made, const CheckedExternalArray& array) const;

  // --- tensor maps: addresses are values in them, as in a kernel's arguments, and nothing is read there ---
  [[nodiscard]] CUresult encode(const proto::TensorMapEncodeRecord& record, CUtensorMap& map) const;
  [[nodiscard]] CUresult replace_address(CUtensorMap& map, std::uint64_t address) const;

 private:
  const Driver& driver_;
};

}  // namespace mpsshim::broker
