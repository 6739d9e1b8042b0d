// SPDX-License-Identifier: Apache-2.0
// Streams of the executor's context, made when first needed and used again by later sessions. All are non-blocking: nobody uses the
// context's NULL stream, and legacy ordering is a matter of each session (stream_set.hpp). Thread safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "broker/driver/driver.hpp"

namespace mpsshim::broker {

class Progress;

// A stream and its word of the progress table, which stay together. `session` of that word says who has it.
struct PooledStream {
  CUstream handle = nullptr;
  std::uint32_t progress_index = 0;
  int priority = 0;
};

class StreamPool {
 public:
  StreamPool(const Driver& driver, Progress& progress) : driver_(driver), progress_(progress) {}
  StreamPool(const StreamPool&) = delete;

  [[nodiscard]] CUresult take(std::uint64_t session, int priority, std::unique_ptr<PooledStream>& stream);
  // The stream is idle by its progress word.
  void give_back(std::unique_ptr<PooledStream> stream);

 private:
  [[nodiscard]] CUresult make(int priority, std::unique_ptr<PooledStream>& stream);

  const Driver& driver_;
  Progress& progress_;
  std::mutex mutex_;
  std::map<int, std::vector<std::unique_ptr<PooledStream>>> free_;  // by priority
};

}  // namespace mpsshim::broker
