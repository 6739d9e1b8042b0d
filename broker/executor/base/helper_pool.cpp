// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/base/helper_pool.hpp"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <system_error>
#include <utility>

#include <pthread.h>

#include "broker/log.hpp"

namespace mpsshim::broker {

namespace {
constexpr std::chrono::seconds kIdleLimit{2};        // of a thread beyond those at rest
constexpr std::chrono::milliseconds kEndPause{10};   // between looks whether all is done, at the end
}

HelperPool::HelperPool(unsigned threads, std::function<void()> enter)
    : is_by_hand_(threads == kByHand), threads_at_rest_(is_by_hand_ ? 0 : threads), enter_(std::move(enter)) {
  std::lock_guard lock(mutex_);
  for (unsigned i = 0; i < threads_at_rest_; ++i) {
    ++idle_;
    threads_.push_back(start_thread(true));
  }
  if (is_by_hand_) return;
  maker_thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "helper-maker");
    make_threads();
  });
}

HelperPool::~HelperPool() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  maker_.notify_all();
  if (maker_thread_.joinable()) maker_thread_.join();  // first: nobody else adds to threads_
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

std::thread HelperPool::start_thread(bool stays) {
  return std::thread([this, stays] {
    pthread_setname_np(pthread_self(), "helper");
    loop(stays);
  });
}

// What may run finds a thread to the end, so what is queued when the pool ends is finished.
void HelperPool::make_threads() {
  std::unique_lock lock(mutex_);
  for (;;) {
    maker_.wait(lock, [this]() REQUIRES(mutex_) { return ordered_ != 0 || !ended_.empty() || stopping_; });
    std::vector<std::thread> ended;
    ended.swap(ended_);
    const unsigned ordered = std::exchange(ordered_, 0);
    if (ended.empty() && ordered == 0 && queues_.empty()) return;  // stopping
    if (ended.empty() && ordered == 0) {                           // the threads that there are finish it
      maker_.wait_for(lock, kEndPause, [this]() REQUIRES(mutex_) { return ordered_ != 0 || queues_.empty(); });
      continue;
    }
    lock.unlock();
    std::vector<std::thread> made = start_threads(ordered);
    lock.lock();
    idle_ -= ordered - static_cast<unsigned>(made.size());
    std::ranges::move(made, std::back_inserter(threads_));
    lock.unlock();
    for (std::thread& thread : ended) thread.join();
    lock.lock();
  }
}

// Fewer where the system has no more for now: those that there are go on with what is queued.
std::vector<std::thread> HelperPool::start_threads(unsigned count) {
  std::vector<std::thread> made;
  try {
    for (unsigned i = 0; i < count; ++i) made.push_back(start_thread(false));
  } catch (const std::system_error& error) {
    log_warning("No further thread for what may take long: {}; those that there are go on", error.what());
  }
  return made;
}

// Asked whenever a job comes and whenever a thread takes one.
void HelperPool::grow() {
  if (first_that_may_run() == ready_.end()) return;
  if (idle_ != 0) return changed_.notify_one();  // it may have become one that may run while others sleep
  ++idle_;
  ++ordered_;
  maker_.notify_one();
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
  std::lock_guard lock(mutex_);
  Queue& queue = queues_[client.session];
  queue.process = client.process;
  queue.user = client.user;
  queue.jobs.push_back(std::move(job));
  make_ready(client.session, queue);
  grow();
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

// By a thread that ends before the pool does. The maker joins it.
void HelperPool::leave() {
  --idle_;
  const auto self = std::ranges::find(threads_, std::this_thread::get_id(), &std::thread::get_id);
  if (self == threads_.end()) return;  // the destructor has it already
  ended_.push_back(std::move(*self));
  threads_.erase(self);
  maker_.notify_one();
}

}  // namespace mpsshim::broker
