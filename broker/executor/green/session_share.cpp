// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/green/session_share.hpp"

#include <algorithm>
#include <atomic>
#include <utility>

#include "broker/executor/base/core.hpp"
#include "broker/log.hpp"
#include "proto/provision.hpp"

namespace mpsshim::broker {

// What the device is cut into: the driver says how many parts it has.
CUresult SessionShares::measure() {
  if (parts_ != 0) return CUDA_SUCCESS;
  int multiprocessors = 0;
  const Driver& driver = core_.driver;
  CUresult result = driver->cuDeviceGetAttribute(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, core_.device);
  if (result == CUDA_SUCCESS) result = driver->cuDeviceGetAttribute(&major_, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, core_.device);
  CUdevResource whole{};
  if (result == CUDA_SUCCESS) result = driver->cuDeviceGetDevResource(core_.device, &whole, CU_DEV_RESOURCE_TYPE_SM);
  unsigned parts = 0;
  unit_ = proto::partition_unit(major_);
  if (result == CUDA_SUCCESS) result = driver->cuDevSmResourceSplitByCount(nullptr, &parts, &whole, nullptr, 0, unit_);
  if (result != CUDA_SUCCESS) return result;
  all_ = static_cast<unsigned>(multiprocessors);
  parts_ = std::min(parts, proto::kMaxResourceGroups);
  return parts_ > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
}

// Of the sessions, in each part of the run.
unsigned SessionShares::load_of(const Run& run) const {
  unsigned load = 0;
  for (const auto& [other, made] : made_) {
    for (unsigned i = 0; i < run.count; ++i) {
      const unsigned part = (run.first + i) % parts_;
      if ((part + parts_ - other.first) % parts_ < other.count) load += made.users;
    }
  }
  return load;
}

SessionShares::Run SessionShares::choose(std::uint32_t percentage) const {
  const unsigned count = std::clamp(proto::partition_units(all_, major_, percentage), 1u, parts_);
  Run best{0, count};
  unsigned least = load_of(best);
  for (unsigned first = 1; first < parts_ && count < parts_; ++first) {
    const unsigned load = load_of({first, count});
    if (load >= least) continue;
    least = load;
    best.first = first;
  }
  return best;
}

std::shared_ptr<void> SessionShares::use(const Run& run) {
  ++made_[run].users;
  return {nullptr, [this, run](void*) { end_use(run); }};
}

void SessionShares::end_use(const Run& run) {
  const std::lock_guard lock(mutex_);
  const auto found = made_.find(run);
  if (found != made_.end() && --found->second.users == 0) made_.erase(found);
}

bool SessionShares::find(std::uint32_t percentage, SessionShare& share) {
  const std::lock_guard lock(mutex_);
  if (measure() != CUDA_SUCCESS) return false;  // make() tells
  const Run run = choose(percentage);
  const auto found = made_.find(run);
  share.green = found != made_.end() ? found->second.green.lock() : nullptr;
  if (share.green == nullptr) return false;
  share.use = use(run);
  return true;
}

CUresult SessionShares::make(std::uint32_t percentage, SessionShare& share) {
  Run run;
  {
    const std::lock_guard lock(mutex_);
    if (const CUresult error = measure(); error != CUDA_SUCCESS) return error;
    run = choose(percentage);
    const auto found = made_.find(run);
    share.green = found != made_.end() ? found->second.green.lock() : nullptr;
    share.use = use(run);  // counted from here on: the next one goes elsewhere
  }
  if (share.green != nullptr) return CUDA_SUCCESS;
  const CUresult result = make_green(run, share.green);
  if (result != CUDA_SUCCESS) {
    share.use = nullptr;
    return result;
  }
  const std::lock_guard lock(mutex_);
  made_[run].green = share.green;
  return CUDA_SUCCESS;
}

// Nobody's of the clients' counts: it may be several sessions'.
CUresult SessionShares::make_green(const Run& run, GreenContextRef& green) {
  unsigned parts = 0;
  unsigned unit = 0;
  {
    const std::lock_guard lock(mutex_);
    parts = parts_;
    unit = unit_;
  }
  std::vector<KnownShare> shares;
  for (unsigned i = 0; i < run.count; ++i) {
    proto::ResourceShare share;
    share.groups = parts;
    share.min_count = unit;
    share.part = static_cast<std::int32_t>((run.first + i) % parts);
    shares.push_back({share, nullptr});
  }
  CUdevResourceDesc descriptor = nullptr;
  std::string identity;
  constexpr std::uint64_t kOfNobody = 0;
  if (const CUresult error = descriptors_.find(core_, kOfNobody, shares, descriptor, identity); error != CUDA_SUCCESS) return error;
  const GreenContextSlot slot = count_green_context(core_, std::make_shared<std::atomic<unsigned>>(0));
  const CUresult result = GreenContext::make(core_, descriptor, std::move(identity), slot, green);
  if (result == CUDA_SUCCESS)
    log_info("Parts {} to {} of {} with {} multiprocessors each are a share of clients from now on", run.first, (run.first + run.count - 1) % parts,
             parts, unit);
  return result;
}

}  // namespace mpsshim::broker
