// SPDX-License-Identifier: Apache-2.0
#include "broker/control/base/event_loop.hpp"

#include <algorithm>
#include <array>
#include <ctime>

#include "broker/log.hpp"

namespace mpsshim::broker::control {

namespace {

// Longer than any turn has cause to be. The processor time tells whether it computed or waited.
constexpr std::chrono::milliseconds kHeldUp{1'000};

std::chrono::nanoseconds processor_time() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

long long milliseconds(std::chrono::nanoseconds time) { return std::chrono::duration_cast<std::chrono::milliseconds>(time).count(); }

}  // namespace

EventLoop::Watch& EventLoop::Watch::operator=(Watch&& other) noexcept {
  if (this != &other) {
    reset();
    loop_ = std::exchange(other.loop_, nullptr);
    id_ = other.id_;
    fd_ = other.fd_;
  }
  return *this;
}

void EventLoop::Watch::set_events(Events events) {
  if (loop_ == nullptr) return;
  epoll_event event{};
  event.events = events;
  event.data.u64 = id_;
  epoll_ctl(loop_->epoll_.get(), EPOLL_CTL_MOD, fd_, &event);
}

void EventLoop::Watch::reset() {
  if (loop_ == nullptr) return;
  epoll_ctl(loop_->epoll_.get(), EPOLL_CTL_DEL, fd_, nullptr);
  loop_->watches_.erase(id_);
  loop_ = nullptr;
}

EventLoop::Timer& EventLoop::Timer::operator=(Timer&& other) noexcept {
  if (this != &other) {
    reset();
    loop_ = std::exchange(other.loop_, nullptr);
    key_ = other.key_;
  }
  return *this;
}

void EventLoop::Timer::reset() {
  if (loop_ != nullptr) loop_->timers_.erase(key_);
  loop_ = nullptr;
}

EventLoop::EventLoop() : epoll_(epoll_create1(EPOLL_CLOEXEC)) {}

EventLoop::Watch EventLoop::watch(int fd, Events events, std::function<void(Events)> callback) {
  const std::uint64_t id = next_id_++;
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return {};
  watches_.emplace(id, std::make_shared<Entry>(Entry{std::move(callback)}));
  return Watch(this, id, fd);
}

EventLoop::Timer EventLoop::after(std::chrono::milliseconds delay, std::function<void()> callback) {
  const Timer::Key key{Clock::now() + delay, next_id_++};
  timers_.emplace(key, std::move(callback));
  return Timer(this, key);
}

int EventLoop::wait_ms(int timeout_ms) const {
  if (!deferred_.empty()) return 0;
  if (timers_.empty()) return timeout_ms;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(timers_.begin()->first.first - Clock::now()).count();
  const int next_timer = static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000));
  return timeout_ms < 0 ? next_timer : std::min(timeout_ms, next_timer);
}

void EventLoop::run_due_timers() {
  const auto now = Clock::now();
  while (!timers_.empty() && timers_.begin()->first.first <= now) {
    auto node = timers_.extract(timers_.begin());  // out of the table first: the callback may set or end any timer
    node.mapped()();
  }
}

void EventLoop::turn(int timeout_ms) {
  std::array<epoll_event, 64> events;
  const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), wait_ms(timeout_ms));
  const Clock::time_point began = Clock::now();
  const std::chrono::nanoseconds computed_before = processor_time();
  std::stable_partition(events.begin(), events.begin() + std::max(count, 0), [this](const epoll_event& event) { return event.data.u64 == first_; });
  for (int i = 0; i < count; ++i) {
    const std::uint64_t id = events[i].data.u64;  // a copy: the structure is packed, no reference may bind to it
    const auto found = watches_.find(id);
    if (found == watches_.end()) continue;                // ended by an earlier callback of this turn
    const std::shared_ptr<Entry> entry = found->second;   // the callback may end its own watch
    entry->callback(events[i].events);
  }
  run_due_timers();
  std::deque<std::function<void()>> tasks;
  tasks.swap(deferred_);  // what a task defers runs in the next turn, after other clients had theirs
  for (auto& task : tasks) task();
  if (const auto took = Clock::now() - began; took >= kHeldUp) {
    log_warning(
        "Everybody waited {} ms for the control process, which computed for {} ms of them. For the rest it waited itself: for a disk, for a "
        "processor, or in a system call.",
        milliseconds(took), milliseconds(processor_time() - computed_before));
  }
}

void EventLoop::run() {
  while (!stopping_) turn(-1);
}

}  // namespace mpsshim::broker::control
