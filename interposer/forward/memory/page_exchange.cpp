// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/memory/page_exchange.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <pthread.h>
#include <sys/mman.h>

#include "interposer/forward/memory/userfault.hpp"
#include "proto/channel.hpp"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace mpsshim::interposer::forward {

namespace {

constexpr std::uint64_t kAtOnce = std::uint64_t{1} << 20;
constexpr std::uint64_t kThreadsOwn = 64 << 10;  // below and above what pthread_self() points at

std::byte* at(std::uint64_t address) { return reinterpret_cast<std::byte*>(address); }  // NOLINT(performance-no-int-to-ptr)

bool touch(AddressRange one, AddressRange other) { return one.address < other.end() && other.address < one.end(); }

// Pages that are not there cannot be protected. Nothing is changed in them.
void have_pages(std::byte* begin, std::uint64_t bytes) {
  if (madvise(begin, bytes, MADV_POPULATE_WRITE) == 0) return;
  for (std::uint64_t i = 0; i < bytes; i += proto::kPageBytes) std::atomic_ref(*reinterpret_cast<unsigned char*>(begin + i)).fetch_or(0);
}

}  // namespace

// A stack is a mapping; what the thread has for itself lies around what pthread_self() points at.
bool is_of_this_thread(AddressRange pages) {
  const auto self = static_cast<std::uint64_t>(pthread_self());
  if (touch(pages, {self - kThreadsOwn, 2 * kThreadsOwn})) return true;
  std::FILE* maps = std::fopen("/proc/self/maps", "re");
  if (maps == nullptr) return true;
  char line[512];
  const auto here = reinterpret_cast<std::uintptr_t>(line);
  bool is_its_stack = false;
  while (std::fgets(line, sizeof line, maps) != nullptr) {
    char* rest = nullptr;
    const std::uint64_t begin = std::strtoull(line, &rest, 16);
    const std::uint64_t end = *rest == '-' ? std::strtoull(rest + 1, nullptr, 16) : 0;
    if (begin <= here && here < end) is_its_stack = touch(pages, {begin, end - begin});
  }
  std::fclose(maps);
  return is_its_stack;
}

#if defined(UFFDIO_WRITEPROTECT) && defined(UFFD_FEATURE_PAGEFAULT_FLAG_WP)

namespace {

class Protection {
 public:
  explicit Protection(FaultsOf whose) {
    // The second kind of memory is what memory is that has been exchanged before and is private again.
    for (const std::uint64_t more : {std::uint64_t{UFFD_FEATURE_WP_HUGETLBFS_SHMEM}, std::uint64_t{0}}) {
      if (!fd_.valid()) fd_ = open_userfault(whose, UFFD_FEATURE_PAGEFAULT_FLAG_WP | more);
    }
  }

  [[nodiscard]] bool add(AddressRange pages) {
    uffdio_register request{};
    request.range = {pages.address, pages.size_bytes};
    request.mode = UFFDIO_REGISTER_MODE_WP;
    constexpr std::uint64_t kNeeded = std::uint64_t{1} << _UFFDIO_WRITEPROTECT;
    return fd_.valid() && ioctl(fd_.get(), UFFDIO_REGISTER, &request) == 0 && (request.ioctls & kNeeded) != 0;
  }

  [[nodiscard]] bool protect(AddressRange pages) const { return change(pages, UFFDIO_WRITEPROTECT_MODE_WP); }
  // Who waits goes on, in what is there now.
  void let_go(AddressRange pages, bool is_exchanged) const {
    if (!is_exchanged) (void)change(pages, 0);
    uffdio_range range{pages.address, pages.size_bytes};
    (void)ioctl(fd_.get(), UFFDIO_WAKE, &range);
  }

 private:
  [[nodiscard]] bool change(AddressRange pages, std::uint64_t mode) const {
    uffdio_writeprotect request{};
    request.range = {pages.address, pages.size_bytes};
    request.mode = mode;
    int result = 0;
    do {
      result = ioctl(fd_.get(), UFFDIO_WRITEPROTECT, &request);
    } while (result != 0 && errno == EAGAIN);  // something else is changed in the address space just now
    return result == 0;
  }

  proto::FileDescriptor fd_;
};

// While a piece is protected this thread must not store into it: no handler of the program's runs, nothing is allocated or logged.
bool exchange_piece(const Protection& protection, AddressRange piece, std::byte* shared) {
  have_pages(shared, piece.size_bytes);
  have_pages(at(piece.address), piece.size_bytes);
  if (!protection.protect(piece)) return false;
  std::memcpy(shared, at(piece.address), piece.size_bytes);
  // An old size of 0: a second mapping of the same pages.
  const bool is_exchanged = mremap(shared, 0, piece.size_bytes, MREMAP_MAYMOVE | MREMAP_FIXED, at(piece.address)) != MAP_FAILED;
  protection.let_go(piece, is_exchanged);
  if (is_exchanged) madvise(at(piece.address), piece.size_bytes, MADV_DOFORK);  // unlike the shared mapping
  return is_exchanged;
}

}  // namespace

std::uint64_t exchange_pages(AddressRange pages, std::byte* shared, FaultsOf whose) {
  Protection protection(whose);
  if (is_of_this_thread(pages) || !protection.add(pages)) return 0;
  sigset_t all, before;
  sigfillset(&all);
  if (pthread_sigmask(SIG_BLOCK, &all, &before) != 0) return 0;
  std::uint64_t done = 0;
  while (done < pages.size_bytes) {
    const AddressRange piece{pages.address + done, std::min(pages.size_bytes - done, kAtOnce)};
    if (!exchange_piece(protection, piece, shared + done)) break;
    done += piece.size_bytes;
  }
  (void)pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return done;
}

#else

std::uint64_t exchange_pages(AddressRange, std::byte*, FaultsOf) { return 0; }  // the C library's headers know nothing of it

#endif

}  // namespace mpsshim::interposer::forward
