// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/memory/copy_crew.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <deque>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

#include "tests/support/catch.hpp"

using mpsshim::interposer::forward::Caching;
using mpsshim::interposer::forward::copy_bytes;
using mpsshim::interposer::forward::CopyCrew;
using mpsshim::interposer::forward::CopyTask;

namespace {

std::vector<unsigned char> pattern(std::size_t bytes, unsigned seed) {
  std::vector<unsigned char> all(bytes);
  for (std::size_t i = 0; i < bytes; ++i) all[i] = static_cast<unsigned char>(i * 131 + seed * 29 + (i >> 8));
  return all;
}

void submit(CopyCrew& crew, CopyTask& task, void* to, const void* from, std::size_t bytes, Caching caching = Caching::usual) {
  crew.submit(task, static_cast<std::byte*>(to), static_cast<const std::byte*>(from), bytes, caching);
}

void copy_by_tasks(CopyCrew& crew, std::vector<unsigned char>& to, const std::vector<unsigned char>& from, std::size_t step) {
  std::deque<CopyTask> tasks;
  for (std::size_t at = 0; at < from.size(); at += step) {
    const Caching caching = (at / step) % 2 == 0 ? Caching::past : Caching::usual;
    submit(crew, tasks.emplace_back(), to.data() + at, from.data() + at, std::min(step, from.size() - at), caching);
  }
  for (CopyTask& task : tasks) crew.finish(task);
}

// SigBlk of the threads of this process that bear the crew's name.
std::vector<unsigned long long> blocked_signals_of_helpers() {
  std::vector<unsigned long long> masks;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream status(task.path() / "status");
    bool is_helper = false;
    for (std::string text; std::getline(status, text);) {
      if (text.rfind("Name:\tmpsshim-copy", 0) == 0) is_helper = true;
      if (is_helper && text.rfind("SigBlk:", 0) == 0) masks.push_back(std::stoull(text.substr(7), nullptr, 16));
    }
  }
  return masks;
}

constexpr unsigned long long bit(int signal) { return 1ull << (signal - 1); }

}  // namespace

TEST_CASE("copy crew: bytes arrive, with any number of helpers and sizes around every limit") {
  const unsigned helpers = GENERATE(0u, 1u, 3u, 7u);
  CopyCrew crew(helpers);
  for (const std::size_t bytes : {0, 1, 4095, 4096, 4097, 100'000, 1'000'003}) {
    for (const std::size_t step : {1'000, 4'096, 65'537}) {
      const std::vector<unsigned char> from = pattern(bytes, static_cast<unsigned>(step));
      std::vector<unsigned char> to(bytes);
      copy_by_tasks(crew, to, from, step);
      REQUIRE(to == from);
    }
  }
  CHECK(crew.living_helpers() <= helpers);
}

TEST_CASE("copies past the caches are copies, wherever they begin and end") {
  const std::vector<unsigned char> from = pattern(2'000, 3);
  for (std::size_t offset = 0; offset < 40; ++offset) {
    for (std::size_t bytes = 0; bytes < 700; bytes = bytes < 200 ? bytes + 1 : bytes + 37) {
      std::vector<unsigned char> to(2'000, 0xcc);
      copy_bytes(reinterpret_cast<std::byte*>(to.data()) + offset, reinterpret_cast<const std::byte*>(from.data()) + offset % 7, bytes,
                 Caching::past);
      std::vector<unsigned char> wanted(2'000, 0xcc);
      std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(offset % 7), bytes, wanted.begin() + static_cast<std::ptrdiff_t>(offset));
      if (to != wanted) FAIL(bytes << " bytes at " << offset);
    }
  }
}

TEST_CASE("copy crew: a task that was never submitted is done, a finished one stays so") {
  CopyCrew crew(2);
  CopyTask task;
  CHECK(CopyCrew::is_done(task));
  crew.finish(task);
  int from = 7;
  int to = 0;
  submit(crew, task, &to, &from, sizeof to);
  crew.finish(task);
  CHECK(CopyCrew::is_done(task));
  CHECK(to == 7);
  crew.finish(task);
  CHECK_FALSE(crew.help());
}

TEST_CASE("copy crew: without helpers nothing happens until somebody finishes or helps") {
  CopyCrew crew(0);
  std::array<int, 3> from{1, 2, 3};
  std::array<int, 3> to{};
  std::array<CopyTask, 3> tasks;
  for (std::size_t i = 0; i < 3; ++i) submit(crew, tasks[i], &to[i], &from[i], sizeof(int));
  CHECK_FALSE(CopyCrew::is_done(tasks[0]));
  CHECK(crew.help());
  CHECK(CopyCrew::is_done(tasks[0]));  // in the order of their submission
  CHECK_FALSE(CopyCrew::is_done(tasks[1]));
  crew.finish(tasks[2]);
  CHECK(CopyCrew::is_done(tasks[1]));
  CHECK(to == from);
}

TEST_CASE("copy crew: many threads share it") {
  CopyCrew crew(3);
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (unsigned caller = 0; caller < 6; ++caller) {
    callers.emplace_back([&, caller] {
      for (unsigned round = 0; round < 40; ++round) {
        const std::vector<unsigned char> from = pattern(60'000 + caller * 777, caller + round);
        std::vector<unsigned char> to(from.size());
        copy_by_tasks(crew, to, from, 7'001);
        if (to != from) ++wrong;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  CHECK(wrong == 0);
}

TEST_CASE("copy crew: helpers take no signals of the program, but those of their own accesses") {
  CopyCrew crew(2);
  const std::vector<unsigned char> from = pattern(1 << 20, 1);
  std::vector<unsigned char> to(from.size());
  copy_by_tasks(crew, to, from, 1 << 16);
  REQUIRE(crew.living_helpers() > 0);
  std::vector<unsigned long long> masks;
  for (int look = 0; look < 2'000 && masks.size() != crew.living_helpers(); ++look) {  // a helper takes its name as its first act
    usleep(1'000);
    masks = blocked_signals_of_helpers();
  }
  REQUIRE(masks.size() == crew.living_helpers());
  for (const unsigned long long mask : masks) {
    for (const int signal : {SIGINT, SIGTERM, SIGCHLD, SIGUSR1, SIGALRM, SIGPROF}) CHECK((mask & bit(signal)) != 0);
    for (const int signal : {SIGSEGV, SIGBUS}) CHECK((mask & bit(signal)) == 0);
  }
  sigset_t mine;
  pthread_sigmask(SIG_SETMASK, nullptr, &mine);
  CHECK(sigismember(&mine, SIGINT) == 0);
}
