// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/base/interrupts.hpp"

#include <algorithm>
#include <thread>
#include <utility>

#include <pthread.h>

#include "broker/log.hpp"

namespace mpsshim::broker {

Interrupts::Interrupts(const Driver& driver, CUcontext context, std::function<void(std::uint64_t session)> ended)
    : shared_(std::make_shared<Shared>(driver, context, std::move(ended))) {
  for (Sleeper& sleeper : shared_->sleepers) {
    if (driver->cuEventCreate(&sleeper.event, CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) sleeper.event = nullptr;
    std::thread([shared = shared_, &sleeper] { sleep(shared, sleeper); }).detach();
  }
  std::unique_lock lock(shared_->mutex);
  shared_->changed.wait(lock, [this]() REQUIRES(shared_->mutex) { return shared_->started == kSleepers; });
}

Interrupts::~Interrupts() {
  const std::lock_guard lock(shared_->mutex);
  shared_->is_stopping = true;
  shared_->changed.notify_all();
}

bool Interrupts::all_free() const {
  return std::ranges::all_of(shared_->sleepers, [](const Sleeper& sleeper) { return sleeper.session == 0; });
}

void Interrupts::warm_up(CUstream held, const std::function<void()>& release) {
  constexpr std::chrono::milliseconds kFallAsleep{1};
  constexpr std::chrono::seconds kLimit{1};  // of a driver that does not wake them
  for (std::uint64_t i = 0; i < kSleepers; ++i) (void)ask(~i, held);
  std::this_thread::sleep_for(kFallAsleep);
  release();
  std::unique_lock lock(shared_->mutex);
  if (!shared_->changed.wait_for(lock, kLimit, [this]() REQUIRES(shared_->mutex) { return all_free(); }))
    log_warning("The driver's interrupts end no wait; long waits end by looking");
}

CUresult Interrupts::ask(std::uint64_t session, CUstream stream) {
  Sleeper* sleeper = nullptr;
  {
    const std::lock_guard lock(shared_->mutex);
    for (Sleeper& each : shared_->sleepers) {
      if (each.session == session) return CUDA_SUCCESS;
      if (each.session == 0 && each.event != nullptr) sleeper = &each;
    }
    if (sleeper == nullptr) return CUDA_SUCCESS;
    sleeper->session = session;  // nobody else's from now on
  }
  const CUresult result = shared_->table.cuEventRecord(sleeper->event, stream);
  const std::lock_guard lock(shared_->mutex);
  if (result == CUDA_SUCCESS) {
    sleeper->is_recorded = true;
    shared_->changed.notify_all();
  } else {
    sleeper->session = 0;
  }
  return result;
}

// An error of the driver's ends the sleep as the event does: whoever looks then finds it.
void Interrupts::sleep(const std::shared_ptr<Shared>& shared, Sleeper& sleeper) {
  pthread_setname_np(pthread_self(), "interrupts");
  shared->table.cuCtxSetCurrent(shared->context);
  std::unique_lock lock(shared->mutex);
  ++shared->started;
  shared->changed.notify_all();
  for (;;) {
    shared->changed.wait(lock, [&]() REQUIRES(shared->mutex) { return shared->is_stopping || sleeper.is_recorded; });
    if (shared->is_stopping) return;
    lock.unlock();
    (void)shared->table.cuEventSynchronize(sleeper.event);
    lock.lock();
    if (shared->is_stopping) return;
    shared->ended(sleeper.session);  // under the lock: not after the end of who made this
    sleeper.is_recorded = false;
    sleeper.session = 0;
    shared->changed.notify_all();
  }
}

}  // namespace mpsshim::broker
