// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/memory/page_exchange.hpp"

#include <array>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "interposer/forward/memory/userfault.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim;
using namespace mpsshim::interposer::forward;

namespace {

constexpr std::size_t kPage = 4096, kPages = 1500, kBytes = kPage * kPages;

// Private memory, and a shared mapping to be put in its place.
struct Memory {
  std::byte* own = nullptr;
  std::byte* shared = nullptr;
  Memory() {
    const proto::FileDescriptor file(memfd_create("exchange", 0));
    REQUIRE(ftruncate(file.get(), kBytes) == 0);
    own = static_cast<std::byte*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    shared = static_cast<std::byte*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0));
    REQUIRE(own != MAP_FAILED);
    REQUIRE(shared != MAP_FAILED);
  }
  ~Memory() {
    munmap(own, kBytes);
    munmap(shared, kBytes);
  }
  Memory(const Memory&) = delete;
  [[nodiscard]] AddressRange pages() const { return {reinterpret_cast<std::uintptr_t>(own), kBytes}; }
  [[nodiscard]] std::atomic<unsigned>& word(std::size_t page, std::size_t number) const {
    return reinterpret_cast<std::atomic<unsigned>*>(own + page * kPage)[number];
  }
};

// Counts in a word of each page, one page after the other, as long as it is let.
void count(const Memory& memory, std::size_t number, const std::atomic<bool>& over, std::array<unsigned, kPages>& counted) {
  for (std::size_t page = 0; !over; page = (page + 1) % kPages) memory.word(page, number).store(++counted[page], std::memory_order_relaxed);
}

}  // namespace

TEST_CASE("no store of another thread is lost while its pages are exchanged") {
  const FaultsOf whose = GENERATE(FaultsOf::everybody, FaultsOf::process);
  if (!open_userfault(whose, UFFD_FEATURE_PAGEFAULT_FLAG_WP).valid()) MPSSHIM_SKIP("this process may not protect pages by userfaultfd");
  for (int round = 0; round < 8; ++round) {
    const Memory memory;
    for (std::size_t page = 0; page < kPages / 2; ++page)
      memory.word(page, 100).store(static_cast<unsigned>(page) + 7);  // the others are not there yet
    std::atomic<bool> over{false};
    std::vector<std::array<unsigned, kPages>> counted(3);
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < counted.size(); ++i) threads.emplace_back([&, i] { count(memory, i, over, counted[i]); });
    CHECK(exchange_pages(memory.pages(), memory.shared, whose) == kBytes);
    usleep(2000);
    over = true;
    for (std::thread& thread : threads) thread.join();
    unsigned wrong = 0;
    for (std::size_t page = 0; page < kPages; ++page) {
      for (std::size_t i = 0; i < counted.size(); ++i) wrong += memory.word(page, i) != counted[i][page];
      wrong += memory.word(page, 100) != (page < kPages / 2 ? page + 7 : 0);
    }
    CHECK(wrong == 0);
    memory.word(3, 5).store(4711);
    CHECK(std::memcmp(memory.own, memory.shared, kBytes) == 0);  // the same pages
  }
}

TEST_CASE("system calls that store into pages that are exchanged succeed, where the process may see the kernel's faults") {
  if (!open_userfault(FaultsOf::everybody, UFFD_FEATURE_PAGEFAULT_FLAG_WP).valid()) MPSSHIM_SKIP("this process may not handle faults of the kernel");
  std::vector<unsigned char> pattern(kBytes, 0x5a);
  const proto::FileDescriptor file(memfd_create("pattern", 0));
  REQUIRE(write(file.get(), pattern.data(), kBytes) == static_cast<ssize_t>(kBytes));
  for (int round = 0; round < 8; ++round) {
    const Memory memory;
    std::atomic<bool> over{false}, has_begun{false};
    unsigned failed = 0;
    std::thread reader([&] {
      do {
        for (std::size_t at = 0; at < kBytes; at += 3 * kPage) {
          failed += pread(file.get(), memory.own + at, 3 * kPage, static_cast<off_t>(at)) != static_cast<ssize_t>(3 * kPage);
        }
        has_begun = true;
      } while (!over);
    });
    while (!has_begun) std::this_thread::yield();
    CHECK(exchange_pages(memory.pages(), memory.shared, FaultsOf::everybody) == kBytes);
    over = true;
    reader.join();
    CHECK(failed == 0);
    CHECK(std::memcmp(memory.own, pattern.data(), kBytes) == 0);
    CHECK(std::memcmp(memory.shared, pattern.data(), kBytes) == 0);
  }
}

TEST_CASE("a thread's own stack is not exchanged by it, nor what is not there") {
  const Memory memory;
  std::array<std::byte, 4 * kPage> on_stack{};
  const std::uint64_t page = (reinterpret_cast<std::uintptr_t>(on_stack.data()) + kPage - 1) / kPage * kPage;
  CHECK(is_of_this_thread({page, kPage}));
  CHECK_FALSE(is_of_this_thread(memory.pages()));
  CHECK(exchange_pages({page, kPage}, memory.shared, FaultsOf::everybody) == 0);
  std::thread([] {
    int local = 0;
    CHECK(is_of_this_thread({reinterpret_cast<std::uintptr_t>(&local) / kPage * kPage, kPage}));
    CHECK(is_of_this_thread({reinterpret_cast<std::uintptr_t>(&errno) / kPage * kPage, kPage}));
  }).join();
  munmap(memory.own, kBytes);
  CHECK(exchange_pages(memory.pages(), memory.shared, FaultsOf::everybody) == 0);
}
