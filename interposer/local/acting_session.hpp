// SPDX-License-Identifier: Apache-2.0
// A process has a session for each device that it has a context on, numbered in the order in which they began; most have one, number 0. What is one
// each a session in this library (the session itself, its tables and caches) is found by the number of the session that the calling thread acts
// for. Which one that is, is decided where a call comes in (entry.hpp), and by whoever works for another one meanwhile.
//
// Threads of the library's own act for the session that has started them.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>

#include "proto/ids.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::interposer {

inline constexpr std::uint32_t kMaxSessions = proto::kRealms;

// Whether there has been more than one. Set before the second one's number is known to anybody.
inline constinit std::atomic<bool> several_sessions_began{false};
[[nodiscard]] inline bool has_several_sessions() { return several_sessions_began.load(std::memory_order_relaxed); }

// The calling thread acts for that session as long as this lives.
class ActingSession {
 public:
  explicit ActingSession(std::uint32_t index) : outer_(acting_) { acting_ = index; }
  ~ActingSession() { acting_ = outer_; }
  ActingSession(const ActingSession&) = delete;
  ActingSession& operator=(const ActingSession&) = delete;

  [[nodiscard]] static std::uint32_t index() { return has_several_sessions() ? acting_ : 0; }

 private:
  const std::uint32_t outer_;
  static inline constinit thread_local std::uint32_t acting_ = 0;
};

// One T a session, made when it is first asked for and never destroyed (calls arrive after destructors have run).
//
//   Streams& Streams::instance() { return PerSession<Streams>::get([] { return new Streams(); }); }
template <typename T>
class PerSession {
 public:
  template <typename Make>
  [[nodiscard]] static T& get(Make&& make) {
    std::atomic<T*>& place = places_[ActingSession::index()];
    if (T* object = place.load(std::memory_order_acquire)) [[likely]]
      return *object;
    const std::lock_guard lock(mutex_);
    T* object = place.load(std::memory_order_relaxed);
    if (object == nullptr) {
      object = make();
      place.store(object, std::memory_order_release);
    }
    return *object;
  }

 private:
  static inline constinit std::array<std::atomic<T*>, kMaxSessions> places_{};
  static inline constinit Mutex mutex_{};  // held while one is made
};

}  // namespace mpsshim::interposer
