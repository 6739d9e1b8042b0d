// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/interrupts.hpp"

#include <algorithm>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <pthread.h>
#include <sys/eventfd.h>

namespace mpsshim::broker {

namespace {

proto::FileDescriptor copy_of(int fd) { return proto::FileDescriptor(fcntl(fd, F_DUPFD_CLOEXEC, 0)); }

}  // namespace

Interrupts::~Interrupts() {
  const std::lock_guard lock(shared_->mutex);
  shared_->is_stopping = true;
  shared_->asked.notify_all();
}

Interrupts::Sleeper* Interrupts::take(std::uint64_t session) {
  std::vector<Sleeper>& sleepers = shared_->sleepers;
  if (std::ranges::any_of(sleepers, [&](const Sleeper& sleeper) { return sleeper.session == session; })) return nullptr;
  const auto free = std::ranges::find(sleepers, std::uint64_t{0}, &Sleeper::session);
  if (free == sleepers.end()) return nullptr;
  if (free->event == nullptr) {
    if (shared_->table.cuEventCreate(&free->event, CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) return nullptr;
    const auto index = static_cast<std::size_t>(free - sleepers.begin());
    std::thread([shared = shared_, index] { sleep(shared, index); }).detach();
  }
  return &*free;
}

CUresult Interrupts::ask(std::uint64_t session, CUstream stream, int ring_doorbell, int completion_doorbell) {
  Sleeper* sleeper = nullptr;
  {
    const std::lock_guard lock(shared_->mutex);
    sleeper = take(session);
    if (sleeper == nullptr) return CUDA_SUCCESS;
    sleeper->session = session;  // nobody else's from now on
  }
  sleeper->doorbells[0] = copy_of(ring_doorbell);
  sleeper->doorbells[1] = copy_of(completion_doorbell);
  const CUresult result = shared_->table.cuEventRecord(sleeper->event, stream);
  const std::lock_guard lock(shared_->mutex);
  if (result == CUDA_SUCCESS)
    sleeper->is_recorded = true;
  else
    sleeper->session = 0;
  shared_->asked.notify_all();
  return result;
}

// An error of the driver's ends the sleep as the event does: whoever looks then finds it.
void Interrupts::sleep(const std::shared_ptr<Shared>& shared, std::size_t index) {
  pthread_setname_np(pthread_self(), "interrupts");
  shared->table.cuCtxSetCurrent(shared->context);
  std::unique_lock lock(shared->mutex);
  Sleeper& sleeper = shared->sleepers[index];
  for (;;) {
    shared->asked.wait(lock, [&] { return shared->is_stopping || sleeper.is_recorded; });
    if (shared->is_stopping) return;
    lock.unlock();
    (void)shared->table.cuEventSynchronize(sleeper.event);
    lock.lock();
    if (shared->is_stopping) return;
    for (proto::FileDescriptor& doorbell : sleeper.doorbells) {
      if (doorbell.valid()) eventfd_write(doorbell.get(), 1);
      doorbell.reset();
    }
    sleeper.is_recorded = false;
    sleeper.session = 0;
  }
}

}  // namespace mpsshim::broker
