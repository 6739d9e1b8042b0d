// SPDX-License-Identifier: Apache-2.0
// cuLaunchHostFunc and cuStreamAddCallback.
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "loaded_image.hpp"
#include "shared_word.hpp"

using namespace mpsshim::test;
using namespace std::chrono_literals;

namespace {

// A host function that stands in its stream until it is let go.
struct Door {
  std::atomic<bool> is_reached{false};
  std::atomic<bool> is_open{false};

  static void stand(void* self) {
    auto& door = *static_cast<Door*>(self);
    door.is_reached = true;
    while (!door.is_open) std::this_thread::sleep_for(100us);
  }
  void wait_until_reached() const {
    while (!is_reached) std::this_thread::yield();
  }
};

}  // namespace

TEST_CASE("a host function sees the work before it and is seen by the work behind", "[forwarded]") {
  const DeviceContext context;
  const GateKernels kernels;
  SharedWord before;
  SharedWord behind;
  const CUstream stream = new_stream();
  struct Seen {
    std::atomic<unsigned>* before;
    std::atomic<unsigned>* behind;
    unsigned value = 0;
    unsigned too_early = 0;
  } seen{&*before, &*behind};
  OK(launch(kernels.store, stream, 1, 1, before.address(), 7u));
  OK(CU(cuLaunchHostFunc)(
      stream,
      [](void* data) {
        auto& found = *static_cast<Seen*>(data);
        found.value = *found.before;
        std::this_thread::sleep_for(20ms);
        found.too_early = *found.behind;
      },
      &seen));
  OK(launch(kernels.store, stream, 1, 1, behind.address(), 9u));
  OK(CU(cuStreamSynchronize)(stream));
  CHECK(seen.value == 7);
  CHECK(seen.too_early == 0);
  CHECK(*behind == 9);
  OK(CU(cuStreamDestroy)(stream));
}

TEST_CASE("while a host function stands, its stream is busy and others go on", "[forwarded]") {
  const DeviceContext context;
  const GateKernels kernels;
  launch_once(kernels.store);
  SharedWord held;
  SharedWord other_word;
  Door door;
  const CUstream stream = new_stream();
  const CUstream other = new_stream();
  const CUstream waiting = new_stream();
  const CUevent event = new_event();
  OK(CU(cuLaunchHostFunc)(stream, Door::stand, &door));
  OK(launch(kernels.store, stream, 1, 1, held.address(), 1u));
  OK(CU(cuEventRecord)(event, stream));
  OK(CU(cuStreamWaitEvent)(waiting, event, 0));
  OK(launch(kernels.store, waiting, 1, 1, held.address() + 64, 1u));
  door.wait_until_reached();
  OK(launch(kernels.store, other, 1, 1, other_word.address(), 1u));
  OK(CU(cuStreamSynchronize)(other));
  CHECK(*other_word == 1);
  std::this_thread::sleep_for(20ms);
  CHECK(*held == 0);
  CHECK(CU(cuStreamQuery)(stream) == CUDA_ERROR_NOT_READY);
  CHECK(CU(cuStreamQuery)(waiting) == CUDA_ERROR_NOT_READY);
  CHECK(CU(cuEventQuery)(event) == CUDA_ERROR_NOT_READY);
  door.is_open = true;
  OK(CU(cuEventSynchronize)(event));
  CHECK(*held == 1);
  OK(CU(cuStreamSynchronize)(waiting));
  CHECK((&*held)[16] == 1);
  for (const CUstream each : {stream, other, waiting}) OK(CU(cuStreamDestroy)(each));
  OK(CU(cuEventDestroy)(event));
}

