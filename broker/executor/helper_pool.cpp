// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/helper_pool.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace mpsshim::broker {

namespace {
constexpr std::chrono::seconds kIdleLimit{2};  // of a thread beyond those at rest
}

HelperPool::HelperPool(unsigned threads, std::function<void()> enter) : is_by_hand_(threads == kByHand), threads_at_rest_(is_by_hand_ ? 0 : threads), enter_(std::move(enter)) {
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

// Under the lock.
void HelperPool::start_thread(bool stays) {
  ++idle_;
  threads_.emplace_back([this, stays] { loop(stays); });
}

// Under the lock. Asked whenever a job comes and whenever a thread takes one.
void HelperPool::grow() {
  if (idle_ != 0 || ready_.empty()) return;
  const bool may_grow = threads_.size() < std::size_t{threads_at_rest_} * kGrowth || ready_.front() == kOfNobody;
  if (may_grow) start_thread(false);
}

void HelperPool::submit(std::uint64_t session, std::function<void()> job) {
  std::vector<std::thread> ended;
  {
    std::lock_guard lock(mutex_);
    Queue& queue = queues_[session];
    queue.jobs.push_back(std::move(job));
    make_ready(session, queue);
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

// Under the lock. If it has a job, and not its share of the threads.
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
    const auto has_work = [this] { return !ready_.empty() || (stopping_ && queues_.empty()); };
    if (stays) {
      changed_.wait(lock, has_work);
    } else if (!changed_.wait_for(lock, kIdleLimit, has_work)) {
      return leave();
    }
    --idle_;
    if (ready_.empty()) return;
    const std::uint64_t session = ready_.front();
    ready_.pop_front();
    Queue& queue = queues_.at(session);  // stays while one of its jobs runs
    std::function<void()> run = std::move(queue.jobs.front());
    queue.jobs.pop_front();
    queue.is_ready = false;
    ++queue.running;
    make_ready(session, queue);
    grow();
    lock.unlock();
    run();
    run = nullptr;  // what it holds goes without the lock
    lock.lock();
    ++idle_;
    --queue.running;
    make_ready(session, queue);
    if (queue.running == 0 && queue.jobs.empty()) queues_.erase(session);
    if (stopping_) changed_.notify_all();  // whether all is done
  }
}

// Under the lock, by a thread that ends before the pool does. The next submit(), or the end, joins it.
void HelperPool::leave() {
  --idle_;
  const auto self = std::ranges::find(threads_, std::this_thread::get_id(), &std::thread::get_id);
  if (self == threads_.end()) return;  // the destructor has it already
  ended_.push_back(std::move(*self));
  threads_.erase(self);
}

}  // namespace mpsshim::broker
