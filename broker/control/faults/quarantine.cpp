// SPDX-License-Identifier: Apache-2.0
#include "broker/control/faults/quarantine.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "broker/control/base/handover.hpp"

namespace mpsshim::broker::control {

namespace {

constexpr double kRounding = 1e-6;             // three thirds are one
constexpr std::size_t kMostRecords = 4'096;    // who makes up ever new programs makes the oldest be forgotten
constexpr std::size_t kMostGood = 4'096;
constexpr double kLeastDifferent = 2;

void save_program(StateWriter& state, const ProgramIdentity& program) {
  state.number(program.uid);
  state.plain(program.digest);
  state.text(program.command);
  state.text(program.path);
}

ProgramIdentity restore_program(StateReader& state) {
  ProgramIdentity program;
  program.uid = static_cast<uid_t>(state.number());
  program.digest = state.plain<proto::ContentDigest>();
  program.command = state.text();
  program.path = state.text();
  return program;
}

}  // namespace

Ward Ward::of_group(std::uint64_t group) {
  Ward ward;
  ward.extent = Extent::group;
  ward.group = group;
  return ward;
}

Ward Ward::of_trials() {
  Ward ward;
  ward.extent = Extent::trials;
  return ward;
}

Ward Ward::of(Extent extent, const ProgramIdentity& program) {
  Ward ward{extent, program, 0};
  if (extent != Extent::command) ward.program.command.clear();
  if (extent == Extent::user || extent == Extent::newcomers) ward.program.digest = {};
  return ward;
}

std::string Ward::name() const {
  switch (extent) {
    case Extent::command:
      return fmt::format("Program {}{}{} (uid {})", program.path, program.command.empty() ? "" : " ", program.command, program.uid);
    case Extent::program: return fmt::format("Program {}, whatever it runs, (uid {})", program.path, program.uid);
    case Extent::user: return fmt::format("User {}, with all programs that have not ended without a fault before,", program.uid);
    case Extent::newcomers: return fmt::format("User {}, with all programs that are new,", program.uid);
    case Extent::group: return fmt::format("Group {}", group);
    case Extent::trials: return "Suspects of a fault";
  }
  return {};
}

double Quarantine::sum_of(const Shares& shares, Clock::time_point now) const {
  double sum = 0;
  for (const Share& share : shares) sum += now - share.when < limits_.window ? share.part : 0;
  return sum;
}

// How many different commands of a program, or programs of a user, have faulted; one that bears a part of a fault counts as that part.
double Quarantine::different(const Ward& whole, Ward::Extent parts, Clock::time_point now) const {
  std::map<Ward, double> sums;
  for (const auto& [program, shares] : records_) {
    if (whole.holds(program)) sums[Ward::of(parts, program)] += sum_of(shares, now);
  }
  double count = 0;
  for (const auto& [part, sum] : sums) count += std::min(sum, 1.0);
  return count;
}

std::vector<Ward> Quarantine::note_fault(std::span<const ProgramIdentity> suspects, Clock::time_point now, double weight) {
  std::vector<Ward> entered;
  for (const ProgramIdentity& program : suspects) good_.erase(program);
  if (limits_.faults == 0 || suspects.empty()) return entered;
  std::map<ProgramIdentity, double> parts;
  for (const ProgramIdentity& program : suspects) parts[program] += weight / static_cast<double>(suspects.size());
  const auto enter = [&](Ward::Extent extent, const ProgramIdentity& program, double sum, double limit) {
    const Ward ward = Ward::of(extent, program);
    if (sum + kRounding >= limit && wards_.insert(ward).second) entered.push_back(ward);
  };
  const auto faults = static_cast<double>(limits_.faults);
  for (const auto& [program, part] : parts) {
    if (!records_.contains(program)) make_room();
    Shares& shares = records_[program];
    std::erase_if(shares, [&](const Share& share) { return now - share.when >= limits_.window; });
    shares.push_back({now, part});
    enter(Ward::Extent::command, program, sum_of(shares, now), faults);
    const double different_ones = std::max(faults, kLeastDifferent);
    enter(Ward::Extent::program, program, different(Ward::of(Ward::Extent::program, program), Ward::Extent::command, now), different_ones);
    enter(Ward::Extent::user, program, different(Ward::of(Ward::Extent::user, program), Ward::Extent::program, now), different_ones);
  }
  return entered;
}

void Quarantine::make_room() {
  if (records_.size() < kMostRecords) return;
  records_.erase(std::ranges::min_element(records_, {}, [](const auto& record) { return record.second.back().when; }));
}

void Quarantine::note_good(const ProgramIdentity& program) {
  if (records_.contains(program)) return;
  if (good_.size() >= kMostGood && !good_.contains(program))
    good_.erase(std::ranges::min_element(good_, {}, [](const auto& entry) { return entry.second; }));
  good_[program] = ++last_good_;
}

std::optional<Ward> Quarantine::ward_of(const ProgramIdentity& program) const {
  for (const Ward::Extent extent : {Ward::Extent::command, Ward::Extent::program, Ward::Extent::user}) {
    if (extent == Ward::Extent::user && good_.contains(program)) continue;
    if (const auto found = wards_.find(Ward::of(extent, program)); found != wards_.end()) return *found;
  }
  if (limits_.probation.count() == 0 || good_.contains(program)) return std::nullopt;
  return Ward::of(Ward::Extent::newcomers, program);
}

bool Quarantine::concerns(uid_t uid) const {
  if (limits_.probation.count() != 0) return true;
  return std::ranges::any_of(wards_, [&](const Ward& ward) { return ward.program.uid == uid; });
}

std::vector<Ward> Quarantine::release(Clock::time_point now) {
  std::erase_if(records_, [&](const auto& record) { return now - record.second.back().when >= limits_.window; });
  std::vector<Ward> left;
  std::erase_if(wards_, [&](const Ward& ward) {
    if (std::ranges::any_of(records_, [&](const auto& record) { return ward.holds(record.first); })) return false;
    left.push_back(ward);
    return true;
  });
  return left;
}

void Quarantine::save(StateWriter& state) const {
  state.number(records_.size());
  for (const auto& [program, shares] : records_) {
    save_program(state, program);
    state.number(shares.size());
    for (const Share& share : shares) state.plain(share);
  }
  state.number(wards_.size());
  for (const Ward& ward : wards_) {
    state.number(static_cast<std::uint64_t>(ward.extent));
    save_program(state, ward.program);
  }
  state.number(good_.size());
  std::map<std::uint64_t, const ProgramIdentity*> by_age;
  for (const auto& [program, age] : good_) by_age[age] = &program;
  for (const auto& [age, program] : by_age) save_program(state, *program);
}

void Quarantine::restore(StateReader& state) {
  for (std::uint64_t left = state.number(); left > 0 && state.ok(); --left) {
    const ProgramIdentity program = restore_program(state);
    Shares& shares = records_[program];
    for (std::uint64_t more = state.number(); more > 0 && state.ok(); --more) shares.push_back(state.plain<Share>());
    if (shares.empty()) state.fail();
  }
  for (std::uint64_t left = state.number(); left > 0 && state.ok(); --left) {
    const std::uint64_t extent = state.number();
    if (extent > static_cast<std::uint64_t>(Ward::Extent::user)) return state.fail();
    wards_.insert(Ward::of(static_cast<Ward::Extent>(extent), restore_program(state)));
  }
  for (std::uint64_t left = state.number(); left > 0 && state.ok(); --left) good_[restore_program(state)] = ++last_good_;
  if (limits_.faults != 0) return;
  records_.clear();
  wards_.clear();
}

Quarantine::Clock::time_point Quarantine::next_release() const {
  Clock::time_point next = Clock::time_point::max();
  for (const auto& [program, shares] : records_) next = std::min(next, shares.back().when + limits_.window);
  return next;
}

}  // namespace mpsshim::broker::control
