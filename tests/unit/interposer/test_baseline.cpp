// SPDX-License-Identifier: Apache-2.0
// interposer/glibc/baseline.cpp, linked into this test as into libmpsshim.so: what it writes again is what the C library has, where that has it.
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/catch.hpp"

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

timespec steady_in(milliseconds time) {
  timespec at{};
  clock_gettime(CLOCK_MONOTONIC, &at);
  const auto ns = at.tv_nsec + std::chrono::nanoseconds(time).count();
  at.tv_sec += ns / 1'000'000'000;
  at.tv_nsec = ns % 1'000'000'000;
  return at;
}

[[gnu::noinline]] int thrown(int depth) {
  if (depth == 0) throw std::runtime_error("thrown");
  return thrown(depth - 1) + 1;
}

}  // namespace

TEST_CASE("exceptions find their handlers, in several threads at once") {
  std::vector<std::thread> threads;
  std::atomic<int> caught{0};
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int depth = 0; depth < 200; ++depth) {
        try {
          (void)thrown(depth % 40);
        } catch (const std::runtime_error&) {
          ++caught;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(caught == 8 * 200);
}

#ifdef DLFO_STRUCT_HAS_EH_DBASE
TEST_CASE("the tables of a frame are those that the C library finds") {
  using Find = int(void*, dl_find_object*);
  const auto library = reinterpret_cast<Find*>(dlsym(RTLD_NEXT, "_dl_find_object"));
  const auto ours = reinterpret_cast<Find*>(&_dl_find_object);
  REQUIRE(ours != library);
  void* const in_heap = std::malloc(1);
  void* const addresses[] = {
      reinterpret_cast<void*>(&thrown), dlsym(RTLD_DEFAULT, "printf"), dlsym(RTLD_DEFAULT, "dl_iterate_phdr"), in_heap, nullptr,
      const_cast<void**>(&in_heap)};
  for (void* const address : addresses) {
    dl_find_object found{};
    dl_find_object expected{};
    const int result = ours(address, &found);
    if (library == nullptr) continue;  // older than 2.35
    INFO(address);
    CHECK(result == library(address, &expected));
    CHECK(found.dlfo_eh_frame == expected.dlfo_eh_frame);
    if (result != 0) continue;
    CHECK(found.dlfo_map_start <= address);
    CHECK(found.dlfo_map_end > address);
  }
  std::free(in_heap);
}
#endif

TEST_CASE("a wait on the steady clock lasts as long as it is to") {
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
  pthread_mutex_lock(&mutex);
  SECTION("until it has passed") {
    const timespec until = steady_in(milliseconds(60));
    const Clock::time_point began = Clock::now();
    CHECK(pthread_cond_clockwait(&condition, &mutex, CLOCK_MONOTONIC, &until) == ETIMEDOUT);
    CHECK(Clock::now() - began >= milliseconds(59));
    CHECK(Clock::now() - began < milliseconds(5000));
  }
  SECTION("not at all where it has passed") {
    const timespec until = steady_in(milliseconds(-2500));
    CHECK(pthread_cond_clockwait(&condition, &mutex, CLOCK_MONOTONIC, &until) == ETIMEDOUT);
  }
  SECTION("and wakes early rather than trust the clock of the day for long") {
    const timespec until = steady_in(std::chrono::hours(1));
    const Clock::time_point began = Clock::now();
    CHECK(pthread_cond_clockwait(&condition, &mutex, CLOCK_MONOTONIC, &until) == 0);
    CHECK(Clock::now() - began < std::chrono::minutes(1));
  }
  SECTION("of a clock that there is") {
    const timespec until = steady_in(milliseconds(1));
    CHECK(pthread_cond_clockwait(&condition, &mutex, 4711, &until) == EINVAL);
  }
  pthread_mutex_unlock(&mutex);
}

TEST_CASE("std::condition_variable waits whole, and wakes when it is told to") {
  std::mutex mutex;
  std::condition_variable condition;
  bool told = false;
  std::unique_lock lock(mutex);
  const Clock::time_point began = Clock::now();
  CHECK_FALSE(condition.wait_for(lock, milliseconds(1300), [&] { return told; }));
  CHECK(Clock::now() - began >= milliseconds(1300));
  std::thread teller([&] {
    std::this_thread::sleep_for(milliseconds(50));
    const std::lock_guard hold(mutex);
    told = true;
    condition.notify_all();
  });
  CHECK(condition.wait_for(lock, std::chrono::minutes(1), [&] { return told; }));
  lock.unlock();
  teller.join();
}

TEST_CASE("fstat tells a file's size") {
  char name[] = "/tmp/mpsshim-baseline-XXXXXX";
  const int file = mkstemp(name);
  REQUIRE(file >= 0);
  REQUIRE(ftruncate(file, 12345) == 0);
  struct stat status {};
  CHECK(fstat(file, &status) == 0);
  CHECK(status.st_size == 12345);
  CHECK(S_ISREG(status.st_mode));
  CHECK(status.st_uid == geteuid());
  close(file);
  std::filesystem::remove(name);
  CHECK(fstat(file, &status) == -1);
  CHECK(errno == EBADF);
}
