// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/helper_pool.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace mpsshim::broker {

namespace {
constexpr std::chrono::seconds kIdleLimit{2};  // of a thread beyond those at rest
}

HelperPool::HelperPool(unsigned threads, std::function<void()> enter) : threads_at_rest_(threads), enter_(std::move(enter)) {
  std::lock_guard lock(mutex_);
  for (unsigned i = 0; i < threads; ++i) start_thread(true);
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
  const bool may_grow = threads_.size() < std::size_t{threads_at_rest_} * kGrowth;
  if (idle_ == 0 && may_grow && next() != jobs_.end()) start_thread(false);
}

void HelperPool::submit(std::uint64_t session, std::function<void()> job) {
  std::vector<std::thread> ended;
  {
    std::lock_guard lock(mutex_);
    jobs_.push_back({session, std::move(job)});
    ended.swap(ended_);
    grow();
  }
  changed_.notify_one();
  for (std::thread& thread : ended) thread.join();
}

bool HelperPool::run_next() {
  Job job;
  {
    const std::lock_guard lock(mutex_);
    if (threads_at_rest_ != 0 || jobs_.empty()) return false;
    job = std::move(jobs_.front());
    jobs_.pop_front();
  }
  job.run();
  return true;
}

// The first job whose session has not its share of the threads.
std::deque<HelperPool::Job>::iterator HelperPool::next() {
  return std::ranges::find_if(jobs_, [this](const Job& job) {
    const auto running = running_.find(job.session);
    return running == running_.end() || running->second < threads_at_rest_;
  });
}

void HelperPool::loop(bool stays) {
  enter_();
  std::unique_lock lock(mutex_);
  for (;;) {
    const auto has_work = [this] { return next() != jobs_.end() || (stopping_ && jobs_.empty()); };
    if (stays) {
      changed_.wait(lock, has_work);
    } else if (!changed_.wait_for(lock, kIdleLimit, has_work)) {
      return leave();
    }
    const auto job = next();
    if (job == jobs_.end()) {
      --idle_;
      return;
    }
    const std::uint64_t session = job->session;
    std::function<void()> run = std::move(job->run);
    jobs_.erase(job);
    ++running_[session];
    --idle_;
    grow();
    lock.unlock();
    run();
    run = nullptr;  // what it holds goes without the lock
    lock.lock();
    ++idle_;
    if (--running_[session] == 0) running_.erase(session);
    changed_.notify_all();  // another job of that session may run now; the end looks whether all is done
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
