// SPDX-License-Identifier: Apache-2.0
// rounds SECONDS SEED: launches a little and waits for it, again and again: on the NULL stream and three others, now on one, now on two in order
// by an event, now on all before it waits. Memory is compared with what it is to be now and then and at the end. Says "N rounds, right".
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>

#include "tests/process/programs/driver.hpp"

using namespace mpsshim::test;

namespace {

constexpr unsigned kStreams = 4;  // as many as go to another worker's context together
constexpr unsigned kWords = 200;
constexpr unsigned kRoundsBetweenLooks = 500;

struct Rounds {
  Device device;
  std::mt19937 random;
  std::array<CUstream, kStreams> streams{};  // the first is the NULL stream
  std::array<std::unique_ptr<Words>, kStreams> words;
  CUevent event = nullptr;

  explicit Rounds(unsigned seed) : random(seed) {
    for (unsigned i = 0; i < kStreams; ++i) {
      if (i > 0) CU(cuStreamCreate(&streams[i], i == 1 ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING));
      words[i] = std::make_unique<Words>(kWords, seed + i);
    }
    CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  }
  void add(unsigned of, unsigned in) {
    const auto value = static_cast<unsigned>(random() % 1000);
    CU(device.launch_add(words[of]->address, kWords, value, streams[in]));
    words[of]->add(value);
  }
  void play() {
    const unsigned one = random() % kStreams;
    const unsigned other = (one + 1 + random() % (kStreams - 1)) % kStreams;
    switch (random() % 8) {
      case 0:  // the same words from two streams, the second behind the first
        add(one, one);
        CU(cuEventRecord(event, streams[one]));
        CU(cuStreamWaitEvent(streams[other], event, 0));
        add(one, other);
        CU(cuStreamSynchronize(streams[other]));
        break;
      case 1:
        for (unsigned i = 0; i < kStreams; ++i) add(i, i);
        CU(cuCtxSynchronize());
        break;
      default:
        for (auto launches = random() % 3 + 1; launches > 0; --launches) add(one, one);
        CU(cuStreamSynchronize(streams[one]));
    }
  }
  void look() const {
    for (const auto& one : words) one->check();
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: rounds SECONDS SEED\n");
    return 2;
  }
  try {
    Rounds rounds(static_cast<unsigned>(std::atoi(argv[2])));
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(std::atof(argv[1]));
    unsigned played = 0;
    for (; std::chrono::steady_clock::now() < end; ++played) {
      rounds.play();
      if (played % kRoundsBetweenLooks == 0) rounds.look();
    }
    rounds.look();
    std::printf("%u rounds, right\n", played);
    return 0;
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "rounds: %s\n", failure.what());
    return 1;
  }
}
