// SPDX-License-Identifier: Apache-2.0
#include "broker/control/life/multiprocessor_requests.hpp"

#include <algorithm>
#include <bit>
#include <set>
#include <vector>

#include <cuda.h>
#include <fmt/format.h>

#include "broker/control/executors/managed_executor.hpp"
#include "broker/log.hpp"
#include "proto/provision.hpp"

namespace mpsshim::broker::control {

namespace {

constexpr std::chrono::milliseconds kActivityLook{20};  // while such a group has clients
constexpr std::chrono::milliseconds kActivityLookIfNone{200};

// Of a device that is cut into `count`: one is left to others, whatever is asked for.
unsigned units_of(std::uint32_t percentage, std::uint32_t all, int major, unsigned count) {
  const std::uint32_t units = percentage >= proto::kWholePercentage ? count : proto::partition_units(all, major, percentage);
  return std::max(units, 1u);
}

}  // namespace

bool GroupActivity::look(std::uint64_t counted, Clock::time_point now) {
  const bool works = std::exchange(counted_, counted) < counted;  // less: a session has ended
  if (works) last_work_ = now;
  if (works == is_at_work_ || (is_at_work_ && now - last_work_ < keep_)) return false;
  if (works)
    keep_ = lent_at_ != Clock::time_point() && now - lent_at_ < kSoon ? std::min(2 * keep_, kLongestKeep) : kShortestKeep;
  else
    lent_at_ = now;
  is_at_work_ = works;
  return true;
}

std::uint64_t spread_chunks(std::uint64_t chunks, unsigned count, std::uint64_t seed) {
  std::vector<std::uint64_t> bits;
  for (std::uint64_t left = chunks; left != 0; left &= left - 1) bits.push_back(left & -left);
  if (count >= bits.size()) return chunks;
  std::uint64_t taken = 0;
  for (unsigned i = 0; i < count; ++i) taken |= bits[(seed % bits.size() * count + i) % bits.size()];
  return taken;
}

std::uint32_t MultiprocessorRequests::all_of(unsigned device) const {
  const proto::DriverFacts* const facts = parts_.facts();
  return facts == nullptr ? 0 : static_cast<std::uint32_t>(std::max(facts->device[device].attribute[CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT], 0));
}

int MultiprocessorRequests::major_of(unsigned device) const {
  const proto::DriverFacts* const facts = parts_.facts();
  return facts == nullptr ? 0 : facts->device[device].attribute[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR];
}

const Namespace* MultiprocessorRequests::namespace_of(const ClientSession& session) const {
  return session.name_space.empty() ? nullptr : parts_.namespaces.find({parts_.limits.house_of(session.client.uid), session.name_space});
}

// In the order of their numbers, so that a group keeps its place while others are forgotten or come.
MultiprocessorRequests::Kept MultiprocessorRequests::kept(uid_t house, unsigned device) const {
  const unsigned count = parts_.partitions.chunks_of(device);
  Kept all;
  if (parts_.limits.has_static_partitions || count < 2) return all;
  std::uint64_t free = proto::first_chunks(count);
  for (const auto& [id, wish] : wishes_) {
    if (wish.house != house) continue;
    const unsigned units =
        std::min(units_of(wish.percentage, all_of(device), major_of(device), count), static_cast<unsigned>(std::popcount(free)) - 1);
    if (units == 0) break;
    all[id] = choose_chunks(free, units);
    free &= ~all[id];
  }
  return all;
}

std::string MultiprocessorRequests::fault_of(const Namespaces::Key& key, std::uint32_t percentage) const {
  const proto::DriverFacts* const facts = parts_.facts();
  if (percentage == 0 || facts == nullptr) return "";
  const Namespace* const own = parts_.namespaces.find(key);
  for (unsigned device = 0; device < std::min(facts->device_count, proto::kMaxDevices); ++device) {
    const unsigned count = parts_.partitions.chunks_of(device);
    if (count == 0) continue;  // no server of it has told yet
    unsigned others = 0;
    for (const auto& [id, chunks] : kept(key.first, device))
      others += own != nullptr && own->id == id ? 0 : static_cast<unsigned>(std::popcount(chunks));
    const unsigned units = units_of(percentage, all_of(device), major_of(device), count);
    if (units + others >= count)
      return fmt::format(
          "{} % cannot be kept: that is {} of the {} parts that device {} is cut into, {} are kept for other namespaces, and one is to be "
          "left",
          proto::percentage_text(percentage), units, count, device, others);
  }
  return "";
}

std::uint32_t MultiprocessorRequests::percentage_left(uid_t house, const Namespace* own, unsigned device) const {
  const std::uint64_t all = all_of(device);
  std::uint64_t others = 0;
  for (const auto& [id, chunks] : kept(house, device)) {
    if (own == nullptr || own->id != id)
      others += std::uint64_t{proto::partition_unit(major_of(device))} * static_cast<unsigned>(std::popcount(chunks));
  }
  return others == 0 || others >= all ? 0 : static_cast<std::uint32_t>((all - others) * proto::kWholePercentage / all);
}

std::uint64_t MultiprocessorRequests::chunks_for(const ClientSession& session, std::uint32_t thread_percentage,
                                                 std::uint32_t group_percentage) const {
  if (session.executor == nullptr || activities_.empty()) return 0;
  const Namespace* const own = namespace_of(session);
  std::uint64_t taken = 0;
  for (const auto& [id, chunks] : kept(parts_.limits.house_of(session.client.uid), session.device)) {
    const auto found = activities_.find({session.executor->id(), id});
    const bool is_at_work = found != activities_.end() && found->second.is_at_work();
    if (is_at_work && (own == nullptr || own->id != id)) taken |= chunks;
  }
  if (taken == 0) return 0;
  const std::uint64_t left = proto::first_chunks(parts_.partitions.chunks_of(session.device)) & ~taken;
  const auto units = [&](std::uint32_t percentage) { return proto::partition_units(all_of(session.device), major_of(session.device), percentage); };
  const std::uint32_t of_group = units(group_percentage), of_client = units(thread_percentage);
  if (of_group == 0 && of_client == 0) {
    const bool has_remainder = parts_.partitions.remainder_of(session.device, parts_.facts()->device[session.device]) != 0;
    return left | (has_remainder ? proto::kRemainderBit : 0);
  }
  const std::uint64_t groups = of_group != 0 ? spread_chunks(left, of_group, own->id) : left;
  return of_client != 0 ? spread_chunks(groups, of_client, session.id) : groups;
}

std::vector<std::uint64_t> MultiprocessorRequests::not_lent_on(std::uint64_t group) const {
  std::set<std::uint64_t> devices;
  for (const auto& [place, activity] : activities_) {
    if (place.second == group && activity.is_at_work()) devices.insert(place.first.device);
  }
  return {devices.begin(), devices.end()};
}

void MultiprocessorRequests::changed() {
  wishes_.clear();
  for (const auto& [key, of] : parts_.namespaces.all()) {
    if (of.thread_percentage_request != 0) wishes_.emplace(of.id, Wish{key.first, of.thread_percentage_request});
  }
  if (!wishes_.empty()) {
    look();
  } else {
    activities_.clear();
    next_look_.reset();
  }
  refresh([](const ManagedExecutor&) { return true; });  // what is kept for the others may lie elsewhere
}

void MultiprocessorRequests::refresh(const std::function<bool(const ManagedExecutor&)>& is_meant) const {
  std::vector<std::uint64_t> told;
  for (const auto& [id, session] : parts_.sessions.all()) {
    if (session.in_executor() && is_meant(*session.executor)) told.push_back(id);
  }
  for (const std::uint64_t id : told) parts_.refresh(id);
}

// Sessions whose part is another by then are told, all of an executor at once.
void MultiprocessorRequests::look() {
  std::map<std::pair<ExecutorId, std::uint64_t>, Sum> sums;
  for (const auto& [id, session] : parts_.sessions.all()) {
    const Namespace* const of = session.in_executor() ? namespace_of(session) : nullptr;
    if (of == nullptr || of->thread_percentage_request == 0) continue;
    Sum& sum = sums[{session.executor->id(), of->id}];
    sum.name = session.name_space;
    const auto counted = session.counts.read();
    if (counted) sum.counted += counted->launches + counted->gpu_ns;
  }
  std::set<ExecutorId> changed;
  const auto now = EventLoop::Clock::now();
  for (auto activity = activities_.begin(); activity != activities_.end();) {
    const bool is_gone = !sums.contains(activity->first);
    if (is_gone && activity->second.is_at_work()) changed.insert(activity->first.first);
    activity = is_gone ? activities_.erase(activity) : std::next(activity);
  }
  for (const auto& [place, sum] : sums) {
    GroupActivity& activity = activities_[place];
    if (!activity.look(sum.counted, now)) continue;
    changed.insert(place.first);
    log_info("Namespace {} {} on device {}: {}.", sum.name, activity.is_at_work() ? "is at work" : "has no work", place.first.device,
             activity.is_at_work() ? fmt::format("its part of the multiprocessors is its own until it has had none for {} s", activity.keep().count())
                                   : "its part of the multiprocessors is lent");
  }
  next_look_ = loop_.after(sums.empty() ? kActivityLookIfNone : kActivityLook, [this] { look(); });
  refresh([&](const ManagedExecutor& executor) { return changed.contains(executor.id()); });
}

}  // namespace mpsshim::broker::control
