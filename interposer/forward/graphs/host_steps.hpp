// SPDX-License-Identifier: Apache-2.0
// What of an executable graph is done in this process: host functions, and copies from and to pageable memory, which go through pinned memory
// of the graph's own. Between two parts of the graph all that is due runs as one host function of the stream (host_functions.hpp), which the
// executor waits for.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "gen/cuda_api.hpp"
#include "interposer/forward/graphs/node_work.hpp"
#include "interposer/forward/streams.hpp"

namespace mpsshim::interposer::forward {

// Pinned memory that a pageable copy goes through, packed: no room between rows.
// Host functions may hold the last reference, and must not post: what ends goes to a list first, and from there at the next reap().
class GraphStaging {
 public:
  GraphStaging() = default;
  ~GraphStaging();
  static void reap();
  GraphStaging(const GraphStaging&) = delete;
  [[nodiscard]] CUresult allocate(std::size_t bytes);
  [[nodiscard]] std::uint64_t address() const { return reinterpret_cast<std::uintptr_t>(memory_); }
  [[nodiscard]] std::size_t size_bytes() const { return bytes_; }

 private:
  void* memory_ = nullptr;
  std::size_t bytes_ = 0;
};

struct HostStep {
  WorkRef work;  // HostWork, or CopyWork with a pageable side
  std::shared_ptr<GraphStaging> staging;
};

// Whether it is a matter of this process alone, and whether it takes staging.
[[nodiscard]] bool is_on_host(const CopyWork& copy);
[[nodiscard]] bool is_staged(const CopyWork& copy);
// What the executor copies between device memory and `staging` for a copy with one pageable side.
[[nodiscard]] WorkRef staged_copy(const CopyWork& copy, const GraphStaging& staging);

// Has the steps done in the stream's order, one after the other; it keeps what they name until then.
[[nodiscard]] CUresult post_host_steps(Stream& stream, std::vector<HostStep> steps);

}  // namespace mpsshim::interposer::forward
