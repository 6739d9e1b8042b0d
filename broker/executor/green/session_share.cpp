// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/green/session_share.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "broker/executor/base/core.hpp"
#include "broker/log.hpp"
#include "proto/provision.hpp"
#include "proto/sm_partition.hpp"

namespace mpsshim::broker {

CUresult measure_parts(const Driver& driver, CUdevice device, DeviceParts& parts) {
  int multiprocessors = 0;
  CUresult result = driver->cuDeviceGetAttribute(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
  if (result == CUDA_SUCCESS) result = driver->cuDeviceGetAttribute(&parts.major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
  CUdevResource whole{};
  if (result == CUDA_SUCCESS) result = driver->cuDeviceGetDevResource(device, &whole, CU_DEV_RESOURCE_TYPE_SM);
  unsigned count = 0;
  parts.unit = proto::partition_unit(parts.major);
  if (result == CUDA_SUCCESS) result = driver->cuDevSmResourceSplitByCount(nullptr, &count, &whole, nullptr, 0, parts.unit);
  if (result != CUDA_SUCCESS) return result;
  parts.all = static_cast<unsigned>(multiprocessors);
  parts.count = std::min(count, proto::kMostChunks);
  return parts.count > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
}

void count_parts(const Driver& driver, std::span<std::uint32_t> counts) {
  for (std::size_t ordinal = 0; ordinal < counts.size(); ++ordinal) {
    CUdevice device = 0;
    DeviceParts parts;
    if (driver->cuDeviceGet(&device, static_cast<int>(ordinal)) != CUDA_SUCCESS) return;
    if (measure_parts(driver, device, parts) == CUDA_SUCCESS) counts[ordinal] = parts.count;
  }
}

CUresult SessionShares::measure() {
  if (parts_ != 0) return CUDA_SUCCESS;
  DeviceParts device;
  if (const CUresult error = measure_parts(core_.driver, core_.device, device); error != CUDA_SUCCESS) return error;
  unit_ = device.unit;
  all_ = device.all;
  major_ = device.major;
  has_rest_ = device.rest() >= device.unit;
  parts_ = device.count;
  return CUDA_SUCCESS;
}

ShareWish ShareWish::of(std::uint32_t percentage, std::uint64_t group, std::uint32_t group_percentage, std::uint64_t chunks) {
  if (chunks != 0) return {.chunks = chunks};
  const auto part = [](std::uint32_t of) { return of < proto::kWholePercentage ? of : 0; };
  const bool is_limited = group != 0 && part(group_percentage) != 0;
  return {part(percentage), is_limited ? group : 0, is_limited ? group_percentage : 0, 0};
}

std::string ShareWish::text() const {
  if (chunks != 0) return fmt::format("{} of the parts that the multiprocessors are cut into (mask {:#x})", std::popcount(chunks), chunks);
  const std::uint32_t lower = proto::lower_percentage(percentage, group_percentage);
  return fmt::format("{} % of the multiprocessors", proto::percentage_text(lower != 0 ? lower : proto::kWholePercentage));
}

std::vector<unsigned> SessionShares::parts_of(const Run& run) const {
  std::vector<unsigned> parts;
  for (unsigned i = 0; i < run.count; ++i) {
    const unsigned place = (run.first + i) % places();
    parts.push_back(place < parts_ ? place : proto::kRemainderChunk);
  }
  for (unsigned part = 0; part <= proto::kRemainderChunk; ++part) {
    if ((run.chunks >> part & 1) != 0) parts.push_back(part);
  }
  return parts;
}

// Of the sessions, in each part of the run.
unsigned SessionShares::load_of(const Run& run, const Group* leaving) const {
  unsigned load = 0;
  for (const auto& [other, made] : made_) {
    const unsigned users = leaving != nullptr && leaving->run == other ? made.users - std::min(made.users, leaving->users) : made.users;
    const std::vector<unsigned> taken = parts_of(other);
    for (const unsigned part : parts_of(run)) load += std::ranges::find(taken, part) != taken.end() ? users : 0;
  }
  return load;
}

unsigned SessionShares::units(std::uint32_t percentage) const { return std::clamp(proto::partition_units(all_, major_, percentage), 1u, places()); }

SessionShares::Run SessionShares::least_used(unsigned count, const Run* within, const Group* leaving) const {
  const unsigned begin = within != nullptr ? within->first : 0;
  const unsigned beginnings = within != nullptr ? within->count - count + 1 : count < places() ? places() : 1;
  Run best{begin, count, 0};
  unsigned least = load_of(best, leaving);
  for (unsigned place = 1; place < beginnings; ++place) {
    const Run run{(begin + place) % places(), count, 0};
    const unsigned load = load_of(run, leaving);
    if (load > least || (load == least && (is_ready(best) || !is_ready(run)))) continue;
    least = load;
    best = run;
  }
  return best;
}

// The first session of a group to come, or to come to another percentage of it, says where its run is.
SessionShares::Run SessionShares::choose(const ShareWish& wish) {
  if (wish.chunks != 0) return {0, 0, wish.chunks};
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
  if (found != made_.end() && --found->second.users == 0 && found->second.ready == nullptr) made_.erase(found);
  const auto of_group = groups_.find(group);
  if (of_group != groups_.end() && --of_group->second.users == 0) groups_.erase(of_group);
}

bool SessionShares::is_ready(const Run& run) const {
  const auto found = made_.find(run);
  return found != made_.end() && found->second.ready != nullptr;
}

std::vector<SessionShares::Run> SessionShares::side_by_side(unsigned count) const {
  std::vector<Run> runs;
  for (unsigned first = 0; first + count <= places(); first += count) runs.push_back({first, count, 0});
  if (runs.size() == 1 && count < places()) runs.push_back({places() - count, count, 0});
  return runs;
}

void SessionShares::make_ready(std::span<const std::uint32_t> percentages) {
  if (percentages.empty()) return;
  const auto began = std::chrono::steady_clock::now();
  std::vector<Run> runs;
  {
    const std::lock_guard lock(mutex_);
    if (const CUresult error = measure(); error != CUDA_SUCCESS) {
      return log_warning("No parts of the device are made ready: the driver makes none ({})", core_.driver.describe(error));
    }
    for (const std::uint32_t percentage : percentages) {
      for (const Run& run : side_by_side(units(percentage))) {
        if (std::ranges::find(runs, run) == runs.end()) runs.push_back(run);  // else another percentage comes to as many
      }
    }
  }
  CUresult error = CUDA_SUCCESS;
  std::size_t made = 0;
  for (; made < std::min(runs.size(), kMostReady); ++made) {
    GreenContextRef green;
    error = make_green(runs[made], green);
    if (error != CUDA_SUCCESS) break;
    const std::lock_guard lock(mutex_);
    made_[runs[made]] = {green, 0, green};
  }
  if (made < runs.size()) {
    log_warning("Of {} parts of the device that were to be ready {} are: {}", runs.size(), made,
                error != CUDA_SUCCESS ? core_.driver.describe(error) : "more are not made");
  }
  const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - began);
  log_info("{} parts of the device are ready for clients that are changed to have one: {} ms", made, took.count());
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
    const bool has_remainder = all_ > parts_ * unit_ && wish.chunks != proto::kRemainderBit;
    if ((wish.chunks & proto::kRemainderBit) != 0 && !has_remainder) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
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
  std::vector<unsigned> own;
  proto::ResourceShare share;
  {
    const std::lock_guard lock(mutex_);
    own = parts_of(run);
    share.groups = parts_;
    share.min_count = unit_;
  }
  std::vector<KnownShare> shares;
  for (const unsigned part : own) {
    share.part = part == proto::kRemainderChunk ? proto::kRemainingResource : static_cast<std::int32_t>(part);
    shares.push_back({share, nullptr});
  }
  CUdevResourceDesc descriptor = nullptr;
  std::string identity;
  constexpr std::uint64_t kOfNobody = 0;
  if (const CUresult error = descriptors_.find(core_, kOfNobody, shares, descriptor, identity); error != CUDA_SUCCESS) return error;
  const GreenContextSlot slot = count_green_context(core_, std::make_shared<std::atomic<unsigned>>(0));
  const CUresult result = GreenContext::make(core_, descriptor, std::move(identity), slot, green);
  if (result != CUDA_SUCCESS) return result;
  const bool has_rest = std::erase(own, proto::kRemainderChunk) != 0;
  log_info("Parts {} of {} with {} multiprocessors each{} are {} from now on", fmt::join(own, " "), share.groups, share.min_count,
           has_rest ? ", and what these leave over," : "", run.chunks == 0 ? "a share of clients" : "a static partition");
  return CUDA_SUCCESS;
}

}  // namespace mpsshim::broker
