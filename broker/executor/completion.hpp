// SPDX-License-Identifier: Apache-2.0
// One thread that watches the fences on which clients sleep (FenceWaiter in proto/channel.hpp) and wakes them. A client that stops spinning
// arms a waiter and rings its session's completion doorbell; without armed waiters the thread sleeps in epoll, so idle sessions cost nothing.
//
// Threads: add and remove from any; neither waits for the GPU. Trust: a waiter's fence index is checked; a client that scribbles into its
// waiters or fences wakes or does not wake its own threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "proto/segment.hpp"

namespace mpsshim::broker {

class ClientChannel;

class Completion {
 public:
  Completion();
  Completion(const Completion&) = delete;
  ~Completion();

  // `channel` stays mapped until remove(session) has returned.
  void add(std::uint64_t session, ClientChannel& channel);
  void remove(std::uint64_t session);

  struct Scan {
    bool armed = false;  // some waiter's fence has not come yet
    bool fired = false;
  };
  // Looks once at all waiters of a channel; public for tests.
  static Scan scan(ClientChannel& channel);

 private:
  void loop();
  void wait(long pause_ns);

  proto::FileDescriptor epoll_;
  proto::FileDescriptor wake_event_;
  std::mutex mutex_;
  std::map<std::uint64_t, ClientChannel*> sessions_;
  std::map<std::uint64_t, ClientChannel*> active_;  // have armed waiters, as far as known
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace mpsshim::broker
