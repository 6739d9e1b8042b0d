// SPDX-License-Identifier: Apache-2.0
// Shares of the multiprocessors, made in the driver of what a client says about them (proto/resource_share.hpp). Nothing of a client's gets into
// a CUdevResource: origins are the session's own, numbers are bounded, and splits are the driver's.
//
// Descriptors can be made and not ended, so equal ones are made once for all sessions (ResourceDescriptors); one session may have so many new
// ones made. Any thread but workers: the driver may take its time.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "broker/driver/driver.hpp"
#include "broker/executor/green/green_context.hpp"
#include "proto/mutex.hpp"
#include "proto/resource_share.hpp"

namespace mpsshim::broker {

// A share and the green context that its origin names.
struct KnownShare {
  proto::ResourceShare share;
  GreenContextRef origin;  // null: the device
};

[[nodiscard]] proto::ResourceTold told_of(const CUdevResource& resource);

// CUDA_ERROR_INVALID_RESOURCE_TYPE: there is no such part. Shares of one split are parts of one split for the driver, too.
[[nodiscard]] CUresult make_resources(const ExecutorCore& core, std::span<const KnownShare> shares, std::vector<CUdevResource>& resources);

struct SplitResult {
  std::vector<CUdevResource> groups;
  CUdevResource remaining{};
};
// At most `groups` of them.
[[nodiscard]] CUresult split_resource(const ExecutorCore& core, const CUdevResource& input, unsigned groups, unsigned flags, unsigned min_count,
                                      SplitResult& made);

class ResourceDescriptors {
 public:
  static constexpr std::size_t kMax = 16'384;
  static constexpr unsigned kMaxOfSession = 512;

  // The driver's error, or CUDA_ERROR_OUT_OF_MEMORY: one more than may be made. `identity` is the same for equal lists, whoever asks.
  [[nodiscard]] CUresult find(const ExecutorCore& core, std::uint64_t session, std::span<const KnownShare> shares, CUdevResourceDesc& descriptor,
                              std::string& identity);
  void forget_session(std::uint64_t session);

 private:
  [[nodiscard]] CUresult allow(std::uint64_t session) REQUIRES(mutex_);

  Mutex mutex_;
  std::map<std::string, CUdevResourceDesc> descriptors_ GUARDED_BY(mutex_);  // by identity
  std::map<std::uint64_t, unsigned> made_ GUARDED_BY(mutex_);                // by session
};

}  // namespace mpsshim::broker
