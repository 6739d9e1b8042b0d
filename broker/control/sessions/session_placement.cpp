// SPDX-License-Identifier: Apache-2.0
// Which executor serves whom. Newcomers go to the first that no kernel without end blocks. A session that starves there is moved: when another
// executor is ready its own one is asked to pause it, and from then on it is what it would be after its executor's death. What it has mapped
// in the old one can be taken down only in a quiet window and stays behind till then (Remnants).
#include <algorithm>

#include <unistd.h>

#include "broker/control/sessions/session_manager.hpp"
#include "broker/log.hpp"

namespace mpsshim::broker::control {

uid_t SessionManager::house_of(const ClientIdentity& client) const {
  return !limits_.serves_all_users || limits_.shares_executors || client.uid == geteuid() ? kHome : client.uid;
}

// False if no executor can have it.
bool SessionManager::place(ClientSession& session) {
  if (session.executor != nullptr) return true;
  if (const auto ward = quarantine_.ward_of(session.client.program->program)) session.executor = place_in_quarantine(session, *ward);
  if (session.executor != nullptr) return true;
  const uid_t house = house_of(session.client);
  const auto suits_it = [&](const ManagedExecutor& executor) { return suits(executor, session); };
  if (blocks_its_share(session)) {
    session.executor =
        pool_.any(session.device, house, [&](const ManagedExecutor& other) { return pool_.all().at(other.id())->is_blocked() && suits_it(other); });
    if (session.executor != nullptr) return true;
  }
  session.executor = pool_.choose(session.device, house, suits_it);
  // All are blocked: it may be served all the same, as long as it needs no quiet window.
  if (session.executor == nullptr) session.executor = pool_.any(session.device, house, suits_it);
  return session.executor != nullptr;
}

bool SessionManager::suits(const ManagedExecutor& executor, const ClientSession& session) const {
  return !remnants_.contains(executor, session.id) && !reserved_.contains(executor.id()) && !is_kept_clean(executor);
}

// For a session that comes with variables: loads of others would be in the way of its own.
bool SessionManager::is_kept_clean(const ManagedExecutor& executor) const {
  return std::ranges::any_of(sessions_, [&](const auto& entry) {
    const std::optional<Relocation>& relocation = entry.second.relocation;
    return relocation && relocation->to == &executor && relocation->has_variables;
  });
}

// An executor for what is in quarantine alone: the one it has, a further one that nobody uses, or a new one. Where none can be had it shares
// another's quarantine, or an executor that is blocked and so is of use to nobody who needs a quiet window. nullptr: it has to be served among
// the others.
ManagedExecutor* SessionManager::place_in_quarantine(const ClientSession& session, const Ward& ward) {
  (void)pool_.first(session.device);
  if (ManagedExecutor* found = find_quarantine(session, ward)) return found;
  const uid_t house = house_of(session.client);
  const auto is_near = [&](ExecutorId id) { return id.device == session.device && id.user == house; };
  const auto count = std::ranges::count_if(reserved_, [&](const auto& entry) { return is_near(entry.first); });
  const auto is_free = [&](const ManagedExecutor& other) { return !other.is_first() && !reserved_.contains(other.id()) && !is_used(other); };
  ManagedExecutor* const own = static_cast<unsigned>(count) < limits_.quarantine.executors ? pool_.choose(session.device, house, is_free) : nullptr;
  if (own != nullptr) {
    reserved_[own->id()] = ward;
    log_warning("{}: is in quarantine, in executor {}, which serves nothing else than this: {}.", session.name(), own->label(), ward.name());
    return own;
  }
  for (const auto& [id, other] : reserved_) {
    if (!is_near(id) || remnants_.contains(*pool_.all().at(id), session.id)) continue;
    log_warning("{}: is in quarantine, in executor {}, together with this: {}; there are no more for it (--quarantine-executors, --executors).",
                session.name(), pool_.all().at(id)->label(), other.name());
    return pool_.all().at(id).get();
  }
  if (ManagedExecutor* const blocked = pool_.any(
          session.device, house, [&](const ManagedExecutor& other) { return pool_.all().at(other.id())->is_blocked() && suits(other, session); })) {
    log_warning("{}: is in quarantine, in executor {}, which kernels without end block, because no other can be had (--executors).", session.name(),
                blocked->label());
    return blocked;
  }
  log_warning(
      "{}: should be in quarantine and is served among the others, because no further executor can be had (--executors, or the GPU's compute mode).",
      session.name());
  return nullptr;
}

ManagedExecutor* SessionManager::find_quarantine(const ClientSession& session, const Ward& ward) const {
  for (const auto& [id, held] : reserved_) {
    ManagedExecutor& executor = *pool_.all().at(id);
    if (id.device != session.device || id.user != house_of(session.client) || held != ward || executor.is_quitting()) continue;
    if (!remnants_.contains(executor, session.id)) return &executor;
  }
  return nullptr;
}

bool SessionManager::is_used(const ManagedExecutor& executor) const {
  return std::ranges::any_of(sessions_, [&](const auto& entry) {
    const ClientSession& session = entry.second;
    if (session.relocation && session.relocation->to == &executor) return true;
    return session.executor == &executor && session.phase != SessionPhase::lost;
  });
}

void SessionManager::release(ManagedExecutor& executor) {
  if (!is_used(executor)) pool_.release(executor, [this, &executor] { return !is_used(executor); });
}

void SessionManager::free_leases(const std::vector<Remnants::Leases>& leases) {
  if (!leases_) return;
  for (const Remnants::Leases& pair : leases) {
    leases_->give_back(pair.device);
    leases_->give_back(pair.pinned);
  }
}

// Out of quarantine no move leads among the others.
ManagedExecutor* SessionManager::choose_other(const ClientSession& session, const ManagedExecutor& than) {
  const auto own = reserved_.find(than.id());
  // With variables it needs its modules where they are here: only an executor that has loaded nothing yet can make the same loads.
  const bool has_variables = session.variables.valid();
  ManagedExecutor* other = pool_.choose(session.device, than.user(), [&](const ManagedExecutor& executor) {
    if (&executor == &than || remnants_.contains(executor, session.id) || is_kept_clean(executor)) return false;
    if (has_variables && (images_.has_log(executor.id()) || is_used(executor))) return false;
    const auto reserved = reserved_.find(executor.id());
    return own == reserved_.end() ? reserved == reserved_.end() : reserved != reserved_.end() && reserved->second == own->second;
  });
  if (other != nullptr && own != reserved_.end()) reserved_.emplace(other->id(), own->second);
  return other;
}

std::string SessionManager::name_of(std::uint64_t id) const {
  const auto found = sessions_.find(id);
  return found == sessions_.end() ? "a client that is gone" : found->second.name();
}

void SessionManager::starved(ManagedExecutor& executor, const message::Starved& report) {
  executor.note_blocked(report.session);
  ClientSession* session = find(report.session);
  if (session == nullptr || session->executor != &executor || session->phase != SessionPhase::active || session->relocation) return;
  if ((report.flags & kStarvesInPlace) != 0 || session->is_bound) {
    return log_warning("{}: {} waits in executor {} for work of {} to end (--patience-s); what the session has cannot go to another executor.",
                       session->name(), report.text, executor.label(), name_of(report.blocker));
  }
  const bool waits_for_itself = report.blocker == session->id;
  if (!waits_for_itself && blocks_its_share(*session)) return stay(*session, "kernels of its own kind block all executors but the last");
  ManagedExecutor* to = waits_for_itself ? nullptr : choose_other(*session, executor);
  if (to == nullptr) {
    return stay(*session, !waits_for_itself && end_a_blocker(*session) ? "one is to be freed for it" : "no other executor can be had");
  }
  log_warning("{}: {} cannot be made in executor {} while work of {} runs on; it moves to executor {}.", session->name(), report.text,
              executor.label(), name_of(report.blocker), to->label());
  session->relocation.emplace();
  relocate(*session, *to);
}

void SessionManager::relocate(ClientSession& session, ManagedExecutor& to) {
  session.relocation->to = &to;
  session.relocation->has_variables = session.variables.valid();
  if (to.state() == ExecutorState::active) return ask_for_pause(session);
  session.relocation->limit = loop_.after(limits_.answer, [this, id = session.id] { stay(sessions_.at(id), "the other executor is not ready"); });
}

// One after the other: the first behind the one whose turn it was last that can move.
void SessionManager::relocate_for_tests() {
  relocation_timer_ = loop_.after(limits_.relocate_for_tests, [this] { relocate_for_tests(); });
  if (quitting_ || rest_ || on_renewed_ || on_retired_) return;
  const auto can_move = [](const ClientSession& session) {
    return session.phase == SessionPhase::active && !session.relocation && !session.is_bound && session.executor->state() == ExecutorState::active;
  };
  auto next = sessions_.upper_bound(last_relocated_);
  for (std::size_t looked = 0; looked < sessions_.size(); ++looked, ++next) {
    if (next == sessions_.end()) next = sessions_.begin();
    if (can_move(next->second)) break;
  }
  if (next == sessions_.end() || !can_move(next->second)) return;
  ClientSession& session = next->second;
  last_relocated_ = session.id;
  ManagedExecutor* const to = choose_other(session, *session.executor);
  if (to == nullptr) return;
  log_info("{}: for tests it moves from executor {} to executor {}.", session.name(), session.executor->label(), to->label());
  session.relocation.emplace().is_for_tests = true;
  relocate(session, *to);
}

// What the session has, and whatever was loaded before it.
void SessionManager::copy_log(const ClientSession& session, const ManagedExecutor& from, const ManagedExecutor& to) {
  CopyOwners owners;
  add_copies_of(session, owners);
  images_.copy_log(from.id(), to.id(),
                   {[&](const ImageStore::Entry& entry) {
                      return owners.contains({entry.object, entry.copy});
                    },
                    [&](std::uint64_t image) { return images_.is_held(image, session.id); }});
}

void SessionManager::ask_for_pause(ClientSession& session) {
  session.relocation->order = ++last_order_;
  const std::uint32_t flags = session.relocation->has_variables ? 0 : kPauseWithoutVariables;
  session.executor->send(message::SessionPause{.session = session.id, .order = session.relocation->order, .flags = flags});
  session.relocation->asked = true;
  session.event_times.reset();
  session.relocation->limit = loop_.after(limits_.pause, [this, id = session.id] { stay(sessions_.at(id), "work of its own does not end"); });
}

// With CUDA_SUCCESS its executor serves it no more, until it is told that the session stays. An answer to an order that was called off says nothing.
void SessionManager::paused(ClientSession& session, const message::SessionPaused& answer) {
  const auto status = static_cast<CUresult>(answer.status);
  if ((answer.flags & kPauseToRest) != 0) {
    if (rest_ && rest_->number == answer.order) came_to_rest(session, status);
    return;
  }
  if (session.phase != SessionPhase::active || !session.relocation || session.relocation->order != answer.order) return;
  if (status != CUDA_SUCCESS) return stay(session, "what it has cannot go to another executor");
  session.event_times_hold = true;
  if (session.relocation->has_variables) return check_variables(session);
  leave(session);
}

// The other executor makes the loads now, not before: until it was paused the session may have made more. Then it is asked whether the variables
// have come to the addresses that the client knows.
void SessionManager::check_variables(ClientSession& session) {
  ManagedExecutor& to = *session.relocation->to;
  if (to.state() != ExecutorState::active) return stay(session, "the other executor is not ready");
  session.relocation->has_copies = true;
  copy_log(session, *session.executor, to);
  replay_loads(to, *to.serving());
  to.send({message::VariablesCheck{.session = session.id, .order = session.relocation->order}, {.variables = session.variables.get()}});
  session.relocation->limit = loop_.after(limits_.answer, [this, id = session.id] { stay(sessions_.at(id), "the other executor is not ready"); });
}

void SessionManager::variables_checked(const ManagedExecutor& executor, const message::VariablesChecked& answer) {
  ClientSession* const session = find(answer.session);
  if (session == nullptr || session->phase != SessionPhase::active || !session->relocation) return;
  if (session->relocation->to != &executor || session->relocation->order != answer.order) return;
  if (answer.status == CUDA_SUCCESS) return leave(*session);
  session->is_bound = true;
  stay(*session, "its modules' variables would come to other addresses there");
}

void SessionManager::leave(ClientSession& session) {
  ManagedExecutor& from = *session.executor;
  ManagedExecutor* const to = session.relocation->to;
  session.relocation.reset();
  session.forget_executor();
  session.channel->tell_moved();  // before the close: what its executor still answers is for nobody from here on
  from.send(message::SessionClose{.session = session.id});
  remnants_.add(from, session.id);
  session.executor = to;
  session.phase = SessionPhase::moved;
  session.delivered = false;
  release(from);
}

// Its call waits on, and is reported again.
void SessionManager::stay(ClientSession& session, const char* why) {
  const bool is_for_tests = session.relocation && session.relocation->is_for_tests;
  if (is_for_tests) {
    log_info("{}: stays in executor {}, because {}.", session.name(), session.executor->label(), why);
  } else {
    log_warning("{}: stays in executor {}, because {}; its call waits on (--patience-s).", session.name(), session.executor->label(), why);
  }
  session.executor->send(message::Stay{.session = session.id});
  session.event_times_hold = false;
  drop_relocation(session);
}

void SessionManager::drop_relocation(ClientSession& session) {
  const bool has_copies = session.relocation && session.relocation->has_copies;
  ManagedExecutor* to = session.relocation ? session.relocation->to : nullptr;
  session.relocation.reset();
  if (has_copies) release_copies(session, *to);
  if (to != nullptr) release(*to);
}

void SessionManager::executor_cannot_start(ManagedExecutor& executor, const std::string& why) {
  if (executor.id() == ExecutorId{}) return events_.cannot_start(why);
  std::vector<std::uint64_t> waiting;  // answering may end a session
  for (auto& [id, session] : sessions_) {
    if (session.relocation && session.relocation->to == &executor) stay(session, "the other executor cannot be had");
    if (session.executor == &executor && session.answer) waiting.push_back(id);
  }
  if (!executor.is_permanent()) {
    pool_.refused(executor, why);  // nobody is placed there from now on
    for (const std::uint64_t id : waiting) await_executor(sessions_.at(id));
    return;
  }
  log_error("Executor {} cannot serve: {}. Clients that ask for device {} get CUDA_ERROR_MPS_SERVER_NOT_READY.", executor.label(), why,
            executor.device());
  for (const std::uint64_t id : waiting) respond(sessions_.at(id), CUDA_ERROR_MPS_SERVER_NOT_READY);
}

void SessionManager::executor_stopped(ManagedExecutor& executor) {
  if (!quitting_ && on_retired_) {
    if (!executor.is_first()) forget(executor);  // those it served go to the first of their user
    if (pool_.all_stopped()) std::exchange(on_retired_, nullptr)();
    return;
  }
  if (!quitting_) return forget(executor);
  if (pool_.all_stopped()) events_.stopped();
}

void SessionManager::forget(ManagedExecutor& executor) {
  for (auto& [id, session] : sessions_) {
    if (session.executor == &executor) session.executor = nullptr;  // lost ones, and newcomers that are to be placed anew
  }
  free_leases(remnants_.remove_all(executor));
  standby_feeds_.erase(executor.id());
  heaps_[executor.user()].left.erase(executor.id());
  images_.forget_log(executor.id());
  reserved_.erase(executor.id());
  pool_.forget(executor);
  look_for_renewal();  // which is not waited for any more
}

}  // namespace mpsshim::broker::control