TEST_CASE("the NULL stream and blocking streams wait for host functions as for other work", "[forwarded]") {
  const DeviceContext context;
  const GateKernels kernels;
  SharedWord word;
  Door in_blocking;
  Door in_null;
  const CUstream blocking = new_stream(CU_STREAM_DEFAULT);
  OK(CU(cuLaunchHostFunc)(blocking, Door::stand, &in_blocking));
  OK(launch(kernels.store, nullptr, 1, 1, word.address(), 1u));
  OK(CU(cuLaunchHostFunc)(nullptr, Door::stand, &in_null));
  OK(launch(kernels.store, blocking, 1, 1, word.address(), 2u));
  in_blocking.wait_until_reached();
  std::this_thread::sleep_for(20ms);
  CHECK(*word == 0);
  CHECK(!in_null.is_reached);
  in_blocking.is_open = true;
  in_null.wait_until_reached();
  CHECK(*word == 1);
  std::this_thread::sleep_for(20ms);
  CHECK(*word == 1);
  in_null.is_open = true;
  OK(CU(cuCtxSynchronize)());
  CHECK(*word == 2);
  OK(CU(cuStreamDestroy)(blocking));
}

TEST_CASE("a callback gets its stream, the result so far and its data", "[forwarded]") {
  const DeviceContext context;
  struct Call {
    CUstream stream = nullptr;
    CUresult status = CUDA_ERROR_UNKNOWN;
    int count = 0;
  } call;
  const CUstream stream = new_stream();
  const auto note = [](CUstream from, CUresult status, void* data) {
    auto& noted = *static_cast<Call*>(data);
    noted = {from, status, noted.count + 1};
  };
  OK(CU(cuStreamAddCallback)(stream, note, &call, 0));
  OK(CU(cuStreamSynchronize)(stream));
  CHECK(call.stream == stream);
  CHECK(call.status == CUDA_SUCCESS);
  CHECK(call.count == 1);
  OK(CU(cuStreamAddCallback)(nullptr, note, &call, 0));
  OK(CU(cuCtxSynchronize)());
  CHECK(call.stream == nullptr);
  CHECK(call.count == 2);
  OK(CU(cuStreamDestroy)(stream));
}

TEST_CASE("host functions of a stream run in order, those of all streams one at a time", "[forwarded]") {
  if (driver_kind() == DriverKind::cpu) MPSSHIM_SKIP("the CPU driver runs host functions of different streams at once");
  const DeviceContext context;
  constexpr int kStreams = 8;
  constexpr int kEach = 50;
  struct Shared {
    int inside = 0;  // no atomics: one at a time
    int most_inside = 0;
    int total = 0;
  } shared;
  struct Lane {
    Shared* shared;
    int next = 0;
    bool in_order = true;
  };
  struct Task {
    Lane* lane;
    int number;
  };
  std::vector<Lane> lanes(kStreams, Lane{&shared});
  std::vector<Task> tasks;
  tasks.reserve(kStreams * kEach);
  std::vector<CUstream> streams;
  for (int i = 0; i < kStreams; ++i) streams.push_back(new_stream());
  for (int number = 0; number < kEach; ++number) {
    for (size_t i = 0; i < kStreams; ++i) {
      tasks.push_back({&lanes[i], number});
      OK(CU(cuLaunchHostFunc)(
          streams[i],
          [](void* data) {
            const auto& task = *static_cast<Task*>(data);
            Shared& all = *task.lane->shared;
            if (++all.inside > all.most_inside) all.most_inside = all.inside;
            if (task.lane->next++ != task.number) task.lane->in_order = false;
            ++all.total;
            --all.inside;
          },
          &tasks.back()));
    }
  }
  OK(CU(cuCtxSynchronize)());
  CHECK(shared.total == kStreams * kEach);
  CHECK(shared.most_inside == 1);
  for (const Lane& lane : lanes) CHECK(lane.in_order);
  for (const CUstream stream : streams) OK(CU(cuStreamDestroy)(stream));
}

