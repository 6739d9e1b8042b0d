// SPDX-License-Identifier: Apache-2.0
// Streams of one device that wait for events of the other.
#include <chrono>
#include <cstdio>

#include "tests/process/programs/two_devices.hpp"

namespace mpsshim::test {

namespace {

// Work of a side's stream behind work of the other's stream, one step after the other. Nothing is waited for in between.
class PingPong {
 public:
  explicit PingPong(Sides& sides) : sides_(sides) {
    for (std::size_t i = 0; i < 2; ++i) {
      sides_[i].use();
      CU(cuEventCreate(&events_[i], CU_EVENT_DISABLE_TIMING));
    }
  }
  ~PingPong() {
    for (CUevent event : events_) (void)cuEventDestroy(event);
  }
  PingPong(const PingPong&) = delete;

  // `step(side)` launches.
  template <typename Step>
  void play(unsigned rounds, Step&& step) {
    for (unsigned i = 0; i < 2 * rounds; ++i) {
      const Side& side = sides_[i % 2];
      side.use();
      if (i != 0) CU(cuStreamWaitEvent(side.stream, events_[1 - i % 2], 0));
      step(side);
      CU(cuEventRecord(events_[i % 2], side.stream));
    }
    CU(cuStreamSynchronize(sides_[1].stream));
  }

 private:
  Sides& sides_;
  CUevent events_[2] = {};
};

}  // namespace

// Both sides count a word of host memory up in turn, and each waits on the GPU for what the other one has written.
void ping_pong(Sides& sides) {
  constexpr unsigned kRounds = 200;  // more than one event has records under way at once
  sides[0].use();
  const PinnedWord shared;
  for (const Side& side : sides) {
    side.use();
    CU(cuStreamWaitValue32(side.stream, shared.address(), 0, CU_STREAM_WAIT_VALUE_GEQ));
  }
  PingPong game(sides);
  unsigned step = 0;
  game.play(kRounds, [&](const Side& side) {
    // Each waits for what the one before has written, and would do so for ever if that came later.
    CU(cuStreamWaitValue32(side.stream, shared.address(), step, CU_STREAM_WAIT_VALUE_EQ));
    CU(cuStreamWriteValue32(side.stream, shared.address(), ++step, CU_STREAM_WRITE_VALUE_DEFAULT));
  });
  require(*shared.words == 2 * kRounds, "steps of two devices are not all done");
  constexpr unsigned kTimed = 300;
  const auto start = std::chrono::steady_clock::now();
  game.play(kTimed, [](const Side& side) { side.launch_small(); });
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
  std::fprintf(stderr, "a kernel behind a kernel of the other device: %.1f us\n", took.count() / (2 * kTimed));
  for (const Side& side : sides) {
    side.use();
    require(side.read(side.data)[0] == kTimed, "kernels of two devices are not all done");
  }
}

// Events that could be shared with other processes are waited for by streams of both devices as others are. Natively the program ends
// with a segmentation fault here (driver 580, two H100s).
void shared_events(Sides& sides) {
  sides[0].use();
  const PinnedWord gate;
  for (unsigned round = 1; round <= 3; ++round) {
    sides[0].use();
    CUevent event = nullptr;
    CU(cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
    CU(cuStreamWaitEvent(sides[1].stream, event, 0));  // never recorded
    for (unsigned i = 0; i < 5; ++i) {
      gate.set(0);
      sides[0].use();
      CU(cuStreamWaitValue32(sides[0].stream, gate.address(), 1, CU_STREAM_WAIT_VALUE_GEQ));
      sides[0].launch_fill(sides[0].data, round + i);
      CU(cuEventRecord(event, sides[0].stream));
      sides[1].use();
      CU(cuStreamWaitEvent(sides[1].stream, event, 0));
      CU(cuMemcpyPeerAsync(sides[1].data, sides[1].context, sides[0].data, sides[0].context, kBytes, sides[1].stream));
      sides[1].launch_add(sides[1].data, 0);
      CU_GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(sides[1].stream));
      gate.set(1);
      CU(cuStreamSynchronize(sides[1].stream));
      require_index(sides[1].read(sides[1].data), round + i, "what another device has written before an event");
    }
    CU(cuEventDestroy(event));
  }
}

// Each stream waits for what it has been told to, and for nothing else.
void waits(Sides& sides) {
  constexpr unsigned kStreams = 20;
  sides[0].use();
  const PinnedWord gate;
  CUevent late = nullptr, soon = nullptr;
  CU(cuEventCreate(&late, CU_EVENT_DISABLE_TIMING));
  CU(cuEventCreate(&soon, CU_EVENT_DISABLE_TIMING));
  CUstream other = nullptr;
  CU(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  CU(cuStreamWaitValue32(sides[0].stream, gate.address(), 1, CU_STREAM_WAIT_VALUE_GEQ));
  CU(cuEventRecord(late, sides[0].stream));
  sides[1].use();
  std::vector<Side> waiting(kStreams, sides[1]);
  for (unsigned i = 0; i < kStreams; ++i) {
    CU(cuStreamCreate(&waiting[i].stream, CU_STREAM_NON_BLOCKING));
    CU(cuStreamWaitEvent(waiting[i].stream, late, 0));
    waiting[i].launch_small(i);
  }
  // An event that is recorded, and waited for, later, but ends sooner.
  for (unsigned round = 0; round < 40; ++round) {
    Side quick = sides[0];
    quick.stream = other;
    quick.use();
    quick.launch_small();
    CU(cuEventRecord(soon, other));
    sides[1].use();
    CU(cuStreamWaitEvent(sides[1].stream, soon, 0));
  }
  CU(cuStreamSynchronize(sides[1].stream));
  for (const Side& side : waiting) CU_GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(side.stream));
  // What was waited for is what had been recorded then.
  CU(cuEventRecord(late, other));
  CU(cuEventSynchronize(late));
  for (const Side& side : waiting) CU_GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(side.stream));
  gate.set(1);
  for (const Side& side : waiting) {
    CU(cuStreamSynchronize(side.stream));
    CU(cuStreamDestroy(side.stream));
  }
  const std::vector<unsigned> counts = sides[1].read(sides[1].data);
  for (unsigned i = 0; i < kStreams; ++i) require(counts[i] == 1, "a kernel behind the other device's event");
  sides[0].use();
  require(sides[0].read(sides[0].data)[0] == 40, "kernels in front of an event");
  // A stream may be gone before what it waits for has ended, and so may the event.
  gate.set(0);
  CU(cuStreamWaitValue32(sides[0].stream, gate.address(), 1, CU_STREAM_WAIT_VALUE_GEQ));
  CU(cuEventRecord(late, sides[0].stream));
  sides[1].use();
  Side gone = sides[1];
  CU(cuStreamCreate(&gone.stream, CU_STREAM_NON_BLOCKING));
  CU(cuStreamWaitEvent(gone.stream, late, 0));
  gone.launch_small();
  CU(cuStreamDestroy(gone.stream));
  CU(cuEventDestroy(late));
  CU(cuEventDestroy(soon));
  gate.set(1);
  CU(cuCtxSynchronize());
  require(sides[1].read(sides[1].data)[0] == 2, "a kernel of a stream that was destroyed while it waited");
  sides[0].use();
  CU(cuStreamDestroy(other));
}

}  // namespace mpsshim::test
