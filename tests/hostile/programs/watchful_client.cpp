// SPDX-License-Identifier: Apache-2.0
// watchful_client FILE SECONDS [echo]: an ordinary program of the driver API that launches, waits and reads the result back, again and again,
// compares every word, and writes down how long each such round took (tests/hostile/watch.hpp). With `echo` it makes no CUDA call: a round is a byte
// to a child process and back, what the machine's processors alone cost a program that hands something over and waits for the answer.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <thread>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>

#include "tests/hostile/watch.hpp"
#include "tests/process/programs/driver.hpp"

using namespace mpsshim::test;

namespace {

using Clock = std::chrono::steady_clock;  // CLOCK_MONOTONIC

constexpr unsigned kWords = 1'000;

std::uint64_t now_ns() {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count());
}

struct Watch {
  WatchHeader* header = nullptr;
  WatchSample* samples = nullptr;
  std::uint64_t room = 0;

  explicit Watch(const char* path) {
    const int file = open(path, O_RDWR | O_CLOEXEC);
    struct stat about {};
    require(file >= 0 && fstat(file, &about) == 0, "the file cannot be opened");
    const auto size = static_cast<std::size_t>(about.st_size);
    void* const pages = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    require(pages != MAP_FAILED && size > sizeof(WatchHeader), "the file cannot be mapped");
    header = new (pages) WatchHeader;
    samples = reinterpret_cast<WatchSample*>(static_cast<char*>(pages) + sizeof(WatchHeader));
    room = (size - sizeof(WatchHeader)) / sizeof(WatchSample);
  }
  void begin() const { header->began_ns = now_ns(); }
  void end() const {
    const std::uint64_t count = header->count;
    if (count >= room) return;
    samples[count] = {header->began_ns.exchange(0), now_ns()};
    header->count = count + 1;
  }
};

void play(const Watch& watch, double seconds) {
  const Device device;
  Words words(kWords, 6);
  std::vector<unsigned> read(kWords);
  const auto until = Clock::now() + std::chrono::duration<double>(seconds);
  for (unsigned value = 1; Clock::now() < until; value = value * 5 + 1) {
    watch.begin();
    CU(device.launch_add(words.address, words.count(), value));
    CU(cuCtxSynchronize());
    CU(cuMemcpyDtoH(read.data(), words.address, kWords * sizeof(unsigned)));
    watch.end();
    words.add(value);
    if (read != words.expected) {
      ++watch.header->wrong;
      words.expected = read;  // the next round has a chance to be right
    }
    std::this_thread::sleep_for(std::chrono::microseconds(kWatchPauseUs));
  }
}

// Answers each byte with the next value; ends with its parent.
[[noreturn]] void answer_bytes(int socket) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  unsigned char byte = 0;
  while (read(socket, &byte, 1) == 1) {
    ++byte;
    if (write(socket, &byte, 1) != 1) break;
  }
  _exit(0);
}

void play_echo(const Watch& watch, double seconds) {
  int sockets[2];
  require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) == 0, "no sockets");
  const pid_t child = fork();
  require(child >= 0, "no child process");
  if (child == 0) {
    close(sockets[0]);
    answer_bytes(sockets[1]);
  }
  close(sockets[1]);
  const auto until = Clock::now() + std::chrono::duration<double>(seconds);
  for (unsigned char value = 1; Clock::now() < until; value = static_cast<unsigned char>(value * 5 + 1)) {
    unsigned char back = 0;
    watch.begin();
    require(write(sockets[0], &value, 1) == 1 && read(sockets[0], &back, 1) == 1, "the child does not answer");
    watch.end();
    if (back != static_cast<unsigned char>(value + 1)) ++watch.header->wrong;
    std::this_thread::sleep_for(std::chrono::microseconds(kWatchPauseUs));
  }
}

}  // namespace

int main(int count, char** arguments) {
  const bool echoes = count == 4 && std::strcmp(arguments[3], "echo") == 0;
  if (count != 3 && !echoes) return 2;
  try {
    const Watch watch(arguments[1]);
    try {
      (echoes ? play_echo : play)(watch, std::atof(arguments[2]));
    } catch (const std::exception& error) {
      std::snprintf(watch.header->error, sizeof watch.header->error, "%s", error.what());
      return 1;
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
  return 0;
}
