// SPDX-License-Identifier: Apache-2.0
// Touches noticed by userfaultfd (touch_watch.hpp): closed pages are in the file and in nobody's page table, so a touch is a minor fault. Closing
// takes them out of the table (MADV_DONTNEED leaves a shared file's pages where they are; many pages go by PageParking), opening puts them in again.
#include <cerrno>
#include <ctime>

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "interposer/forward/begin.hpp"
#include "interposer/forward/memory/page_parking.hpp"
#include "interposer/forward/memory/touch_watch.hpp"
#include "proto/channel.hpp"
#include "proto/segment.hpp"

// Of newer kernels than the headers may be.
#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif
#ifndef USERFAULTFD_IOC_NEW
#define USERFAULTFD_IOC_NEW _IO(0xAA, 0x00)
#endif
#ifndef UFFD_FEATURE_WP_HUGETLBFS_SHMEM
#define UFFD_FEATURE_WP_HUGETLBFS_SHMEM (1 << 12)
#endif
#ifndef UFFDIO_CONTINUE_MODE_WP
#define UFFDIO_CONTINUE_MODE_WP (1ULL << 1)
#endif
#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif
#if defined(UFFDIO_CONTINUE) && defined(UFFD_FEATURE_MINOR_SHMEM)

namespace mpsshim::interposer::forward {

namespace {

constexpr int kFlags = O_CLOEXEC | O_NONBLOCK;

int open_full() {
  const int device = open("/dev/userfaultfd", O_RDWR | O_CLOEXEC);
  if (device >= 0) {
    const int made = ioctl(device, USERFAULTFD_IOC_NEW, kFlags);
    close(device);
    if (made >= 0) return made;
  }
  return static_cast<int>(syscall(SYS_userfaultfd, kFlags));
}

bool agree(int fd, std::uint64_t features) {
  uffdio_api api{};
  api.api = UFFD_API;
  api.features = features;
  return ioctl(fd, UFFDIO_API, &api) == 0;
}

struct Kind {
  bool tells_writes = false;
  bool notices_system_calls = false;
};

// A descriptor that has agreed on shared memory's minor faults, the best that there is.
proto::FileDescriptor open_watch(Kind& kind) {
  for (const bool wants_writes : {true, false}) {
    const std::uint64_t features =
        UFFD_FEATURE_MINOR_SHMEM | (wants_writes ? UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_WP_HUGETLBFS_SHMEM : std::uint64_t{0});
    for (const bool is_full : {true, false}) {
      proto::FileDescriptor fd(is_full ? open_full() : static_cast<int>(syscall(SYS_userfaultfd, kFlags | UFFD_USER_MODE_ONLY)));
      if (!fd.valid() || !agree(fd.get(), features)) continue;
      kind = {wants_writes, is_full};
      return fd;
    }
  }
  return {};
}

class UserfaultWatch final : public TouchWatch {
 public:
  UserfaultWatch(proto::FileDescriptor fd, Kind kind)
      : fd_(std::move(fd)), tells_writes_(kind.tells_writes), notices_system_calls_(kind.notices_system_calls) {}

  [[nodiscard]] bool notices_system_calls() const override { return notices_system_calls_; }
  [[nodiscard]] bool tells_writes() const override { return tells_writes_; }

  [[nodiscard]] bool add(AddressRange pages) override {
    uffdio_register request{};
    request.range = {pages.address, pages.size_bytes};
    request.mode = UFFDIO_REGISTER_MODE_MINOR | (tells_writes_ ? UFFDIO_REGISTER_MODE_WP : std::uint64_t{0});
    if (ioctl(fd_.get(), UFFDIO_REGISTER, &request) != 0) return false;
    constexpr std::uint64_t kNeeded = std::uint64_t{1} << _UFFDIO_CONTINUE;
    return (request.ioctls & kNeeded) != 0 && close(pages);
  }

  void remove(AddressRange pages) override {
    uffdio_range range{pages.address, pages.size_bytes};
    (void)ioctl(fd_.get(), UFFDIO_UNREGISTER, &range);
  }

  [[nodiscard]] bool close(AddressRange pages) override {
    if (pages.size_bytes >= PageParking::kLeastBytes) {
      if (parking_ == nullptr) parking_ = new PageParking();  // never destroyed
      if (parking_->park(pages)) return true;
    }
    void* const at = host_pointer(pages.address);
    if (madvise(at, pages.size_bytes, MADV_DONTNEED) == 0) return true;
    return errno == EINVAL && madvise(at, pages.size_bytes, MADV_DONTNEED_LOCKED) == 0;  // of a program that has locked its memory
  }

