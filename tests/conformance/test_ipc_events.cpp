// SPDX-License-Identifier: Apache-2.0
// Events of one process that another waits for.
#include <signal.h>

#include <condition_variable>
#include <mutex>
#include <vector>

#include "other_process.hpp"
#include "shared_word.hpp"

using namespace mpsshim::test;

namespace {

// A host function that holds its stream until it is told to return.
class Holder {
 public:
  explicit Holder(CUstream stream) {
    OK(CU(cuLaunchHostFunc)(
        stream, [](void* user) { static_cast<Holder*>(user)->wait(); }, this));
  }
  void release() {
    const std::lock_guard lock(mutex_);
    is_released_ = true;
    changed_.notify_all();
  }

 private:
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return is_released_; });
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_released_ = false;
};

CUevent shared_event() {
  CUevent event = nullptr;
  OK(CU(cuEventCreate)(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
  return event;
}

struct Shared {
  CUipcMemHandle memory;
  CUipcEventHandle ready;
  CUipcEventHandle done;
};

}  // namespace

TEST_CASE("waits for events of another process", "[.]") {
  const DeviceContext context;
  const int socket = own_socket();
  Shared shared{};
  hear(socket, &shared, sizeof shared);
  CUdeviceptr memory = 0;
  CUevent ready = nullptr, done = nullptr;
  CUstream stream = nullptr;
  OK(CU(cuIpcOpenMemHandle)(&memory, shared.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  OK(CU(cuIpcOpenEventHandle)(&ready, shared.ready));
  OK(CU(cuIpcOpenEventHandle)(&done, shared.done));
  OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
  CHECK(CU(cuEventQuery)(ready) == CUDA_ERROR_NOT_READY);
  CHECK(CU(cuEventQuery)(done) == CUDA_SUCCESS);  // never recorded
  CUipcEventHandle again{};
  float milliseconds = 0;
  CHECK(CU(cuEventElapsedTime)(&milliseconds, ready, done) == CUDA_ERROR_INVALID_HANDLE);
  if (driver_kind() != DriverKind::real) CHECK(CU(cuIpcGetEventHandle)(&again, ready) == CUDA_ERROR_INVALID_HANDLE);
  // What waits for it runs behind what it was recorded behind.
  CUdeviceptr copy = 0;
  OK(CU(cuMemAlloc)(&copy, kWords * 4));
  OK(CU(cuStreamWaitEvent)(stream, ready, 0));
  OK(CU(cuMemcpyDtoDAsync)(copy, memory, kWords * 4, stream));
  OK(CU(cuMemsetD32Async)(memory, 66, kWords, stream));
  OK(CU(cuEventRecord)(done, stream));
  CHECK(CU(cuEventQuery)(done) == CUDA_ERROR_NOT_READY);
  char go = 'w';
  say(socket, &go, 1);
  OK(CU(cuEventSynchronize)(ready));
  OK(CU(cuEventQuery)(ready));
  OK(CU(cuStreamSynchronize)(stream));
  OK(CU(cuEventQuery)(done));
  CHECK(words_at(copy) == std::vector<unsigned>(kWords, 55));
  say(socket, &go, 1);  // not before: the other one records it again
  hear(socket, &go, 1);
  OK(CU(cuEventDestroy)(ready));
  OK(CU(cuEventDestroy)(done));
  OK(CU(cuIpcCloseMemHandle)(memory));
}

TEST_CASE("events order the work of two processes", "[forwarded]") {
  const DeviceContext context;
  if (is_cpu_driver()) MPSSHIM_SKIP("the CPU driver has no inter-process handles");
  const Pair pair;
  CUdeviceptr memory = 0;
  CUstream stream = nullptr;
  OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
  OK(CU(cuMemAlloc)(&memory, kWords * 4));
  const CUevent ready = shared_event(), done = shared_event();
  OK(CU(cuEventQuery)(ready));
  Shared shared{};
  OK(CU(cuIpcGetMemHandle)(&shared.memory, memory));
  OK(CU(cuIpcGetEventHandle)(&shared.ready, ready));
  OK(CU(cuIpcGetEventHandle)(&shared.done, done));
  Holder holder(stream);
  OK(CU(cuMemsetD32Async)(memory, 55, kWords, stream));
  OK(CU(cuEventRecord)(ready, stream));
  CHECK(CU(cuEventQuery)(ready) == CUDA_ERROR_NOT_READY);
  const pid_t child = start_other("waits for events of another process", pair);
  REQUIRE(child > 0);
  say(pair.ends[0], &shared, sizeof shared);
  char go = 0;
  hear(pair.ends[0], &go, 1);
  CHECK(CU(cuEventQuery)(done) == CUDA_ERROR_NOT_READY);  // it waits for what stands here
  holder.release();
  OK(CU(cuEventSynchronize)(done));
  OK(CU(cuEventQuery)(ready));
  CHECK(words_at(memory) == std::vector<unsigned>(kWords, 66));
  // Many times more, in turn.
  hear(pair.ends[0], &go, 1);
  for (unsigned round = 0; round < 100; ++round) OK(CU(cuEventRecord)(ready, stream));
  OK(CU(cuEventSynchronize)(ready));
  say(pair.ends[0], &go, 1);
  CHECK(exit_of(child) == 0);
  OK(CU(cuEventRecord)(done, stream));  // the other one has destroyed it for itself alone
  OK(CU(cuEventSynchronize)(done));
  OK(CU(cuEventDestroy)(done));
  OK(CU(cuEventDestroy)(ready));
  OK(CU(cuMemFree)(memory));
}

TEST_CASE("what inter-process event handles refuse", "[forwarded]") {
  const DeviceContext context;
  if (is_cpu_driver()) MPSSHIM_SKIP("the CPU driver has no inter-process handles");
  CUevent event = shared_event(), ordinary = nullptr, opened = nullptr;
  CUipcEventHandle handle{};
  OK(CU(cuEventCreate)(&ordinary, CU_EVENT_DISABLE_TIMING));
  CHECK(CU(cuIpcGetEventHandle)(nullptr, event) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuIpcGetEventHandle)(&handle, ordinary) != CUDA_SUCCESS);
  CHECK(CU(cuIpcOpenEventHandle)(nullptr, handle) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuIpcOpenEventHandle)(&opened, handle) != CUDA_SUCCESS);
  OK(CU(cuEventDestroy)(ordinary));
  OK(CU(cuEventDestroy)(event));
}

TEST_CASE("records an event and dies", "[.]") {
  const DeviceContext context;
  CUstream stream = nullptr;
  OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
  const CUevent first = shared_event(), second = shared_event();
  Shared shared{};
  OK(CU(cuIpcGetEventHandle)(&shared.ready, first));
  OK(CU(cuIpcGetEventHandle)(&shared.done, second));
  OK(CU(cuEventRecord)(first, stream));
  OK(CU(cuStreamSynchronize)(stream));
  Holder holder(stream);
  OK(CU(cuEventRecord)(second, stream));
  say(own_socket(), &shared, sizeof shared);
  pause();
}

TEST_CASE("nobody waits for an event of a process that was killed", "[forwarded]") {
  const DeviceContext context;
  if (driver_kind() != DriverKind::forwarded) MPSSHIM_SKIP("what happens to such an event is nowhere said");
  const Pair pair;
  const pid_t child = start_other("records an event and dies", pair);
  REQUIRE(child > 0);
  Shared shared{};
  hear(pair.ends[0], &shared, sizeof shared);
  CUevent complete = nullptr, pending = nullptr, late = nullptr;
  CUstream stream = nullptr;
  OK(CU(cuIpcOpenEventHandle)(&complete, shared.ready));
  OK(CU(cuIpcOpenEventHandle)(&pending, shared.done));
  OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
  OK(CU(cuEventSynchronize)(complete));
  CHECK(CU(cuEventQuery)(pending) == CUDA_ERROR_NOT_READY);
  OK(CU(cuStreamWaitEvent)(stream, pending, 0));
  CHECK(CU(cuStreamQuery)(stream) == CUDA_ERROR_NOT_READY);
  REQUIRE(kill(child, SIGKILL) == 0);
  (void)exit_of(child);
  CHECK(CU(cuEventSynchronize)(pending) == CUDA_ERROR_MPS_CLIENT_TERMINATED);
  CHECK(CU(cuEventQuery)(pending) == CUDA_ERROR_MPS_CLIENT_TERMINATED);
  OK(CU(cuStreamSynchronize)(stream));
  OK(CU(cuEventQuery)(complete));
  OK(CU(cuEventRecord)(pending, stream));  // of this process from here on
  OK(CU(cuEventSynchronize)(pending));
  CHECK(CU(cuIpcOpenEventHandle)(&late, shared.done) == CUDA_SUCCESS);  // its memory is still mapped here
  OK(CU(cuEventDestroy)(late));
  OK(CU(cuEventDestroy)(pending));
  OK(CU(cuEventDestroy)(complete));
  CHECK(CU(cuIpcOpenEventHandle)(&late, shared.done) == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("an event may be destroyed before a stream that waits for it has come so far", "[forwarded]") {
  const DeviceContext context;
  if (is_cpu_driver()) MPSSHIM_SKIP("the CPU driver has no events of several processes");
  SharedWord recorded, begins;
  CUstream recording = nullptr, waiting = nullptr;
  OK(CU(cuStreamCreate)(&recording, CU_STREAM_NON_BLOCKING));
  OK(CU(cuStreamCreate)(&waiting, CU_STREAM_NON_BLOCKING));
  const CUevent event = shared_event();
  OK(CU(cuStreamWaitValue32)(recording, recorded.address(), 1, CU_STREAM_WAIT_VALUE_GEQ));
  OK(CU(cuEventRecord)(event, recording));
  OK(CU(cuStreamWaitValue32)(waiting, begins.address(), 1, CU_STREAM_WAIT_VALUE_GEQ));
  OK(CU(cuStreamWaitEvent)(waiting, event, 0));
  *recorded = 1;
  OK(CU(cuEventSynchronize)(event));
  OK(CU(cuEventDestroy)(event));
  const CUevent another = shared_event();  // perhaps in its place
  OK(CU(cuEventQuery)(another));
  *begins = 1;
  OK(CU(cuStreamSynchronize)(waiting));
  OK(CU(cuEventQuery)(another));
  OK(CU(cuEventRecord)(another, recording));
  OK(CU(cuEventSynchronize)(another));
  OK(CU(cuEventDestroy)(another));
  OK(CU(cuStreamDestroy)(recording));
  OK(CU(cuStreamDestroy)(waiting));
}
