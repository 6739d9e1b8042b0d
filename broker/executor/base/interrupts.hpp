// SPDX-License-Identifier: Apache-2.0
// Long waits end by the GPU's interrupt. Words that the GPU writes tell nobody, and looking for them again and again, ever more rarely, finds the
// end of a long wait some time after it (completion.hpp). So behind work that a client has waited for longer than kLongWait an event is recorded,
// and a thread sleeps in the driver until it comes; then the session's waiters are looked at. The looks go on meanwhile: where all sleepers are
// taken, or an event says nothing of what is waited for, nothing is lost but that time. Streams of green contexts do without: one thread at a time
// may use such a context, and a sleeper would be another.
//
// Threads: workers call; each sleeper is a thread of its own. Threads and events are made with this object, before an executor serves, so that
// an executor's resources do not grow by them later. A sleeper whose kernel never ends sleeps until the process ends: it has nothing of the
// session but its number, and nobody waits for it.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "broker/driver/driver.hpp"
#include "proto/cond_var.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::broker {

class Interrupts {
 public:
  static constexpr std::size_t kSleepers = 4;
  static constexpr std::chrono::milliseconds kLongWait{5};

  // `ended` is called by a sleeper when what was recorded for that session has ended, or failed; never after this object has gone.
  Interrupts(const Driver& driver, CUcontext context, std::function<void(std::uint64_t session)> ended);
  Interrupts(const Interrupts&) = delete;
  ~Interrupts();  // does not wait for sleepers that are asleep

  // Each sleeper once, with a stream that the caller holds up, and lets go with `release`: what the driver needs for such a sleep is there then.
  void warm_up(CUstream held, const std::function<void()>& release);

  // Records behind what `stream` has been given. Without effect while the session has a sleeper already, or all are taken. The result is the
  // record's.
  CUresult ask(std::uint64_t session, CUstream stream);

 private:
  struct Sleeper {
    std::uint64_t session = 0;  // 0: free
    CUevent event = nullptr;    // nullptr: the driver refused one
    bool is_recorded = false;
  };
  // Outlives this object where a sleeper is asleep.
  struct Shared {
    Shared(const Driver& driver, CUcontext its, std::function<void(std::uint64_t)> told)
        : table(*driver.operator->()), context(its), ended(std::move(told)) {}
    const CheckedDriverTable table;
    const CUcontext context;
    const std::function<void(std::uint64_t)> ended;
    Mutex mutex;
    CondVar changed;
    std::array<Sleeper, kSleepers> sleepers GUARDED_BY(mutex);
    std::size_t started GUARDED_BY(mutex) = 0;
    bool is_stopping GUARDED_BY(mutex) = false;
  };

  [[nodiscard]] bool all_free() const REQUIRES(shared_->mutex);
  static void sleep(const std::shared_ptr<Shared>& shared, Sleeper& sleeper);

  const std::shared_ptr<Shared> shared_;
};

}  // namespace mpsshim::broker