  [[nodiscard]] bool open(AddressRange pages, HostAccess access) override {
    bool is_open = put_in(pages, access);
    // They are there for reading: all of a block are, or none. Taking them out again is quicker than taking the protection back, which leaves a
    // fault to each page.
    if (!is_open && errno == EEXIST) is_open = access == HostAccess::read || (close(pages) && put_in(pages, access));
    wake(pages);
    return is_open;
  }

  void answer(const Touch& touch, bool is_ours) override {
    (void)is_ours;  // the kernel asks about registered pages alone
    wake({touch.address / proto::kPageBytes * proto::kPageBytes, proto::kPageBytes});
  }

  [[nodiscard]] bool next(Touch& touch) override {
    for (;;) {
      uffd_msg message{};
      if (read(fd_.get(), &message, sizeof message) != sizeof message) return false;
      if (message.event != UFFD_EVENT_PAGEFAULT) continue;
      const std::uint64_t flags = message.arg.pagefault.flags;
      touch = {message.arg.pagefault.address, (flags & (UFFD_PAGEFAULT_FLAG_WRITE | UFFD_PAGEFAULT_FLAG_WP)) != 0, 0};
      return true;
    }
  }

  void sleep(std::uint64_t most_us) override {
    pollfd waiting{fd_.get(), POLLIN, 0};
    const timespec limit{static_cast<time_t>(most_us / 1'000'000), static_cast<long>(most_us % 1'000'000 * 1000)};
    (void)ppoll(&waiting, 1, &limit, nullptr);
  }

  // Whether pages can really be opened for reading alone: the kernel says so only when it is asked to.
  void try_reading() {
    const proto::FileDescriptor file(static_cast<int>(syscall(SYS_memfd_create, "mpsshim-try", 1u)));
    void* const page = file.valid() && ftruncate(file.get(), proto::kPageBytes) == 0
                           ? mmap(nullptr, proto::kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0)
                           : MAP_FAILED;
    if (page == MAP_FAILED) return;
    *static_cast<volatile char*>(page) = 0;  // in the file
    const AddressRange pages{reinterpret_cast<std::uintptr_t>(page), proto::kPageBytes};
    is_usable_ = add(pages);
    if (is_usable_ && tells_writes_) tells_writes_ = open(pages, HostAccess::read);
    munmap(page, proto::kPageBytes);
  }
  [[nodiscard]] bool is_usable() const { return is_usable_; }

 private:
  [[nodiscard]] bool put_in(AddressRange pages, HostAccess access) {
    for (std::uint64_t at = pages.address; at < pages.end();) {
      uffdio_continue request{};
      request.range = {at, pages.end() - at};
      request.mode = UFFDIO_CONTINUE_MODE_DONTWAKE | (access == HostAccess::read ? UFFDIO_CONTINUE_MODE_WP : std::uint64_t{0});
      if (ioctl(fd_.get(), UFFDIO_CONTINUE, &request) == 0) return true;
      if (errno != EAGAIN) return false;
      const std::int64_t done = request.mapped;  // something else is changed in the address space just now
      at += done > 0 ? static_cast<std::uint64_t>(done) : 0;
    }
    return true;
  }
  void wake(AddressRange pages) {
    uffdio_range range{pages.address, pages.size_bytes};
    (void)ioctl(fd_.get(), UFFDIO_WAKE, &range);
  }

  proto::FileDescriptor fd_;
  PageParking* parking_ = nullptr;
  bool tells_writes_;
  bool notices_system_calls_;
  bool is_usable_ = false;
};

}  // namespace

std::unique_ptr<TouchWatch> make_userfault_watch() {
  Kind kind;
  proto::FileDescriptor fd = open_watch(kind);
  if (!fd.valid()) return nullptr;
  auto watch = std::make_unique<UserfaultWatch>(std::move(fd), kind);
  watch->try_reading();
  if (!watch->is_usable()) return nullptr;
  return watch;
}

}  // namespace mpsshim::interposer::forward

#else

namespace mpsshim::interposer::forward {
std::unique_ptr<TouchWatch> make_userfault_watch() { return nullptr; }  // the C library's headers know nothing of it
}  // namespace mpsshim::interposer::forward

#endif
