// SPDX-License-Identifier: Apache-2.0
// Kernels of both devices that wait for each other, as a collective's do, and programs that load and free beside them all the time. Each runs for
// some seconds and says what it has done: "rounds N longest_ms MS".
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>

#include <unistd.h>

#include "tests/process/programs/two_devices_meet.hpp"

namespace mpsshim::test {

namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::duration<double, std::milli>;

constexpr std::chrono::seconds kTime{6};
constexpr unsigned kPairs = 4;  // meetings that are queued before the host waits

// Writes its word, then waits for the other's.
constexpr const char* kMeetPtx = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .entry meet(.param .u64 mine, .param .u64 theirs, .param .u32 round) {
  .reg .b64 %rd<3>;
  .reg .b32 %r<3>;
  .reg .pred %p<2>;
  ld.param.u64 %rd1, [mine];
  ld.param.u64 %rd2, [theirs];
  ld.param.u32 %r1, [round];
  st.volatile.global.u32 [%rd1], %r1;
  membar.sys;
AGAIN:
  ld.volatile.global.u32 %r2, [%rd2];
  setp.lt.u32 %p1, %r2, %r1;
  @%p1 bra AGAIN;
  ret;
}
)";

struct Rounds {
  unsigned count = 0;
  double longest_ms = 0;
  Clock::time_point begin = Clock::now();
  [[nodiscard]] bool go_on() const { return Clock::now() - begin < kTime; }
  template <typename F>
  void take(F&& f) {
    const auto start = Clock::now();
    f();
    longest_ms = std::max(longest_ms, Milliseconds(Clock::now() - start).count());
    ++count;
  }
  void tell() const { std::printf("rounds %u longest_ms %.0f\n", count, longest_ms); }
};

}  // namespace

Meeting::Meeting(Sides& sides) {
  for (unsigned i = 0; i < 2; ++i) {
    Party& party = parties_[i];
    party.side = &sides[i];
    sides[i].use();
    CUmodule module = nullptr;
    CU(cuModuleLoadData(&module, kMeetPtx));
    CU(cuModuleGetFunction(&party.meet, module, "meet"));
    CU(cuMemAlloc(&party.word, 4));
    CU(cuMemsetD32(party.word, 0, 1));
    CU(cuCtxSynchronize());
  }
  int are_peers = 0;
  CU(cuDeviceCanAccessPeer(&are_peers, sides[0].device, sides[1].device));
  are_peers_ = are_peers != 0;
  for (unsigned i = 0; i < 2 && are_peers_; ++i) {
    sides[i].use();
    CU(cuCtxEnablePeerAccess(sides[1 - i].context, 0));
  }
  void* pinned = nullptr;
  CU(cuMemHostAlloc(&pinned, 8, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
  std::memset(pinned, 0, 8);
  host_words_ = reinterpret_cast<CUdeviceptr>(pinned);
}

void Meeting::launch(unsigned first, bool by_host) {
  ++count_;
  for (const unsigned i : {first, 1 - first}) {
    const Party& party = parties_[i];
    const bool over_host = by_host || !are_peers_;
    CUdeviceptr mine = over_host ? host_words_ + 4 * i : party.word;
    CUdeviceptr theirs = over_host ? host_words_ + 4 * (1 - i) : parties_[1 - i].word;
    party.side->use();
    void* arguments[] = {&mine, &theirs, &count_};
    CU(cuLaunchKernel(party.meet, 1, 1, 1, 1, 1, 1, 0, party.side->stream, arguments, nullptr));
    party.side->launch_add(party.side->data, 1);
  }
}

// In turns over words in each other's memory, where the devices are peers, and over pinned ones; now one device is given its kernels first, now the
// other.
void meetings(Sides& sides) {
  Meeting meeting(sides);
  Rounds rounds;
  while (rounds.go_on()) {
    rounds.take([&] {
      for (unsigned pair = 0; pair < kPairs; ++pair) meeting.launch(rounds.count / 2 % 2, rounds.count % 2 == 1);
      for (const Side& side : sides) {
        side.use();
        CU(cuStreamSynchronize(side.stream));
      }
    });
  }
  for (const Side& side : sides) {
    side.use();
    require_all(side.read(side.data), meeting.count(), "what came behind each meeting");
  }
  rounds.tell();
}

// Modules that nobody has loaded before, and memory, on both devices.
void churn(Sides& sides) {
  Rounds rounds;
  while (rounds.go_on()) {
    rounds.take([&] {
      for (const Side& side : sides) {
        side.use();
        const std::string text =
            "// " + std::to_string(getpid()) + ' ' + std::to_string(side.device) + ' ' + std::to_string(rounds.count) + '\n' + kPlainPtx;
        CUmodule module = nullptr;
        CUfunction add = nullptr;
        CU(cuModuleLoadData(&module, text.c_str()));
        CU(cuModuleGetFunction(&add, module, "add"));
        CUdeviceptr memory = 0;
        CU(cuMemAlloc(&memory, kBytes));
        CU(cuMemsetD32Async(memory, rounds.count, kWords, side.stream));
        side.launch_add(add, memory, 3);
        CU(cuStreamSynchronize(side.stream));
        require_all(side.read(memory), rounds.count + 3, "a module that was just loaded");
        CU(cuMemFree(memory));
        CU(cuModuleUnload(module));
      }
    });
  }
  rounds.tell();
}

}  // namespace mpsshim::test
