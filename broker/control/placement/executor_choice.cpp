// SPDX-License-Identifier: Apache-2.0
#include "broker/control/placement/executor_choice.hpp"

#include <algorithm>
#include <map>

#include "broker/log.hpp"

namespace mpsshim::broker::control {

bool ExecutorChoice::place(ClientSession& session) {
  if (session.executor != nullptr) return true;
  // Its faults are to stay among its members: they are in no quarantine, and never among the others.
  if (const std::uint64_t group = own_group_(session); group != 0) {
    session.executor = place_apart(session, Ward::of_group(group));
    return session.executor != nullptr;
  }
  if (const auto ward = ledger_.ward_of(*session.client.program)) session.executor = place_apart(session, *ward);
  if (session.executor != nullptr) return true;
  const uid_t house = limits_.house_of(session.client.uid);
  const auto suits_it = [&](const ManagedExecutor& executor) { return suits(executor, session); };
  if (kinds_.block_their_share(session)) {
    session.executor =
        pool_.any(session.device, house, [&](const ManagedExecutor& other) { return pool_.all().at(other.id())->is_blocked() && suits_it(other); });
    if (session.executor != nullptr) return true;
  }
  session.executor = pool_.choose(session.device, house, suits_it);
  // All are blocked: it may be served all the same, as long as it needs no quiet window.
  if (session.executor == nullptr) session.executor = pool_.any(session.device, house, suits_it);
  return session.executor != nullptr;
}

bool ExecutorChoice::suits(const ManagedExecutor& executor, const ClientSession& session) const {
  return !ranges_.is_left_in(executor, session.id) && !is_reserved(executor.id()) && !is_kept_clean(executor);
}

// For a session that comes with variables: loads of others would be in the way of its own.
bool ExecutorChoice::is_kept_clean(const ManagedExecutor& executor) const {
  return std::ranges::any_of(sessions_.all(), [&](const auto& entry) {
    const auto& relocation = entry.second.relocation;
    return relocation && relocation->to == &executor && relocation->has_variables;
  });
}

bool ExecutorChoice::is_near(ExecutorId executor, const ClientSession& session) const {
  return executor.device == session.device && executor.user == limits_.house_of(session.client.uid);
}

// An executor for what is in quarantine, on probation, or in such a group, alone: the one it has, a further one that nobody uses, or a new one. Where
// none can be had quarantine shares another's, or an executor that is blocked and so is of use to nobody who needs a quiet window. nullptr: it has to
// be served among the others.
ManagedExecutor* ExecutorChoice::place_apart(const ClientSession& session, const Ward& ward) {
  (void)pool_.first(session.device);
  if (ManagedExecutor* found = find_apart(session, ward)) return found;
  const auto count =
      std::ranges::count_if(reserved_, [&](const auto& entry) { return is_near(entry.first, session) && entry.second.is_quarantine(); });
  const auto is_free = [&](const ManagedExecutor& other) { return !other.is_first() && !is_reserved(other.id()) && !is_used(other); };
  const bool may_have_own = ward.is_probation() || ward.is_group() || static_cast<unsigned>(count) < limits_.quarantine.executors;
  ManagedExecutor* const own = may_have_own ? pool_.choose(session.device, limits_.house_of(session.client.uid), is_free) : nullptr;
  if (own == nullptr && ward.is_group()) {
    log_warning("{}: its group {} is to have an executor of its own, and no further one can be had (--executors, or the GPU's compute mode).",
                session.name(), session.name_space);
    return nullptr;
  }
  if (own == nullptr && !ward.is_probation()) return share_quarantine(session);
  if (own == nullptr) {
    log_warning(
        "{}: should be on probation and is served among the others, because no further executor can be had (--executors, or the GPU's "
        "compute mode).",
        session.name());
    return nullptr;
  }
  reserved_[own->id()] = ward;
  if (ward.is_probation()) {
    log_info("Executor {} serves the programs of user {} that are new, until they have done without a fault for {} s (--probation-s).", own->label(),
             session.client.uid, limits_.quarantine.probation.count());
    return own;
  }
  if (ward.is_group()) {
    log_info("Executor {} serves the group {} of user {} alone.", own->label(), session.name_space, session.client.uid);
    return own;
  }
  log_warning("{}: is in quarantine, in executor {}, which serves nothing else than this: {}.", session.name(), own->label(), ward.name());
  return own;
}

ManagedExecutor* ExecutorChoice::find_apart(const ClientSession& session, const Ward& ward) const {
  for (const auto& [id, held] : reserved_) {
    ManagedExecutor& executor = *pool_.all().at(id);
    if (!is_near(id, session) || held != ward || executor.is_quitting()) continue;
    if (!ranges_.is_left_in(executor, session.id)) return &executor;
  }
  return nullptr;
}

ManagedExecutor* ExecutorChoice::share_quarantine(const ClientSession& session) const {
  for (const auto& [id, other] : reserved_) {
    ManagedExecutor& executor = *pool_.all().at(id);
    if (!is_near(id, session) || ranges_.is_left_in(executor, session.id) || !other.is_quarantine()) continue;
    log_warning("{}: is in quarantine, in executor {}, together with this: {}; there are no more for it (--quarantine-executors, --executors).",
                session.name(), executor.label(), other.name());
    return &executor;
  }
  const auto is_blocked = [&](const ManagedExecutor& other) { return pool_.all().at(other.id())->is_blocked() && suits(other, session); };
  if (ManagedExecutor* const blocked = pool_.any(session.device, limits_.house_of(session.client.uid), is_blocked)) {
    log_warning("{}: is in quarantine, in executor {}, which kernels without end block, because no other can be had (--executors).", session.name(),
                blocked->label());
    return blocked;
  }
  log_warning(
      "{}: should be in quarantine and is served among the others, because no further executor can be had (--executors, or the GPU's compute mode).",
      session.name());
  return nullptr;
}

ManagedExecutor* ExecutorChoice::other_than(const ManagedExecutor& present, const ClientSession& session, const ExecutorPool::Suits& pleases) {
  const auto own = reserved_.find(present.id());
  // With variables it needs its modules where they are here: only an executor that has loaded nothing yet can make the same loads.
  const bool has_variables = session.variables.valid();
  ManagedExecutor* other = pool_.choose(session.device, present.user(), [&](const ManagedExecutor& executor) {
    if (&executor == &present || ranges_.is_left_in(executor, session.id) || is_kept_clean(executor)) return false;
    if (has_variables && (images_.has_log(executor.id()) || is_used(executor))) return false;
    if (!pleases(executor)) return false;
    const auto reserved = reserved_.find(executor.id());
    return own == reserved_.end() ? reserved == reserved_.end() : reserved != reserved_.end() && reserved->second == own->second;
  });
  if (other != nullptr && own != reserved_.end()) reserved_.emplace(other->id(), own->second);
  return other;
}

// One that has loaded nothing: what is loaded for a trial comes anywhere, and nobody is to find his copies there later.
ManagedExecutor* ExecutorChoice::for_trials(const ManagedExecutor& present) {
  const auto is_free = [&](const ManagedExecutor& executor) {
    return &executor != &present && !executor.is_first() && !is_reserved(executor.id()) && !images_.has_log(executor.id()) && !is_used(executor);
  };
  ManagedExecutor* const own = pool_.choose(present.device(), present.user(), is_free, ExecutorPool::Begin::without_context);
  if (own != nullptr) reserved_[own->id()] = Ward::of_trials();
  return own;
}

void ExecutorChoice::prepare_for_trials() {
  if (limits_.trial.count() == 0) return;
  std::map<std::pair<unsigned, uid_t>, unsigned> sessions;
  for (const auto& [id, session] : sessions_.all()) {
    if (session.executor != nullptr && !session.is_ending() && session.phase != SessionPhase::lost)
      ++sessions[{session.executor->device(), session.executor->user()}];
  }
  for (const auto& [id, executor] : pool_.all()) {
    if (id.ordinal == 0 && !executor->is_quitting()) pool_.keep_spare(id.device, id.user, sessions[{id.device, id.user}] > 1);
  }
}

bool ExecutorChoice::has_blank_heap(const ManagedExecutor& executor) const {
  return !executor.has_heap_remains() && std::ranges::none_of(sessions_.all(), [&](const auto& entry) {
    const ClientSession& session = entry.second;
    return session.executor == &executor && session.is_ending() && session.uses_heap;
  });
}

bool ExecutorChoice::serves_probation(ExecutorId executor) const {
  const auto reserved = reserved_.find(executor);
  return reserved != reserved_.end() && reserved->second.is_probation();
}

ManagedExecutor* ExecutorChoice::out_of_probation(const ClientSession& session) {
  if (session.executor == nullptr || !serves_probation(session.executor->id()) || ledger_.ward_of(*session.client.program)) return nullptr;
  const bool has_variables = session.variables.valid();  // as in other_than()
  return pool_.any(session.device, session.executor->user(), [&](const ManagedExecutor& executor) {
    if (!suits(executor, session) || pool_.all().at(executor.id())->is_blocked()) return false;
    return !has_variables || !(images_.has_log(executor.id()) || is_used(executor));
  });
}

bool ExecutorChoice::is_used(const ManagedExecutor& executor) const {
  return std::ranges::any_of(sessions_.all(), [&](const auto& entry) {
    const ClientSession& session = entry.second;
    if (session.relocation && session.relocation->to == &executor) return true;
    return session.executor == &executor && session.phase != SessionPhase::lost;
  });
}

void ExecutorChoice::let_go_if_unused(ManagedExecutor& executor) {
  const auto reserved = reserved_.find(executor.id());
  const bool at_once = reserved != reserved_.end() && reserved->second.is_trials();  // nobody else is placed there
  const auto is_unused = [this, &executor] { return !is_used(executor); };
  if (is_unused()) pool_.release(executor, is_unused, at_once);
}

void ExecutorChoice::released(const Ward& ward) {
  std::erase_if(reserved_, [&](const auto& entry) { return entry.second == ward; });
}

}  // namespace mpsshim::broker::control
