// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/link/device_output.hpp"

#include <algorithm>
#include <cstdio>

#include <fcntl.h>
#include <unistd.h>

#include "broker/log.hpp"

namespace mpsshim::broker {

namespace {

constexpr std::chrono::seconds kHolderPatience{2};

// How far the file is written; -1: standard output is no file (tests).
std::int64_t written() {
  std::fflush(stdout);
  return lseek(STDOUT_FILENO, 0, SEEK_CUR);
}

}  // namespace

DeviceOutput::DeviceOutput(ControlLink& control) : control_(control), delivered_(written()) {}

bool DeviceOutput::enter(std::uint64_t session) {
  const std::lock_guard lock(mutex_);
  if (holder_ == session) return waiting_.empty() || !has_launched_;
  const bool is_next = waiting_.empty() || waiting_.front() == session;
  if (holder_ != 0 || !is_next) {
    if (std::find(waiting_.begin(), waiting_.end(), session) == waiting_.end()) waiting_.push_back(session);
    is_wanted_.store(true, std::memory_order_relaxed);
    complain(session);
    return false;
  }
  if (!waiting_.empty()) waiting_.pop_front();
  is_wanted_.store(!waiting_.empty(), std::memory_order_relaxed);
  holder_ = session;
  has_launched_ = false;
  is_late_ = false;
  taken_at_ = Clock::now();
  drop_strays();
  return true;
}

void DeviceOutput::complain(std::uint64_t session) {
  if (holder_ == 0 || is_late_ || Clock::now() - taken_at_ < kHolderPatience) return;
  is_late_ = true;
  log_warning("Session {}: has kernels that may print, and waits for those of session {}, which have run for {} s: one client prints at a time",
              session, holder_, kHolderPatience.count());
}

void DeviceOutput::note_launch() {
  const std::lock_guard lock(mutex_);
  has_launched_ = true;
}

void DeviceOutput::leave(std::uint64_t session) {
  const std::lock_guard lock(mutex_);
  if (holder_ == session) holder_ = 0;
  std::erase(waiting_, session);
  is_wanted_.store(!waiting_.empty(), std::memory_order_relaxed);
}

bool DeviceOutput::deliver() {
  const std::lock_guard lock(mutex_);
  return deliver_locked();
}

bool DeviceOutput::deliver_locked() {
  const std::int64_t end = written();
  if (end <= delivered_) return false;
  control_.send(message::Printed{.session = holder_,
                                 .begin_bytes = static_cast<std::uint64_t>(delivered_),
                                 .size_bytes = static_cast<std::uint64_t>(end - delivered_)});
  delivered_ = end;
  return true;
}

// Without the lock where it cannot be had: whoever holds it is not going on either.
void DeviceOutput::deliver_last() NO_THREAD_SAFETY_ANALYSIS {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  (void)deliver_locked();
}

// Text that nobody was known to print: of a kernel that is called printing by no image, or of a library of the driver's.
void DeviceOutput::drop_strays() {
  const std::int64_t end = written();
  if (end <= delivered_) return;
  fallocate(STDOUT_FILENO, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, delivered_, end - delivered_);
  log_info("{} bytes of text came while no client had kernels that print: they are nobody's", end - delivered_);
  delivered_ = end;
}

}  // namespace mpsshim::broker
