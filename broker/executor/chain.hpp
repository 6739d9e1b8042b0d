// SPDX-License-Identifier: Apache-2.0
// Runs of launches as prepared linear graphs: setting the parameters of a kernel node costs a fraction of a launch, and a whole run is one
// submission. The last node may be the kernel that writes the client's fence and the progress word (word_writes.hpp).
//
// A ChainCache belongs to one stream and its worker. A graph is made when its length is first needed and used again and again: the driver
// takes a copy at each launch. A node whose contents are the same as last time is not touched.
// A driver that refuses a graph call gets plain launches from then on, in all streams (logged once).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "broker/driver/driver.hpp"
#include "broker/executor/stream_op.hpp"
#include "broker/executor/word_writes.hpp"

namespace mpsshim::broker {

struct ExecutorParts;

inline constexpr std::size_t kMaxChain = 64;

// The longest chain with which a run of `launches` begins: any number up to 8, then 16, 32 or 64. Bursts are short and often of the same
// length, and long runs lose nothing by being cut.
[[nodiscard]] std::size_t chain_length(std::size_t launches);

// kernelParams of a launch: the address of each parameter in the launch's buffer. `addresses` is scratch of the caller.
void** parameter_addresses(const LaunchOp& launch, std::vector<void*>& addresses);

class ChainCache {
 public:
  explicit ChainCache(ExecutorParts& parts);
  ChainCache(const ChainCache&) = delete;
  ~ChainCache();

  // Launches a chain of exactly `launches.size()` kernels, a length that chain_length() gives or 0, and the words behind them if there are
  // any. False: nothing was issued, issue it plainly.
  [[nodiscard]] bool launch(CUstream stream, std::span<const LaunchOp* const> launches, const WordWrites* words);
  // Destroys all graphs. One that is still running ends by itself.
  void clear();

 private:
  static constexpr std::size_t kLengths = 12;  // 0 to 8, 16, 32, 64
  struct Chain;

  [[nodiscard]] Chain* find_chain(std::size_t length, bool has_words);
  [[nodiscard]] std::unique_ptr<Chain> make(std::size_t length, bool has_words);
  [[nodiscard]] CUresult add_nodes(Chain& chain, std::size_t length, bool has_words);
  [[nodiscard]] CUresult fill(Chain& chain, std::span<const LaunchOp* const> launches, const WordWrites* words);
  [[nodiscard]] CUresult set_kernel(Chain& chain, std::size_t index, const LaunchOp& launch);
  void refuse(CUresult result, const char* call);

  ExecutorParts& parts_;
  std::array<std::array<std::unique_ptr<Chain>, 2>, kLengths> chains_;  // [length][has words]
  std::vector<void*> addresses_;
};

}  // namespace mpsshim::broker
