// SPDX-License-Identifier: Apache-2.0
// The standard library's mutexes as clang's thread-safety analysis knows them: variables say GUARDED_BY(mutex_), functions REQUIRES(mutex_)
// (proto/thread_annotations.hpp). They are locked as ever, with std::lock_guard and its kin, which are specialised here for mutexes with
// annotations and do what the standard's do.
//
// The analysis follows a lock within its function. What is moved, or handed on by a pointer, it takes for not held.
// The names are the project's, not only this folder's: every part has mutexes.
#pragma once

#include <mutex>
#include <shared_mutex>
#include <utility>

#include "proto/thread_annotations.hpp"

namespace mpsshim {

// A lock of any kind with annotations names itself so.
template <typename M>
concept AnnotatedMutex = M::kIsAnnotated;

class CAPABILITY("mutex") Mutex {
 public:
  static constexpr bool kIsAnnotated = true;

  void lock() ACQUIRE() { native_.lock(); }
  [[nodiscard]] bool try_lock() TRY_ACQUIRE(true) { return native_.try_lock(); }
  void unlock() RELEASE() { native_.unlock(); }

  // For the analysis alone, where it cannot know that the lock is held (in a lambda that is called under it), or that none is needed (nobody
  // else knows the object yet, or any more). Each use says which. Nothing is looked at.
  void assume_held() const ASSERT_CAPABILITY(this) {}

 private:
  friend class CondVar;
  std::mutex native_;
};

// The reverse of a lock: in its scope the caller does without a mutex that it holds, and has it again however the scope is left.
class SCOPED_CAPABILITY Unlocked {
 public:
  explicit Unlocked(Mutex& mutex) RELEASE(mutex) : mutex_(mutex) { mutex_.unlock(); }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;
  ~Unlocked() RELEASE() { mutex_.lock(); }

 private:
  Mutex& mutex_;
};

class CAPABILITY("mutex") SharedMutex {
 public:
  static constexpr bool kIsAnnotated = true;

  void lock() ACQUIRE() { native_.lock(); }
  [[nodiscard]] bool try_lock() TRY_ACQUIRE(true) { return native_.try_lock(); }
  void unlock() RELEASE() { native_.unlock(); }
  void lock_shared() ACQUIRE_SHARED() { native_.lock_shared(); }
  [[nodiscard]] bool try_lock_shared() TRY_ACQUIRE_SHARED(true) { return native_.try_lock_shared(); }
  void unlock_shared() RELEASE_SHARED() { native_.unlock_shared(); }

 private:
  std::shared_mutex native_;
};

}  // namespace mpsshim

template <mpsshim::AnnotatedMutex M>
class SCOPED_CAPABILITY std::lock_guard<M> {
 public:
  using mutex_type = M;

  explicit lock_guard(M& mutex) ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  lock_guard(M& mutex, std::adopt_lock_t) REQUIRES(mutex) : mutex_(mutex) {}
  lock_guard(const lock_guard&) = delete;
  lock_guard& operator=(const lock_guard&) = delete;
  ~lock_guard() RELEASE() { mutex_.unlock(); }

 private:
  M& mutex_;
};

template <mpsshim::AnnotatedMutex M>
class SCOPED_CAPABILITY std::unique_lock<M> {
 public:
  using mutex_type = M;

  unique_lock() noexcept = default;
  explicit unique_lock(M& mutex) ACQUIRE(mutex) : mutex_(&mutex), is_owner_(true) { mutex.lock(); }
  unique_lock(M& mutex, std::defer_lock_t) noexcept EXCLUDES(mutex) : mutex_(&mutex) {}
  unique_lock(M& mutex, std::adopt_lock_t) noexcept REQUIRES(mutex) : mutex_(&mutex), is_owner_(true) {}
  unique_lock(M& mutex, std::try_to_lock_t) : mutex_(&mutex), is_owner_(mutex.try_lock()) {}
  unique_lock(unique_lock&& other) noexcept : mutex_(std::exchange(other.mutex_, nullptr)), is_owner_(std::exchange(other.is_owner_, false)) {}
  unique_lock& operator=(unique_lock&& other) noexcept {
    unique_lock(std::move(other)).swap(*this);
    return *this;
  }
  ~unique_lock() RELEASE() {
    if (is_owner_) mutex_->unlock();
  }

  void lock() ACQUIRE() {
    mutex_->lock();
    is_owner_ = true;
  }
  bool try_lock() TRY_ACQUIRE(true) { return is_owner_ = mutex_->try_lock(); }
  void unlock() RELEASE() {
    is_owner_ = false;
    mutex_->unlock();
  }
  void swap(unique_lock& other) noexcept {
    std::swap(mutex_, other.mutex_);
    std::swap(is_owner_, other.is_owner_);
  }
  M* release() noexcept {
    is_owner_ = false;
    return std::exchange(mutex_, nullptr);
  }
  [[nodiscard]] bool owns_lock() const noexcept { return is_owner_; }
  explicit operator bool() const noexcept { return is_owner_; }
  [[nodiscard]] M* mutex() const noexcept { return mutex_; }

 private:
  M* mutex_ = nullptr;
  bool is_owner_ = false;
};

// Two at once, in no order: std::lock sees to it that nobody waits for ever.
template <mpsshim::AnnotatedMutex M>
class SCOPED_CAPABILITY std::scoped_lock<M, M> {
 public:
  explicit scoped_lock(M& first, M& second) ACQUIRE(first, second) : first_(first), second_(second) { std::lock(first_, second_); }
  scoped_lock(const scoped_lock&) = delete;
  scoped_lock& operator=(const scoped_lock&) = delete;
  ~scoped_lock() RELEASE() {
    second_.unlock();
    first_.unlock();
  }

 private:
  M& first_;
  M& second_;
};

template <mpsshim::AnnotatedMutex M>
class SCOPED_CAPABILITY std::shared_lock<M> {
 public:
  using mutex_type = M;

  explicit shared_lock(M& mutex) ACQUIRE_SHARED(mutex) : mutex_(mutex) { mutex_.lock_shared(); }
  shared_lock(const shared_lock&) = delete;
  shared_lock& operator=(const shared_lock&) = delete;
  ~shared_lock() RELEASE() { mutex_.unlock_shared(); }

 private:
  M& mutex_;
};
