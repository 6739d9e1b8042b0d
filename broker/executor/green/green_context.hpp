// SPDX-License-Identifier: Apache-2.0
// A green context of the driver: a share of the multiprocessors, and graphs whose nodes were added under it, since a graph keeps the
// multiprocessors of its nodes. It is no domain of its own: memory, functions and faults are the one context's.
//
// Held by its session's table, by each of its streams and by windows that make graphs for it. Whoever lets go last has it ended in a quiet
// window, behind its streams: they are given back before. Made in a quiet window too, since the driver waits for every running kernel.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "broker/executor/chains/chain_pool.hpp"
#include "broker/executor/chains/scoped_context.hpp"
#include "proto/resource_share.hpp"

namespace mpsshim::broker {

struct ExecutorCore;
class GreenContext;
using GreenContextRef = std::shared_ptr<GreenContext>;

// What a session may have, and all of them: each takes some MiB of the device. Those that are about to end count for a while.
inline constexpr unsigned kMaxGreenContexts = 16;
inline constexpr unsigned kMaxGreenContextsEnding = 16;
inline constexpr unsigned kMaxGreenContextsOfAll = 128;

// How many there are of one session: in the driver, or about to be.
using GreenContextCount = std::shared_ptr<std::atomic<unsigned>>;
// Counts one, for its session and for all, while it lasts.
using GreenContextSlot = std::shared_ptr<void>;
[[nodiscard]] GreenContextSlot count_green_context(ExecutorCore& core, const GreenContextCount& of_session);

class GreenContext {
 public:
  // In a quiet window. `identity` says how the descriptor was made (green_resources.hpp).
  [[nodiscard]] static CUresult make(ExecutorCore& core, CUdevResourceDesc descriptor, std::string identity, GreenContextSlot slot,
                                     GreenContextRef& made);
  GreenContext(const GreenContext&) = delete;
  ~GreenContext() = default;

  // In a quiet window, its streams given back: nothing of it is left in the driver. Once.
  void end();

  [[nodiscard]] CUgreenCtx handle() const { return handle_; }
  [[nodiscard]] CUcontext context() const { return context_; }  // itself, to be made current
  [[nodiscard]] const proto::ResourceTold& told() const { return told_; }
  [[nodiscard]] const std::string& identity() const { return identity_; }
  [[nodiscard]] ChainPool& chains() { return *chains_; }
  [[nodiscard]] IssueLock& issue_lock() { return issue_lock_; }
  // As ExecutorParts has it for the executor's own context: the driver keeps local memory for each.
  [[nodiscard]] std::atomic<std::uint32_t>& local_bytes_high_water() { return local_bytes_high_water_; }

 private:
  GreenContext(ExecutorCore& core, std::string identity, GreenContextSlot slot)
      : core_(core), identity_(std::move(identity)), slot_(std::move(slot)) {}
  [[nodiscard]] CUresult open(CUdevResourceDesc descriptor);
  static void let_go(GreenContext* green);

  ExecutorCore& core_;
  const std::string identity_;
  GreenContextSlot slot_;
  CUgreenCtx handle_ = nullptr;
  CUcontext context_ = nullptr;
  proto::ResourceTold told_;
  IssueLock issue_lock_;
  std::atomic<std::uint32_t> local_bytes_high_water_{0};
  std::unique_ptr<ChainPool> chains_;
};

// Makes `green` current for a while; null: the executor's context stays.
[[nodiscard]] inline ScopedContext enter(const Driver& driver, GreenContext* green) {
  return green != nullptr ? ScopedContext(driver, green->context(), green->issue_lock()) : ScopedContext(driver);
}

}  // namespace mpsshim::broker
