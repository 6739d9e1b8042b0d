// SPDX-License-Identifier: Apache-2.0
#include "interposer/channel/doorbell.hpp"

#include <cerrno>
#include <cstdint>
#include <utility>

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "interposer/log.hpp"

namespace mpsshim::interposer {

namespace {
constexpr int kDoorbellMark = 64;  // the last signal there is: of its kind the least likely that a program has chosen for a file of its own
}

Doorbell::Doorbell(proto::FileDescriptor bell) : bell_(std::move(bell)), is_marked_(fcntl(bell_.get(), F_SETSIG, kDoorbellMark) == 0) {}

Doorbell& Doorbell::operator=(Doorbell&& other) noexcept {
  if (this == &other) return *this;
  let_go();
  bell_ = std::move(other.bell_);
  is_marked_ = other.is_marked_;
  return *this;
}

bool Doorbell::is_ours() const { return !is_marked_ || fcntl(bell_.get(), F_GETSIG) == kDoorbellMark; }

void Doorbell::let_go() {
  if (bell_.valid() && !is_ours()) (void)bell_.release();
  bell_.reset();
}

void Doorbell::ring() const {
  if (!is_ours()) [[unlikely]] {
    if (!is_lost_.exchange(true, std::memory_order_relaxed)) {
      log_line("The program has closed descriptor %d, by which this library wakes the broker: CUDA calls of this process fail from now on.",
               bell_.get());
    }
    return;
  }
  const std::uint64_t one = 1;
  while (syscall(SYS_write, bell_.get(), &one, sizeof one) < 0 && errno == EINTR) {
  }
}

}  // namespace mpsshim::interposer
