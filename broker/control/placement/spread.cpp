// SPDX-License-Identifier: Apache-2.0
#include "broker/control/placement/spread.hpp"

#include <algorithm>
#include <numeric>

#include "broker/control/base/process_identity.hpp"
#include "broker/log.hpp"

namespace mpsshim::broker::control {

namespace {

using std::chrono::seconds;

constexpr double kLeastWeight = 1.0 / 16;  // of a client, however little it takes
constexpr seconds kSettled{10};            // how old a session is that has taken what it wants
constexpr seconds kExpected{60};           // so long who was told and has no session counts
constexpr seconds kSampled{1};             // over less than that nobody's share of the time is reckoned anew
constexpr unsigned kMostAncestors = 8;

double weight_by_sight(const Occupant& occupant, std::uint64_t device_bytes) {
  return device_bytes == 0 ? 0 : static_cast<double>(occupant.memory_bytes) / static_cast<double>(device_bytes) + occupant.time_share;
}

}  // namespace

std::vector<unsigned> devices_by_room(std::span<const std::uint64_t> memory_bytes, std::span<const Occupant> occupants) {
  double settled_weight = 0;
  unsigned settled = 0;
  for (const Occupant& occupant : occupants) {
    if (!occupant.is_settled || occupant.device >= memory_bytes.size()) continue;
    settled_weight += weight_by_sight(occupant, memory_bytes[occupant.device]);
    ++settled;
  }
  const double usual = settled == 0 ? 0 : settled_weight / settled;
  std::vector<double> weights(memory_bytes.size());
  for (const Occupant& occupant : occupants) {
    if (occupant.device >= memory_bytes.size()) continue;
    const double seen = weight_by_sight(occupant, memory_bytes[occupant.device]);
    weights[occupant.device] += std::max({seen, occupant.is_settled ? 0 : usual, kLeastWeight});
  }
  std::vector<unsigned> order(memory_bytes.size());
  std::iota(order.begin(), order.end(), 0u);
  std::ranges::stable_sort(
      order, [&](unsigned a, unsigned b) { return std::pair(memory_bytes[a] == 0, weights[a]) < std::pair(memory_bytes[b] == 0, weights[b]); });
  return order;
}

Spread::Place& Spread::Place::operator=(Place&& other) noexcept {
  if (this == &other) return *this;
  reset();
  spread_ = std::exchange(other.spread_, nullptr);
  number_ = other.number_;
  return *this;
}

void Spread::Place::reset() {
  if (spread_ != nullptr) spread_->told_.erase(number_);
  spread_ = nullptr;
}

std::vector<unsigned> Spread::Place::order() const { return spread_ != nullptr ? spread_->told_.at(number_).order : std::vector<unsigned>(); }

void Spread::Place::has_session() {
  if (spread_ != nullptr) spread_->told_.at(number_).is_expected = false;
}

Spread::Place Spread::adopt(const ClientIdentity& client, std::vector<unsigned> order, bool is_expected) {
  told_[++last_number_] = {client.pid, client.uid, std::move(order), EventLoop::Clock::now(), is_expected};
  return {this, last_number_};
}

Spread::Place Spread::tell(const ClientIdentity& client, const proto::DriverFacts& facts) {
  if (const Told* const known = told_to_family(client)) return adopt(client, known->order, known->pid != client.pid);
  std::vector<std::uint64_t> memory_bytes(std::min<std::size_t>(facts.device_count, proto::kMaxDevices));
  for (std::size_t device = 0; device < memory_bytes.size(); ++device) memory_bytes[device] = facts.device[device].total_memory_bytes;
  for (const auto& [id, executor] : pool_.all()) {
    if (executor->is_first() && executor->state() == ExecutorState::fault && id.device < memory_bytes.size()) memory_bytes[id.device] = 0;
  }
  std::vector<unsigned> order = devices_by_room(memory_bytes, occupants());
  log_debug("pid {} ({}): sees device {} first.", client.pid, client.command, order.empty() ? 0 : order.front());
  return adopt(client, std::move(order), true);
}

// 0 or less: of a pid namespace that we do not see.
const Spread::Told* Spread::told_to(pid_t pid, uid_t uid) const {
  const auto found = std::ranges::find_if(told_, [&](const auto& entry) { return pid > 0 && entry.second.pid == pid && entry.second.uid == uid; });
  return found != told_.end() ? &found->second : nullptr;
}

// A parent that knows the devices by numbers may tell them its children.
const Spread::Told* Spread::told_to_family(const ClientIdentity& client) const {
  if (told_.empty()) return nullptr;
  pid_t pid = client.pid;
  for (unsigned i = 0; i <= kMostAncestors && pid > 1; ++i) {
    if (const Told* const known = told_to(pid, client.uid)) return known;
    pid = parent_of(pid);
  }
  return nullptr;
}

std::vector<Occupant> Spread::occupants() {
  const auto now = EventLoop::Clock::now();
  std::vector<Occupant> all;
  for (const auto& [id, session] : sessions_.all()) {
    if (session.phase == SessionPhase::closing || session.phase == SessionPhase::lost) continue;
    all.push_back({session.device, *session.device_held, time_share(session, now), now - session.began_at >= kSettled});
  }
  std::erase_if(samples_, [&](const auto& entry) { return sessions_.find(entry.first) == nullptr; });
  for (const auto& [number, told] : told_) {
    if (told.is_expected && now - told.at < kExpected) all.push_back({.device = told.order.front()});
  }
  return all;
}

// Since the last newcomer, or since it began.
double Spread::time_share(const ClientSession& session, EventLoop::Clock::time_point now) {
  const auto counts = session.counts.read();
  if (!counts) return 0;
  const auto [sample, is_new] = samples_.try_emplace(session.id, Sample{.at = session.began_at});
  Sample& last = sample->second;
  const std::chrono::duration<double, std::nano> passed = now - last.at;
  if (passed < kSampled) return last.share;
  last = {now, counts->gpu_ns, std::clamp(static_cast<double>(counts->gpu_ns - std::min(last.gpu_ns, counts->gpu_ns)) / passed.count(), 0.0, 1.0)};
  return last.share;
}

}  // namespace mpsshim::broker::control
