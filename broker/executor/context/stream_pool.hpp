// SPDX-License-Identifier: Apache-2.0
// Streams of the executor's context, made when first needed and used again by later sessions. All are non-blocking: nobody uses the
// context's NULL stream, and legacy ordering is a matter of each session (stream_set.hpp). Thread safe.
// All sessions share the words of the progress table. The last quarter of them is for sessions that have few streams, so that one with very
// many takes nobody's first; and what lies in the pool under a priority that nobody asks for is given up where words run out.
// Streams of green contexts count as well, and are never used again: they end with their queue, and so before their context.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "broker/driver/driver.hpp"
#include "broker/executor/green/green_context.hpp"
#include "broker/progress_table.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::broker {

class Progress;

// A stream and its word of the progress table, which stay together. `session` of that word says who has it.
struct PooledStream {
  CUstream handle = nullptr;
  std::uint32_t progress_index = 0;
  int priority = 0;
  GreenContextRef green{};  // null: of the executor's context
};

class StreamPool {
 public:
  // `before_make` hears of each stream with its priority, before the driver is asked for it; what it returns is held until the driver has been.
  using BeforeMake = std::function<std::unique_lock<std::mutex>(int)>;
  StreamPool(const Driver& driver, Progress& progress, BeforeMake before_make = nullptr)
      : driver_(driver), progress_(progress), before_make_(std::move(before_make)) {}
  StreamPool(const StreamPool&) = delete;

  static constexpr std::uint32_t kFewStreams = 16;
  static constexpr std::uint32_t kReserved = kProgressStreams / 4;

  // CUDA_ERROR_OUT_OF_MEMORY: there are no more, for this session at least.
  [[nodiscard]] CUresult take(std::uint64_t session, int priority, std::unique_ptr<PooledStream>& stream);
  [[nodiscard]] CUresult take_green(std::uint64_t session, const GreenContextRef& green, int priority, std::unique_ptr<PooledStream>& stream);
  // The stream is idle, and goes on in that context (null: the executor's) with that priority, and its word.
  [[nodiscard]] CUresult change(PooledStream& stream, const GreenContextRef& green, int priority);
  // One more that lies ready, of which nobody hears.
  [[nodiscard]] CUresult add(int priority);
  // The stream is idle by its progress word.
  void give_back(std::unique_ptr<PooledStream> stream);

 private:
  [[nodiscard]] bool may_take(std::uint64_t session) REQUIRES(mutex_);
  void note_end(std::uint64_t session) REQUIRES(mutex_);
  [[nodiscard]] std::unique_ptr<PooledStream> take_free(int priority);
  [[nodiscard]] CUresult make_handle(int priority, const GreenContextRef& green, CUstream& handle);
  void end_handle(const PooledStream& stream);
  [[nodiscard]] CUresult make(int priority, std::unique_ptr<PooledStream>& stream, const GreenContextRef& green = nullptr);
  [[nodiscard]] CUresult make_for(std::uint64_t session, int priority, std::unique_ptr<PooledStream>& stream, const GreenContextRef& green);
  void destroy(std::unique_ptr<PooledStream> stream);
  [[nodiscard]] bool give_one_up();

  const Driver& driver_;
  Progress& progress_;
  const BeforeMake before_make_;
  Mutex mutex_;
  std::map<int, std::vector<std::unique_ptr<PooledStream>>> free_ GUARDED_BY(mutex_);  // by priority
  std::map<std::uint64_t, std::uint32_t> taken_ GUARDED_BY(mutex_);                    // by session
  std::uint32_t all_taken_ GUARDED_BY(mutex_) = 0;
  std::uint64_t warned_ GUARDED_BY(mutex_) = 0;  // the session last told of
};

}  // namespace mpsshim::broker
