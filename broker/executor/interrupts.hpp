// SPDX-License-Identifier: Apache-2.0
// Long waits end by the GPU's interrupt. Words that the GPU writes tell nobody, and looking for them again and again, ever more rarely, finds the
// end of a long wait some time after it (completion.hpp). So behind work that a client has waited for longer than kLongWait an event is recorded,
// and a thread sleeps in the driver until it comes; then it rings the session's doorbells, and completion thread and worker look at once. The
// looks go on meanwhile: where all sleepers are taken, or an event says nothing of what is waited for, nothing is lost but that time.
//
// Threads: workers call; each sleeper is a thread of its own, made when first needed. A sleeper whose kernel never ends sleeps until the process
// ends: it has nothing of the session but copies of its doorbells, and nobody waits for it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "broker/driver/driver.hpp"
#include "proto/segment.hpp"

namespace mpsshim::broker {

class Interrupts {
 public:
  static constexpr std::size_t kSleepers = 8;
  static constexpr std::chrono::milliseconds kLongWait{20};

  Interrupts(const Driver& driver, CUcontext context) : shared_(std::make_shared<Shared>(driver, context)) {}
  Interrupts(const Interrupts&) = delete;
  ~Interrupts();  // does not wait for sleepers that are asleep

  // Records behind what `stream` has been given, and rings the session's doorbells when that has ended. Without effect while the session has a
  // sleeper already, or all are taken. The result is the record's.
  CUresult ask(std::uint64_t session, CUstream stream, int ring_doorbell, int completion_doorbell);

 private:
  struct Sleeper {
    std::uint64_t session = 0;  // 0: free
    CUevent event = nullptr;
    bool is_recorded = false;
    proto::FileDescriptor doorbells[2];
  };
  // Outlives this object where a sleeper is asleep.
  struct Shared {
    Shared(const Driver& driver, CUcontext its) : table(driver.table()), context(its), sleepers(kSleepers) {}
    const DriverTable table;
    const CUcontext context;
    std::mutex mutex;
    std::condition_variable asked;
    std::vector<Sleeper> sleepers;
    bool is_stopping = false;
  };

  [[nodiscard]] Sleeper* take(std::uint64_t session);  // the mutex is held
  static void sleep(const std::shared_ptr<Shared>& shared, std::size_t index);

  const std::shared_ptr<Shared> shared_;
};

}  // namespace mpsshim::broker
