// SPDX-License-Identifier: Apache-2.0
// A client's linker (cuLink*): what it was created with, its inputs, and what has come of them. The driver's linker is in the linker process, which
// may have forgotten it, or have ended: then it is told everything again. So the inputs are kept here until the linker ends.
//
// The table belongs to the session's worker. A state is used by helpers, one at a time under its mutex, and ends with its last holder.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "broker/executor/modules/linker_client.hpp"
#include "proto/handle_table.hpp"
#include "proto/ids.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::broker {

inline constexpr std::size_t kMaxLinks = 64;  // of a session

class LinkState {
 public:
  LinkState(LinkerClient& linker, std::uint64_t session);
  LinkState(const LinkState&) = delete;

  [[nodiscard]] CUresult create(const std::vector<JitOption>& options);
  [[nodiscard]] CUresult add(LinkStep step);
  [[nodiscard]] CUresult complete(std::vector<std::byte>& linked);

  struct Logs {
    std::string error;
    std::string info;
  };
  [[nodiscard]] Logs logs();
  // Of its inputs; any thread.
  [[nodiscard]] std::size_t kept_bytes() const { return kept_bytes_.load(std::memory_order_relaxed); }

 private:
  // `news`: the step that the process has not seen, if any.
  [[nodiscard]] LinkOutcome ask(bool completes, const LinkStep* news) REQUIRES(mutex_);

  LinkerClient& linker_;
  const std::uint64_t session_;
  const std::uint64_t number_;  // in the process, which serves other sessions and executors
  Mutex mutex_;
  bool is_created_ GUARDED_BY(mutex_) = false;
  std::vector<JitOption> options_ GUARDED_BY(mutex_);
  std::vector<LinkStep> steps_ GUARDED_BY(mutex_);
  std::atomic<std::size_t> kept_bytes_{0};
  Logs logs_ GUARDED_BY(mutex_);
};

struct SessionLink {
  std::shared_ptr<LinkState> state;
  std::vector<std::byte> input;  // so far
  bool is_too_long = false;
  std::vector<std::byte> result;
};

using LinkTable = proto::HandleTable<proto::HandleKind::link_state, SessionLink>;

}  // namespace mpsshim::broker
