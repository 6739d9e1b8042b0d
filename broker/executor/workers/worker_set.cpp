// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/workers/worker_set.hpp"

#include <algorithm>
#include <atomic>
#include <utility>

#include "broker/executor/sessions/session.hpp"
#include "broker/log.hpp"

namespace mpsshim::broker {

WorkerSet::WorkerSet(ExecutorParts& parts, unsigned count, bool has_threads) : parts_(parts) {
  for (unsigned i = 0; i < count; ++i) workers_.push_back(std::make_unique<Worker>(parts, *this, i, has_threads));
}

WorkerSet::~WorkerSet() = default;

void WorkerSet::add(const std::shared_ptr<Session>& session) {
  {
    std::lock_guard lock(mutex_);
    sessions_[session->id()] = {session, workers_.front().get()};
  }
  workers_.front()->add(session);
}

bool WorkerSet::move(const std::shared_ptr<Session>& session, Placement to, unsigned percent, Worker::Clock::time_point now) {
  std::lock_guard lock(mutex_);
  const auto found = sessions_.find(session->id());
  if (found == sessions_.end() || to == Placement::stay || workers_.size() < 2) return false;
  Worker& home = *workers_[session->home().worker()];
  const Worker& from = *found->second.worker;
  Worker* target = &home;
  if (to == Placement::elsewhere) {
    if (&from == &home && from.load() == 1) return false;  // it has that one for itself already
    target = find_place(from, percent, now);
    if (target == nullptr) return false;
    if (&from != &home && !is_relief(from.work_percent(now), percent, target->work_percent(now))) return false;
    target->expect_work(percent);
  }
  if (&from == target) return false;
  if (to == Placement::home) target->expect_waiting();
  return hand_over(found->second, *target);
}

// The first worker is for newcomers and those that wait.
Worker* WorkerSet::find_place(const Worker& from, unsigned percent, Worker::Clock::time_point now) const {
  std::vector<Worker*> others;
  std::vector<WorkerLoad> loads;
  for (std::size_t i = 1; i < workers_.size(); ++i) {
    Worker& worker = *workers_[i];
    if (&worker == &from) continue;
    others.push_back(&worker);
    loads.push_back({worker.work_percent(now), worker.load(), worker.waiting(now) != 0});
  }
  return others.empty() ? nullptr : others[best_place(loads, percent)];
}

bool WorkerSet::move_to(const std::shared_ptr<Session>& session, unsigned worker) {
  std::lock_guard lock(mutex_);
  const auto found = sessions_.find(session->id());
  return found != sessions_.end() && found->second.worker != workers_[worker].get() && hand_over(found->second, *workers_[worker]);
}

bool WorkerSet::hand_over(Placed& placed, Worker& target) {
  std::exchange(placed.worker, &target)->subtract();
  target.add(placed.session);
  log_debug("Session {}: goes to worker {}", placed.session->id(), target.index());
  return true;
}

std::optional<unsigned> WorkerSet::better_home(std::size_t waiting, std::size_t streams, Worker::Clock::time_point now) const {
  const Worker* fewest = workers_.front().get();
  for (std::size_t home = 1; home <= parts_.sides.count(); ++home) {
    const bool has_room = parts_.sides[home - 1].free_streams() >= streams;
    if (has_room && workers_[home]->waiting(now) < fewest->waiting(now)) fewest = workers_[home].get();
  }
  return has_too_many(waiting, fewest->waiting(now)) ? std::optional(fewest->index()) : std::nullopt;
}

std::optional<unsigned> WorkerSet::worker_of(std::uint64_t session) {
  std::lock_guard lock(mutex_);
  const auto found = sessions_.find(session);
  return found == sessions_.end() ? std::nullopt : std::optional(found->second.worker->index());
}

void WorkerSet::close(std::uint64_t session, std::function<void()> closed) {
  Placed placed;
  {
    std::lock_guard lock(mutex_);
    if (auto node = sessions_.extract(session); !node.empty()) placed = std::move(node.mapped());
  }
  if (!placed.worker) return closed();
  placed.worker->subtract();
  placed.session->run_on_worker([session = placed.session, closed = std::move(closed)] { session->begin_close(closed); });
}

std::shared_ptr<Session> WorkerSet::find(std::uint64_t session) {
  std::lock_guard lock(mutex_);
  const auto found = sessions_.find(session);
  return found == sessions_.end() ? nullptr : found->second.session;
}

void WorkerSet::pause(std::uint64_t id, bool without_variables, std::function<void(CUresult)> answer) {
  const std::shared_ptr<Session> session = find(id);
  if (!session) return answer(CUDA_ERROR_INVALID_HANDLE);
  session->run_on_worker([session, without_variables, answer = std::move(answer)] { session->pause(without_variables, answer); });
}

void WorkerSet::ask_whether_movable(std::uint64_t id, std::function<void(bool)> answer) {
  const std::shared_ptr<Session> session = find(id);
  if (!session) return answer(false);
  session->run_on_worker([session, answer = std::move(answer)] { answer(session->is_movable()); });
}

void WorkerSet::rest(std::uint64_t id, std::uint32_t flags, std::function<void(CUresult)> answer) {
  const std::shared_ptr<Session> session = find(id);
  if (!session) return answer(CUDA_ERROR_INVALID_HANDLE);
  session->run_on_worker([session, flags, answer = std::move(answer)] { session->rest(flags, answer); });
}

void WorkerSet::resume(std::uint64_t id) {
  if (const std::shared_ptr<Session> session = find(id)) session->run_on_worker([session] { session->resume(); });
}

void WorkerSet::give_heap(std::uint64_t id) {
  if (const std::shared_ptr<Session> session = find(id)) session->run_on_worker([session] { session->heap_given(); });
}

void WorkerSet::provision(const message::SessionProvision& wanted, std::function<void(CUresult, std::uint32_t)> answer) {
  const std::shared_ptr<Session> session = find(wanted.session);
  if (!session) return answer(CUDA_ERROR_INVALID_HANDLE, wanted.thread_percentage);
  session->run_on_worker([session, wanted, answer = std::move(answer)] { session->provision(wanted, answer); });
}

void WorkerSet::after_this_turn(std::function<void()> done) {
  const auto left = std::make_shared<std::atomic<std::size_t>>(workers_.size());
  for (const std::unique_ptr<Worker>& worker : workers_) {
    worker->post([left, done] {
      if (left->fetch_sub(1, std::memory_order_acq_rel) == 1) done();
    });
  }
}

void WorkerSet::wake_all() {
  for (const std::unique_ptr<Worker>& worker : workers_) worker->wake();
}

void WorkerSet::turn() {
  for (const std::unique_ptr<Worker>& worker : workers_) worker->turn();
}

}  // namespace mpsshim::broker
