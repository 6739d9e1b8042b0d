// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/base/helper_pool.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace mpsshim::broker {

namespace {
constexpr std::chrono::seconds kIdleLimit{2};  // of a thread beyond those at rest
}

HelperPool::HelperPool(unsigned threads, std::function<void()> enter)
    : is_by_hand_(threads == kByHand), threads_at_rest_(is_by_hand_ ? 0 : threads), enter_(std::move(enter)) {
  std::lock_guard lock(mutex_);
  for (unsigned i = 0; i < threads_at_rest_; ++i) start_thread(true);
}

HelperPool::~HelperPool() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  std::unique_lock lock(mutex_);
  while (!threads_.empty()) {
    std::thread thread = std::move(threads_.back());
    threads_.pop_back();
    lock.unlock();
    thread.join();
    lock.lock();
  }
  for (std::thread& thread : ended_) thread.join();
}

void HelperPool::start_thread(bool stays) {
  ++idle_;
  threads_.emplace_back([this, stays] {
    pthread_setname_np(pthread_self(), "helper");
    loop(stays);
  });
}

// Asked whenever a job comes and whenever a thread takes one.
void HelperPool::grow() {
  if (first_that_may_run() == ready_.end()) return;
  idle_ == 0 ? start_thread(false) : changed_.notify_one();  // it may have become one that may run while others sleep
}

// There is a thread for whatever may run, or one is made.
bool HelperPool::may_run(std::uint64_t session) const {
  if (session == kOfNobody) return true;
  const Queue& queue = queues_.at(session);
  const unsigned most = threads_at_rest_ * kGrowth;
  if (!users_.contains(queue.user)) return running_ < most + most / kUserReserve;
  if (!processes_.contains(queue.process)) return running_ < most;
  return running_ < most - most / kProcessReserve;
}

std::deque<std::uint64_t>::iterator HelperPool::first_that_may_run() {
  return std::ranges::find_if(ready_, [this](std::uint64_t session) REQUIRES(mutex_) { return may_run(session); });
}

void HelperPool::count(std::uint64_t session, const Queue& queue, int change) {
  if (session == kOfNobody) return;
  const auto add = [change](unsigned& number) { return number += static_cast<unsigned>(change); };
  add(running_);
  if (add(processes_[queue.process]) == 0) processes_.erase(queue.process);
  if (add(users_[queue.user]) == 0) users_.erase(queue.user);
}

void HelperPool::submit(const Client& client, std::function<void()> job) {
  std::vector<std::thread> ended;
  {
    std::lock_guard lock(mutex_);
    Queue& queue = queues_[client.session];
    queue.process = client.process;
    queue.user = client.user;
    queue.jobs.push_back(std::move(job));
    make_ready(client.session, queue);
    ended.swap(ended_);
    grow();
  }
  for (std::thread& thread : ended) thread.join();
}

bool HelperPool::run_next() {
  std::function<void()> run;
  {
    const std::lock_guard lock(mutex_);
    if (!is_by_hand_ || queues_.empty()) return false;
    auto queue = queues_.upper_bound(last_by_hand_);
    if (queue == queues_.end()) queue = queues_.begin();
    last_by_hand_ = queue->first;
    run = std::move(queue->second.jobs.front());
    queue->second.jobs.pop_front();
    if (queue->second.jobs.empty()) queues_.erase(queue);
  }
  run();
  return true;
}

// If it has a job, and not its share of the threads.
void HelperPool::make_ready(std::uint64_t session, Queue& queue) {
  if (is_by_hand_) return;
  const unsigned share = session == kOfNobody ? 1 : threads_at_rest_;
  if (queue.is_ready || queue.jobs.empty() || queue.running >= share) return;
  queue.is_ready = true;
  session == kOfNobody ? ready_.push_front(session) : ready_.push_back(session);
  changed_.notify_one();
}

void HelperPool::loop(bool stays) {
  enter_();
  std::unique_lock lock(mutex_);
  for (;;) {
    const auto has_work = [this]() REQUIRES(mutex_) { return first_that_may_run() != ready_.end() || (stopping_ && queues_.empty()); };
    if (stays) {
      changed_.wait(lock, has_work);
    } else if (!changed_.wait_for(lock, kIdleLimit, has_work)) {
      return leave();
    }
    --idle_;
    const auto next = first_that_may_run();
    if (next == ready_.end()) return;
    const std::uint64_t session = *next;
    ready_.erase(next);
    Queue& queue = queues_.at(session);  // stays while one of its jobs runs
    std::function<void()> run = std::move(queue.jobs.front());
    queue.jobs.pop_front();
    queue.is_ready = false;
    ++queue.running;
    count(session, queue, 1);
    make_ready(session, queue);
    grow();
    lock.unlock();
    run();
    run = nullptr;  // what it holds goes without the lock
    lock.lock();
    ++idle_;
    --queue.running;
    count(session, queue, -1);
    make_ready(session, queue);
    if (queue.running == 0 && queue.jobs.empty()) queues_.erase(session);
    if (stopping_) changed_.notify_all();  // whether all is done
  }
}

// By a thread that ends before the pool does. The next submit(), or the end, joins it.
void HelperPool::leave() {
  --idle_;
  const auto self = std::ranges::find(threads_, std::this_thread::get_id(), &std::thread::get_id);
  if (self == threads_.end()) return;  // the destructor has it already
  ended_.push_back(std::move(*self));
  threads_.erase(self);
}

}  // namespace mpsshim::broker
