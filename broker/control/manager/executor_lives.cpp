// SPDX-License-Identifier: Apache-2.0
// What SessionManager does as executors become ready, die, hang and end.
#include "broker/control/manager/session_manager.hpp"

#include <vector>

#include "broker/log.hpp"
#include "broker/log_subject.hpp"

namespace mpsshim::broker::control {

void SessionManager::executor_ready(ManagedExecutor& executor) {
  const bool first = !facts_file_.are_there();
  if (executor.id() == ExecutorId{}) facts_file_.publish(*executor.facts());
  partitions_.learn(executor.chunks());
  if (first) take_default_limits(*executor.facts());
  ranges_.make(*executor.facts());
  replays_.begin(executor, *executor.serving());
  if (restarts_.keeps_at_rest(executor)) {
    executor.hold();
  } else {
    serve(executor);
  }
  trials_.executor_ready(executor);
  log_server(executor.pid(), "Server status is ACTIVE: device {}, {}.", executor.device(), executor.driver());
  choice_.let_go_if_unused(executor);
  if (first && facts_file_.are_there()) events_.facts_published();
  restarts_.look_for_renewal();
}

// It opens sessions: those that wait for it, and those that are to move there.
void SessionManager::serve(ManagedExecutor& executor) {
  opening_.serve(executor);
  relocations_.serve(executor);
}

bool SessionManager::executor_died(ManagedExecutor& executor, const DeathReport& report, const std::set<std::uint64_t>& busy) {
  const bool was_replaced_for_one = replacements_.life_ended(executor) && report.cause == DeathReport::Cause::replaced;
  life_ended(executor);
  return deaths_.settle(executor, report, busy) || was_replaced_for_one;
}

void SessionManager::life_ended(const ManagedExecutor& executor) {
  heaps_.life_ended(executor);
  replays_.life_ended(executor);
  ranges_.executor_ended(executor);
}

void SessionManager::executor_hangs(ManagedExecutor& executor, const PublishedCall& call) {
  const ClientSession* session = sessions_.find(call.session);
  log_error("Executor {} (pid {}) hangs in {} for {}: it is replaced; --hang-ms is the limit.", executor.label(), executor.pid(), call.name.text(),
            session != nullptr  ? session->name()
            : call.session == 0 ? "no session"
                                : "a session that has ended");
  replacements_.begin(executor, false);
}

void SessionManager::executor_cannot_start(ManagedExecutor& executor, const std::string& why) {
  if (executor.id() == ExecutorId{}) return events_.cannot_start(why);
  relocations_.cannot_start(executor);
  const std::vector<std::uint64_t> waiting = opening_.waiting_for(executor);  // answering may end a session
  if (!executor.is_permanent()) {
    pool_.refused(executor, why);  // nobody is placed there from now on
    for (const std::uint64_t id : waiting) opening_.await_executor(sessions_.at(id));
    return;
  }
  log_error("Executor {} cannot serve: {}. Clients that ask for device {} get CUDA_ERROR_MPS_SERVER_NOT_READY.", executor.label(), why,
            executor.device());
  for (const std::uint64_t id : waiting) sessions_.at(id).respond(CUDA_ERROR_MPS_SERVER_NOT_READY);
}

void SessionManager::executor_stopped(ManagedExecutor& executor) {
  if (restarts_.is_retiring()) {
    if (!executor.is_first()) forget(executor);  // those it served go to the first of their user
    return restarts_.look_for_retired();
  }
  if (!restarts_.is_quitting()) return forget(executor);
  if (pool_.all_stopped()) events_.stopped();
}

void SessionManager::forget(ManagedExecutor& executor) {
  for (auto& [id, session] : sessions_.all()) {
    if (session.executor == &executor) session.executor = nullptr;  // lost ones, and newcomers that are to be placed anew
  }
  life_ended(executor);
  images_.forget_log(executor.id());
  memory_limits_.forget(executor.id());
  thread_percentages_.forget(executor.id());
  choice_.forget(executor.id());
  pool_.forget(executor);
  restarts_.look_for_renewal();  // which is not waited for any more
}

}  // namespace mpsshim::broker::control
