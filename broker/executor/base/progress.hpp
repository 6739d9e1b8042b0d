// SPDX-License-Identifier: Apache-2.0
// The executor's view on the progress table (broker/progress_table.hpp): which of its words are taken, and where the GPU sees them.
// A word counts the operations of one executor stream, modulo 2^32: `issued` is raised before they are handed to the driver, `completed`
// is written by the GPU behind them. A word stays with its stream for life; the stream is not busy while it lies in the pool.
// Thread safe; take() and give_back() lock, the rest does not.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "broker/driver/driver.hpp"
#include "broker/executor/base/own_memory.hpp"
#include "broker/progress_table.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::broker {

// True once a word that counts up and wraps has come to `target`.
constexpr bool progress_reached(std::uint32_t word, std::uint32_t target) { return static_cast<std::int32_t>(word - target) >= 0; }

class Progress {
 public:
  Progress(ProgressTable& table, CUdeviceptr device_address) : table_(table), device_address_(device_address) {}
  Progress(const Progress&) = delete;

  [[nodiscard]] std::optional<std::uint32_t> take();  // a word with completed == issued == 0; nullopt: all kProgressStreams are in use
  void give_back(std::uint32_t index);

  // Words with an index of this or more were never used.
  [[nodiscard]] std::uint32_t used() const { return used_.load(std::memory_order_acquire); }
  [[nodiscard]] StreamProgress& operator[](std::uint32_t index) const { return table_.stream[index]; }
  [[nodiscard]] OwnWord completed(std::uint32_t index) const { return OwnWord(address(index) + offsetof(StreamProgress, completed)); }
  // Where a client's word is fetched to, and the word behind it that numbers these.
  [[nodiscard]] CUdeviceptr probe_address(std::uint32_t index) const { return address(index) + offsetof(StreamProgress, probe); }
  [[nodiscard]] OwnWord probe_number(std::uint32_t index) const { return OwnWord(address(index) + offsetof(StreamProgress, probe_number)); }
  [[nodiscard]] bool is_busy(std::uint32_t index) const {
    const StreamProgress& stream = table_.stream[index];
    return stream.completed.load(std::memory_order_acquire) != stream.issued.load(std::memory_order_relaxed);
  }

 private:
  [[nodiscard]] CUdeviceptr address(std::uint32_t index) const { return device_address_ + index * sizeof(StreamProgress); }

  ProgressTable& table_;
  const CUdeviceptr device_address_;
  Mutex mutex_;
  std::vector<std::uint32_t> free_ GUARDED_BY(mutex_);
  std::atomic<std::uint32_t> used_{0};
};

}  // namespace mpsshim::broker
