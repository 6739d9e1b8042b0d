// SPDX-License-Identifier: Apache-2.0
// Who may be making driver calls that issue work? Each worker has a gate and is inside it for such a batch of calls. A quiet window closes all of
// them; a call that must meet no launch of any function stops them for microseconds.
//
// Threads: a worker enters and leaves its own gate; one thread at a time closes and opens them; any thread calls exclusively() and sharing().
// Gate is in the path of every launch, and so inline.
#pragma once

#include <atomic>
#include <mutex>
#include <shared_mutex>
#include <thread>
#include <vector>

#include "broker/driver/driver.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::broker {

// What every gate looks at.
struct Barrier {
  std::atomic<bool> is_closed{false};
  std::atomic<bool> is_exclusive{false};  // a thread has all functions to itself
};

// One for each worker. enter() before a batch of driver calls that issue work, leave() after; between them no window opens.
// Progress is written outside the gate: the window waits for it, and once all is drained none is due.
class Gate {
 public:
  [[nodiscard]] bool enter() {
    for (;;) {
      issuing_.store(true, std::memory_order_seq_cst);  // pairs with Gates::wait_until_left(): either it sees us or we see that we may not
      if (barrier_->is_closed.load(std::memory_order_seq_cst)) break;
      if (!barrier_->is_exclusive.load(std::memory_order_seq_cst)) return true;
      leave();
      while (barrier_->is_exclusive.load(std::memory_order_acquire)) std::this_thread::yield();  // for microseconds
    }
    leave();
    refused_in_visit_ = true;
    was_refused_.store(true, std::memory_order_relaxed);
    return false;
  }
  void leave() { issuing_.store(false, std::memory_order_release); }
  // Around a worker's visit of all its sessions. The next window waits until everybody whom the last one kept out has been let in.
  void begin_visit() { refused_in_visit_ = false; }
  void end_visit() {
    if (!refused_in_visit_ && was_refused_.load(std::memory_order_relaxed)) was_refused_.store(false, std::memory_order_relaxed);
  }

 private:
  friend class Gates;
  const Barrier* barrier_ = nullptr;
  std::atomic<bool> issuing_{false};
  std::atomic<bool> was_refused_{false};  // since the last window began, and not let in since; seen late, it shortens or lengthens a pause
  bool refused_in_visit_ = false;         // of the worker's thread
};

class Gates {
 public:
  explicit Gates(unsigned workers);

  [[nodiscard]] Gate& of(unsigned worker) { return gates_[worker]; }
  // Nobody is inside when this returns, and nobody enters until open().
  void close();
  void open() { barrier_.is_closed.store(false, std::memory_order_seq_cst); }
  // As close(), for a caller that knows that nobody is inside.
  void bar() { barrier_.is_closed.store(true, std::memory_order_seq_cst); }
  // Somebody was refused since close() and has not been let in.
  [[nodiscard]] bool keep_out() const;
  // The result of `ask` while nobody is inside or in sharing(). Any thread that is in neither.
  template <typename F>
  [[nodiscard]] CUresult exclusively(F&& ask) {
    const std::lock_guard lock(functions_mutex_);
    barrier_.is_exclusive.store(true, std::memory_order_seq_cst);
    wait_until_left();
    const CUresult result = ask();
    barrier_.is_exclusive.store(false, std::memory_order_release);
    return result;
  }
  template <typename F>
  [[nodiscard]] CUresult sharing(F&& launch) {
    const std::shared_lock lock(functions_mutex_);
    return launch();
  }

 private:
  void wait_until_left();

  std::vector<Gate> gates_;
  Barrier barrier_;
  SharedMutex functions_mutex_;
};

}  // namespace mpsshim::broker
