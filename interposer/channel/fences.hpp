// SPDX-License-Identifier: Apache-2.0
// The fence words of this process, one a stream. The GPU writes them, in stream order; this process reads them, and writes them only when a
// new executor takes over: values then go on where they were, so a position in a stream keeps its meaning over epochs.
// The words stay at one address for the life of the process (streams and events hold pointers to them). Reading needs no lock.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "proto/channel.hpp"
#include "proto/segment.hpp"

namespace mpsshim::interposer {

class FenceMemory {
 public:
  // Maps the segment of the first epoch, or replaces the one mapped by that of the next, its words set to the values reached.
  // Called by the thread that attaches or recovers. False: it cannot be mapped (errno), nothing has changed.
  [[nodiscard]] bool map(const proto::FileDescriptor& file);

  void unmap();  // nobody looks any more

  [[nodiscard]] const proto::FenceWord& word(std::uint32_t index) const { return words_[index]; }
  [[nodiscard]] bool reached(std::uint32_t index, std::uint32_t target) const {
    // Acquire pairs with the GPU's write, which follows all earlier work of the stream.
    return proto::fence_reached(words_[index].value.load(std::memory_order_acquire), target);
  }

  // Somebody looks for it and has not found it: if its record has yet to be issued, the executor has the GPU write it at once. True: it may be owed
  // already, so the executor looks for it itself, once it is woken (Link::wake_executor).
  [[nodiscard]] bool want(std::uint32_t index, std::uint32_t target);
  // Before a record with a fence is posted: this library asks for what is owed to it.
  void know_of_owed(std::uint32_t index) {
    std::atomic<std::uint32_t>& asks = words_[index].asks;
    std::uint32_t none = 0;
    if (asks.load(std::memory_order_relaxed) == 0) asks.compare_exchange_strong(none, 1, std::memory_order_relaxed);
  }
  // Once that is answered the word says of each owed fence whether its work has ended. Fences of the next records are not owed.
  [[nodiscard]] std::uint32_t ask(std::uint32_t index) { return words_[index].asks.fetch_add(1, std::memory_order_acq_rel) + 1; }
  [[nodiscard]] bool is_answered(std::uint32_t index, std::uint32_t ask) const {
    return proto::fence_reached(words_[index].answers.load(std::memory_order_acquire), ask);
  }

  // A kernel of this process has failed: whatever has been reached since, the session is over. Loaded behind the word that was seen reached.
  [[nodiscard]] bool has_kernel_error() const {
    return words_ != nullptr && words_[proto::kKernelErrorWord].kernel_error.load(std::memory_order_acquire) != 0;
  }

  // A host function of the stream has returned: what the executor holds back behind it may go on, once it looks (Link::wake_executor).
  void release_host(std::uint32_t index, std::uint32_t number) { words_[index].host_value.store(number, std::memory_order_release); }

  // The last value that a record was told to write. Raised under the channel's lock, read by anybody.
  [[nodiscard]] std::atomic<std::uint32_t>& posted(std::uint32_t index) { return posted_[index]; }

 private:
  proto::FenceWord* words_ = nullptr;
  std::array<std::atomic<std::uint32_t>, proto::kFenceWords> posted_{};
};

}  // namespace mpsshim::interposer
