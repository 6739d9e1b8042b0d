// SPDX-License-Identifier: Apache-2.0
// Runs of launches as prepared linear graphs: setting the parameters of a kernel node costs a fraction of a launch, and a whole run is one
// submission. The last node may be a batch of memory operations: the client's fence and the progress word.
//
// A ChainCache belongs to one stream and its worker. Graphs are made when a length is first needed; several of a length take turns, so that
// the one being filled is not the one just launched. A node whose contents are the same as last time is not touched.
// A driver that refuses a graph call gets plain launches from then on, in all streams (logged once).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "broker/driver/driver.hpp"
#include "broker/executor/stream_op.hpp"

namespace mpsshim::broker {

struct ExecutorParts;

inline constexpr std::size_t kMaxChain = 32;

// What a chain ends with. The progress word is always written; a fence of 0 is none.
struct ChainTail {
  CUdeviceptr progress = 0;
  std::uint32_t progress_value = 0;
  CUdeviceptr fence = 0;
  std::uint32_t fence_value = 0;
};

// The two writes of a tail: fence, then progress; without a fence progress twice, so that a node's shape never changes.
void set_writes(const ChainTail& tail, CUstreamBatchMemOpParams (&writes)[2]);

// The longest chain with which a run of `launches` begins: 32, 16, 8, 4, 2 or 1.
[[nodiscard]] std::size_t chain_length(std::size_t launches);

// kernelParams of a launch: the address of each parameter in the launch's buffer. `addresses` is scratch of the caller.
void** parameter_addresses(const LaunchOp& launch, std::vector<void*>& addresses);

class ChainCache {
 public:
  explicit ChainCache(ExecutorParts& parts);
  ChainCache(const ChainCache&) = delete;
  ~ChainCache();

  // Launches a chain of exactly `launches.size()` kernels, a length that chain_length() gives. False: nothing was issued, issue them plainly.
  [[nodiscard]] bool launch(CUstream stream, std::span<const LaunchOp* const> launches, const ChainTail* tail);
  // Destroys all graphs. One that is still running ends by itself.
  void clear();

 private:
  static constexpr std::size_t kLengths = 6;
  static constexpr std::size_t kTurns = 3;
  struct Chain;
  struct Turns {
    std::array<std::unique_ptr<Chain>, kTurns> chains;
    std::size_t next = 0;
  };

  [[nodiscard]] Chain* next_chain(std::size_t length, bool has_tail);
  [[nodiscard]] std::unique_ptr<Chain> make(std::size_t length, bool has_tail);
  [[nodiscard]] CUresult add_nodes(Chain& chain, std::size_t length, bool has_tail);
  [[nodiscard]] CUresult fill(Chain& chain, std::span<const LaunchOp* const> launches, const ChainTail* tail);
  [[nodiscard]] CUresult set_node(Chain& chain, std::size_t index, const LaunchOp& launch);
  void refuse(CUresult result, const char* call);

  ExecutorParts& parts_;
  std::array<std::array<Turns, 2>, kLengths> turns_;  // [log2 of length][has tail]
  std::vector<void*> addresses_;
};

}  // namespace mpsshim::broker
