// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/helper_pool.hpp"

namespace mpsshim::broker {

HelperPool::HelperPool(unsigned threads, std::function<void()> enter) : enter_(std::move(enter)) {
  for (unsigned i = 0; i < threads; ++i) threads_.emplace_back([this] { loop(); });
}

HelperPool::~HelperPool() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void HelperPool::submit(std::function<void()> job) {
  {
    std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  changed_.notify_one();
}

void HelperPool::loop() {
  enter_();
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    std::function<void()> job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job();
    lock.lock();
  }
}

}  // namespace mpsshim::broker
