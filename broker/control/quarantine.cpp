// SPDX-License-Identifier: Apache-2.0
#include "broker/control/quarantine.hpp"

#include <algorithm>
#include <numeric>

namespace mpsshim::broker::control {

namespace {
constexpr double kRounding = 1e-6;  // three thirds are one
}

std::vector<Program> Quarantine::note_fault(std::span<const Program> suspects, Clock::time_point now) {
  std::vector<Program> entered;
  if (limits_.faults == 0 || suspects.empty()) return entered;
  std::map<Program, double> parts;
  for (const Program& program : suspects) parts[program] += 1.0 / static_cast<double>(suspects.size());
  for (const auto& [program, part] : parts) {
    Record& record = records_[program];
    std::erase_if(record.shares, [&](const Share& share) { return now - share.when >= limits_.window; });
    record.shares.push_back({now, part});
    const double sum =
        std::accumulate(record.shares.begin(), record.shares.end(), kRounding, [](double so_far, const Share& share) { return so_far + share.part; });
    if (record.is_quarantined || sum < limits_.faults) continue;
    record.is_quarantined = true;
    entered.push_back(program);
  }
  return entered;
}

bool Quarantine::contains(const Program& program) const {
  const auto found = records_.find(program);
  return found != records_.end() && found->second.is_quarantined;
}

std::vector<Program> Quarantine::release(Clock::time_point now) {
  std::vector<Program> left;
  std::erase_if(records_, [&](const auto& entry) {
    const auto& [program, record] = entry;
    if (now - record.shares.back().when < limits_.window) return false;
    if (record.is_quarantined) left.push_back(program);
    return true;
  });
  return left;
}

Quarantine::Clock::time_point Quarantine::next_release() const {
  Clock::time_point next = Clock::time_point::max();
  for (const auto& [program, record] : records_) next = std::min(next, record.shares.back().when + limits_.window);
  return next;
}

}  // namespace mpsshim::broker::control
