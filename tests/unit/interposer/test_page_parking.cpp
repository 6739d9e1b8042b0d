// SPDX-License-Identifier: Apache-2.0
// Pages that are parked: what a program finds where they were, and what becomes of them.
#include "interposer/forward/memory/page_parking.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tests/support/catch.hpp"

namespace mpsshim::interposer::forward {
namespace {

constexpr std::size_t kBytes = 16 << 20;
constexpr std::string_view kName = "parking-tried";

// A file of its own name, mapped.
class Mapped {
 public:
  Mapped() {
    const int file = memfd_create(std::string(kName).c_str(), MFD_CLOEXEC);
    REQUIRE(file >= 0);
    REQUIRE(ftruncate(file, kBytes) == 0);
    bytes_ = static_cast<unsigned char*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
    close(file);
    REQUIRE(bytes_ != MAP_FAILED);
    std::memset(bytes_, 1, kBytes);
  }
  Mapped(const Mapped&) = delete;
  ~Mapped() { munmap(bytes_, kBytes); }

  [[nodiscard]] unsigned char* bytes() const { return bytes_; }
  [[nodiscard]] AddressRange range(std::size_t from, std::size_t size) const { return {reinterpret_cast<std::uintptr_t>(bytes_) + from, size}; }
  // Those that are in the process's page table at the place of their own.
  [[nodiscard]] std::size_t pages_in_table() const {
    std::ifstream map("/proc/self/pagemap", std::ios::binary);
    std::vector<std::uint64_t> entries(kBytes / 4096);
    map.seekg(static_cast<std::streamoff>(reinterpret_cast<std::uintptr_t>(bytes_) / 4096 * sizeof(std::uint64_t)));
    REQUIRE(map.read(reinterpret_cast<char*>(entries.data()), static_cast<std::streamsize>(entries.size() * sizeof(std::uint64_t))));
    return static_cast<std::size_t>(std::ranges::count_if(entries, [](std::uint64_t entry) { return (entry >> 63) != 0; }));
  }

 private:
  unsigned char* bytes_ = nullptr;
};

unsigned mappings() {
  std::ifstream maps("/proc/self/maps");
  unsigned count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find(kName) != std::string::npos ? 1 : 0;
  return count;
}

// Never destroyed, as its thread does not end.
PageParking& parking() {
  static PageParking& made = *new PageParking();
  return made;
}

}  // namespace

TEST_CASE("parked pages are out of the table, their contents are there at the next touch, and their places are given back") {
  const Mapped memory;
  const unsigned before = mappings();
  if (!parking().park(memory.range(4 << 20, 8 << 20))) MPSSHIM_SKIP("this kernel moves no page tables of shared mappings (Linux 5.13)");
  REQUIRE(memory.pages_in_table() == (kBytes - (8 << 20)) / 4096);
  memory.bytes()[6 << 20] = 2;
  CHECK(memory.bytes()[(6 << 20) + 1] == 1);
  CHECK(memory.bytes()[(4 << 20) - 1] == 1);
  CHECK(std::count(memory.bytes(), memory.bytes() + kBytes, 1) == kBytes - 1);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (mappings() > before && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(mappings() == before);
  CHECK(memory.bytes()[6 << 20] == 2);
}

TEST_CASE("what is smaller than a page of the table, or too much, stays where it is") {
  const Mapped memory;
  CHECK_FALSE(parking().park(memory.range(0, 1 << 20)));
  CHECK(memory.pages_in_table() == kBytes / 4096);
  constexpr std::size_t kTooMuch = std::size_t{3} << 29;
  void* const empty = mmap(nullptr, kTooMuch, PROT_READ, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  REQUIRE(empty != MAP_FAILED);
  CHECK_FALSE(parking().park({reinterpret_cast<std::uintptr_t>(empty), kTooMuch}));
  munmap(empty, kTooMuch);
}

TEST_CASE("pages may be parked again and again while others store there") {
  const Mapped memory;
  if (!parking().park(memory.range(0, kBytes))) MPSSHIM_SKIP("this kernel moves no page tables of shared mappings (Linux 5.13)");
  std::atomic<bool> is_over{false};
  unsigned char last = 0;
  std::thread storing([&] {
    for (; !is_over; ++last) {
      for (std::size_t at = 0; at < kBytes; at += 4096) memory.bytes()[at] = last;
      for (std::size_t at = 0; at < kBytes; at += 4096) {
        if (memory.bytes()[at] != last) std::abort();
      }
    }
  });
  unsigned parked = 0;
  for (const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(300); std::chrono::steady_clock::now() < end;) {
    parked += parking().park(memory.range(0, kBytes)) ? 1 : 0;
  }
  is_over = true;
  storing.join();
  CHECK(parked > 10);
}

}  // namespace mpsshim::interposer::forward
