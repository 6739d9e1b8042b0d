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

ShareWish ShareWish::of(std::uint32_t percentage, std::uint64_t group, std::uint32_t group_percentage) {
  const auto part = [](std::uint32_t of) { return of < proto::kWholePercentage ? of : 0; };
  const bool is_limited = group != 0 && part(group_percentage) != 0;
  return {part(percentage), is_limited ? group : 0, is_limited ? group_percentage : 0};
}

std::uint32_t ShareWish::lowest() const {
  const std::uint32_t lower = proto::lower_percentage(percentage, group_percentage);
  return lower != 0 ? lower : proto::kWholePercentage;
}

// Of the sessions, in each part of the run.
unsigned SessionShares::load_of(const Run& run, const Group* leaving) const {
  unsigned load = 0;
  for (const auto& [other, made] : made_) {
    const unsigned users = leaving != nullptr && leaving->run == other ? made.users - std::min(made.users, leaving->users) : made.users;
    for (unsigned i = 0; i < run.count; ++i) {
      const unsigned part = (run.first + i) % parts_;
      if ((part + parts_ - other.first) % parts_ < other.count) load += users;
    }
  }
  return load;
}

unsigned SessionShares::units(std::uint32_t percentage) const { return std::clamp(proto::partition_units(all_, major_, percentage), 1u, parts_); }

SessionShares::Run SessionShares::least_used(unsigned count, const Run* within, const Group* leaving) const {
  const unsigned begin = within != nullptr ? within->first : 0;
  const unsigned places = within != nullptr ? within->count - count + 1 : count < parts_ ? parts_ : 1;
  Run best{begin, count};
  unsigned least = load_of(best, leaving);
  for (unsigned place = 1; place < places; ++place) {
    const Run run{(begin + place) % parts_, count};
    const unsigned load = load_of(run, leaving);
    if (load >= least) continue;
    least = load;
    best = run;
  }
  return best;
}

// The first session of a group to come, or to come to another percentage of it, says where its run is.
SessionShares::Run SessionShares::choose(const ShareWish& wish) {
  if (wish.group_percentage == 0) return least_used(units(wish.percentage), nullptr, nullptr);
  Group& group = groups_[wish.group];
  if (group.percentage != wish.group_percentage) {
    group.run = least_used(units(wish.group_percentage), nullptr, &group);
    group.percentage = wish.group_percentage;
  }
  if (wish.percentage == 0 || units(wish.percentage) >= group.run.count) return group.run;
  return least_used(units(wish.percentage), &group.run, nullptr);
}

std::shared_ptr<void> SessionShares::use(const Run& run, std::uint64_t group) {
  ++made_[run].users;
  if (group != 0) ++groups_[group].users;
  return {nullptr, [this, run, group](void*) { end_use(run, group); }};
}

void SessionShares::end_use(const Run& run, std::uint64_t group) {
  const std::lock_guard lock(mutex_);
  const auto found = made_.find(run);
  if (found != made_.end() && --found->second.users == 0) made_.erase(found);
  const auto of_group = groups_.find(group);
  if (of_group != groups_.end() && --of_group->second.users == 0) groups_.erase(of_group);
}

bool SessionShares::find(const ShareWish& wish, SessionShare& share) {
  const std::lock_guard lock(mutex_);
  if (measure() != CUDA_SUCCESS) return false;  // make() tells
  const Run run = choose(wish);
  const auto found = made_.find(run);
  share.green = found != made_.end() ? found->second.green.lock() : nullptr;
  if (share.green == nullptr) {
    if (const auto group = groups_.find(wish.group); group != groups_.end() && group->second.users == 0) groups_.erase(group);
    return false;
  }
  share.use = use(run, wish.group);
  return true;
}

CUresult SessionShares::make(const ShareWish& wish, SessionShare& share) {
  Run run;
  {
    const std::lock_guard lock(mutex_);
    if (const CUresult error = measure(); error != CUDA_SUCCESS) return error;
    run = choose(wish);
    const auto found = made_.find(run);
    share.green = found != made_.end() ? found->second.green.lock() : nullptr;
    share.use = use(run, wish.group);  // counted from here on: the next one goes elsewhere
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
