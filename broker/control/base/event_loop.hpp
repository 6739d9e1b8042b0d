// SPDX-License-Identifier: Apache-2.0
// The control process's one thread waits here: level-triggered epoll, timers, and work put off to the next turn.
// Everything is called from that one thread. Watches and timers are owned by whoever asked for them and end with their handles; they may end
// inside any callback, their own included. A callback must not block: every other client waits meanwhile.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>

#include <sys/epoll.h>

#include "proto/segment.hpp"

namespace mpsshim::broker::control {

class EventLoop {
 public:
  using Clock = std::chrono::steady_clock;
  using Events = std::uint32_t;  // EPOLLIN and kin

  class Watch {
   public:
    Watch() = default;
    Watch(Watch&& other) noexcept : loop_(std::exchange(other.loop_, nullptr)), id_(other.id_), fd_(other.fd_) {}
    Watch& operator=(Watch&& other) noexcept;
    ~Watch() { reset(); }
    void set_events(Events events);
    void reset();
    [[nodiscard]] explicit operator bool() const { return loop_ != nullptr; }

   private:
    friend class EventLoop;
    Watch(EventLoop* loop, std::uint64_t id, int fd) : loop_(loop), id_(id), fd_(fd) {}
    EventLoop* loop_ = nullptr;
    std::uint64_t id_ = 0;
    int fd_ = -1;
  };

  class Timer {
   public:
    Timer() = default;
    Timer(Timer&& other) noexcept : loop_(std::exchange(other.loop_, nullptr)), key_(other.key_) {}
    Timer& operator=(Timer&& other) noexcept;
    ~Timer() { reset(); }
    void reset();
    [[nodiscard]] explicit operator bool() const { return loop_ != nullptr; }

   private:
    friend class EventLoop;
    using Key = std::pair<Clock::time_point, std::uint64_t>;
    Timer(EventLoop* loop, Key key) : loop_(loop), key_(key) {}
    EventLoop* loop_ = nullptr;
    Key key_;
  };

  EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // An empty Watch if the kernel refuses (errno). The descriptor stays the caller's and must be open as long as the watch.
  [[nodiscard]] Watch watch(int fd, Events events, std::function<void(Events)> callback);
  // Of what is ready at once, that one is called first, whatever was ready earlier: orders that say what the rest is worth. One watch.
  void serve_first(const Watch& watch) { first_ = watch.id_; }
  [[nodiscard]] Timer after(std::chrono::milliseconds delay, std::function<void()> callback);
  // Runs after what is ready now. For work done in slices, and for what must not happen under the caller's feet.
  void defer(std::function<void()> task) { deferred_.push_back(std::move(task)); }

  void run();
  void stop() { stopping_ = true; }
  // One turn: waits at most `timeout_ms` (-1: until something happens), then calls back. run() is this in a loop. A turn that takes longer than a
  // second is told in the log.
  void turn(int timeout_ms);

 private:
  struct Entry {
    std::function<void(Events)> callback;
  };
  [[nodiscard]] int wait_ms(int timeout_ms) const;
  void run_due_timers();

  proto::FileDescriptor epoll_;
  std::uint64_t next_id_ = 1;
  std::uint64_t first_ = 0;
  std::unordered_map<std::uint64_t, std::shared_ptr<Entry>> watches_;
  std::map<Timer::Key, std::function<void()>> timers_;
  std::deque<std::function<void()>> deferred_;
  bool stopping_ = false;
};

}  // namespace mpsshim::broker::control