TEST_CASE("a stream destroyed while its host function stands ends behind it", "[forwarded]") {
  const DeviceContext context;
  const GateKernels kernels;
  SharedWord word;
  Door door;
  const CUstream stream = new_stream();
  OK(CU(cuLaunchHostFunc)(stream, Door::stand, &door));
  OK(launch(kernels.store, stream, 1, 1, word.address(), 5u));
  door.wait_until_reached();
  std::thread destroying([&] {
    CU(cuCtxSetCurrent)(context.handle());
    CU(cuStreamDestroy)(stream);
  });
  std::this_thread::sleep_for(10ms);
  CHECK(*word == 0);
  door.is_open = true;
  destroying.join();
  OK(CU(cuCtxSynchronize)());
  CHECK(*word == 5);
}

TEST_CASE("host functions go on while a thread waits for room behind them", "[forwarded]") {
  constexpr unsigned kMany = 80'000;
  constexpr unsigned kBetween = 200;
  const DeviceContext context;
  const CUstream stream = new_stream();
  const CUevent event = new_event(CU_EVENT_DISABLE_TIMING);
  Door door;
  std::atomic<unsigned> posted{0};
  std::atomic<unsigned> called{0};
  OK(CU(cuLaunchHostFunc)(stream, Door::stand, &door));
  door.wait_until_reached();
  std::thread posting([&] {
    CU(cuCtxSetCurrent)(context.handle());
    const auto count = [](void* data) { ++*static_cast<std::atomic<unsigned>*>(data); };
    for (unsigned i = 0; i < kMany; ++i) {
      posted += (i % kBetween == 0 ? CU(cuLaunchHostFunc)(stream, count, &called) : CU(cuEventRecord)(event, stream)) == CUDA_SUCCESS ? 1 : 0;
    }
  });
  for (unsigned before = ~0u; before != posted; std::this_thread::sleep_for(50ms)) before = posted;  // until there is no room any more
  const auto opened = std::chrono::steady_clock::now();
  door.is_open = true;
  posting.join();
  OK(CU(cuStreamSynchronize)(stream));
  CHECK(posted == kMany);
  CHECK(called == kMany / kBetween);
  CHECK(std::chrono::steady_clock::now() - opened < 20s);
  OK(CU(cuEventDestroy)(event));
  OK(CU(cuStreamDestroy)(stream));
}

TEST_CASE("no CUDA call is permitted in a host function", "[forwarded]") {
  if (driver_kind() == DriverKind::cpu) MPSSHIM_SKIP("the CPU driver does not look who calls");
  const DeviceContext context;
  struct Tried {
    CUcontext context;
    CUresult set_current = CUDA_SUCCESS;
    CUresult synchronize = CUDA_SUCCESS;
    CUresult allocate = CUDA_SUCCESS;
  } tried{context.handle()};
  OK(CU(cuLaunchHostFunc)(
      nullptr,
      [](void* data) {
        auto& results = *static_cast<Tried*>(data);
        CUdeviceptr memory = 0;
        results.set_current = CU(cuCtxSetCurrent)(results.context);
        results.synchronize = CU(cuCtxSynchronize)();
        results.allocate = CU(cuMemAlloc)(&memory, 4096);
      },
      &tried));
  OK(CU(cuCtxSynchronize)());
  CHECK(tried.set_current == CUDA_ERROR_NOT_PERMITTED);
  CHECK(tried.synchronize == CUDA_ERROR_NOT_PERMITTED);
  CHECK(tried.allocate == CUDA_ERROR_NOT_PERMITTED);
}

TEST_CASE("host functions that are none", "[forwarded]") {
  const DeviceContext context;
  CHECK(CU(cuLaunchHostFunc)(nullptr, nullptr, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuStreamAddCallback)(nullptr, nullptr, nullptr, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuStreamAddCallback)(
            nullptr, [](CUstream, CUresult, void*) {}, nullptr, 1) == CUDA_ERROR_INVALID_VALUE);
  if (!refuses_dead_handles()) return;
  const CUstream gone = new_stream();
  OK(CU(cuStreamDestroy)(gone));
  CHECK(CU(cuLaunchHostFunc)(
            gone, [](void*) {}, nullptr) == CUDA_ERROR_INVALID_HANDLE);
}
