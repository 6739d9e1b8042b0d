// SPDX-License-Identifier: Apache-2.0
// cuStreamWriteValue*, cuStreamWaitValue* and cuStreamBatchMemOp, on device memory and on pinned memory.
#include <chrono>
#include <thread>

#include "loaded_image.hpp"
#include "shared_word.hpp"

using namespace mpsshim::test;
using namespace std::chrono_literals;

namespace {

struct Kernels : GateKernels {
  CUfunction append = image.function("append");
};

}  // namespace

TEST_CASE("words written by streams", "[forwarded]") {
  const DeviceContext context;
  const DeviceArray<unsigned> memory(4);
  SharedWord pinned;
  const CUstream stream = new_stream();
  OK(CU(cuStreamWriteValue32)(stream, memory.address(), 0xfedcba98u, 0));
  OK(CU(cuStreamWriteValue64)(stream, memory.address() + 8, 0x0123456789abcdefull, 0));
  OK(CU(cuStreamWriteValue32)(stream, pinned.address(), 17, 0));
  // An operation of the first version alone.
  CHECK(CU(cuStreamWriteValue32)(stream, pinned.address(), 18, CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuStreamSynchronize)(stream));
  CHECK(memory[0] == 0xfedcba98u);
  CHECK(memory[1] == 0);
  CHECK(memory[2] == 0x89abcdefu);
  CHECK(memory[3] == 0x01234567u);
  CHECK(*pinned == 17);
  OK(CU(cuStreamDestroy)(stream));
}

TEST_CASE("a stream waits for a word that the host, a kernel or another stream writes", "[forwarded]") {
  const DeviceContext context;
  const Kernels kernels;
  launch_once(kernels.store);
  const DeviceArray<unsigned> memory(2);
  SharedWord pinned;
  SharedWord done;
  const CUstream waiting = new_stream();
  const CUstream writing = new_stream();
  SECTION("the host") {
    OK(CU(cuStreamWaitValue32)(waiting, pinned.address(), 3, CU_STREAM_WAIT_VALUE_EQ));
    OK(launch(kernels.store, waiting, 1, 1, done.address(), 1u));
    std::this_thread::sleep_for(200ms);  // hundreds of looks
    CHECK(*done == 0);
    *pinned = 3;
  }
  SECTION("a kernel") {
    OK(CU(cuStreamWaitValue32)(waiting, memory.address(), 3, CU_STREAM_WAIT_VALUE_GEQ));
    OK(launch(kernels.store, waiting, 1, 1, done.address(), 1u));
    std::this_thread::sleep_for(20ms);
    CHECK(*done == 0);
    OK(launch(kernels.store, writing, 1, 1, memory.address(), 4u));
  }
  SECTION("another stream") {
    OK(CU(cuStreamWaitValue64)(waiting, memory.address(), 1, CU_STREAM_WAIT_VALUE_AND));
    OK(launch(kernels.store, waiting, 1, 1, done.address(), 1u));
    OK(CU(cuStreamWriteValue64)(writing, memory.address(), 6, 0));
    OK(CU(cuStreamSynchronize)(writing));
    std::this_thread::sleep_for(20ms);
    CHECK(*done == 0);
    CHECK(CU(cuStreamQuery)(waiting) == CUDA_ERROR_NOT_READY);
    OK(CU(cuStreamWriteValue64)(writing, memory.address(), 7, 0));
  }
  OK(CU(cuStreamSynchronize)(waiting));
  CHECK(*done == 1);
  for (const CUstream stream : {waiting, writing}) OK(CU(cuStreamDestroy)(stream));
}

TEST_CASE("a word is looked at when the work before the wait is done", "[forwarded]") {
  const DeviceContext context;
  const Kernels kernels;
  const DeviceArray<unsigned> memory(1);
  SharedWord gate;
  SharedWord done;
  const CUstream stream = new_stream();
  const CUstream other = new_stream();
  OK(CU(cuMemsetD32)(memory.address(), 1, 1));
  OK(launch(kernels.spin, stream, 1, 1, gate.address()));
  OK(CU(cuStreamWriteValue32)(stream, memory.address(), 0, 0));
  OK(CU(cuStreamWaitValue32)(stream, memory.address(), 1, CU_STREAM_WAIT_VALUE_EQ));
  OK(launch(kernels.store, stream, 1, 1, done.address(), 1u));
  gate.wait_for_spinning();
  *gate = 1;
  std::this_thread::sleep_for(20ms);
  CHECK(*done == 0);  // it held 1 before the write
  OK(CU(cuStreamWriteValue32)(other, memory.address(), 1, 0));
  OK(CU(cuStreamSynchronize)(stream));
  CHECK(*done == 1);
  for (const CUstream each : {stream, other}) OK(CU(cuStreamDestroy)(each));
}

TEST_CASE("two streams take turns by words", "[forwarded]") {
  const DeviceContext context;
  const Kernels kernels;
  {
    const DeviceArray<unsigned> list(1), count(1);
    OK(launch(kernels.append, nullptr, 1, 1, list.address(), count.address(), 0u));  // as launch_once()
    OK(CU(cuCtxSynchronize)());
  }
  constexpr unsigned kTurns = 50;
  const DeviceArray<unsigned> turn(1);
  const DeviceArray<unsigned> count(1);
  const DeviceArray<unsigned> list(2 * kTurns);
  const CUstream streams[] = {new_stream(), new_stream()};
  for (unsigned i = 0; i < kTurns; ++i) {
    for (unsigned side = 2; side-- > 0;) {
      OK(CU(cuStreamWaitValue32)(streams[side], turn.address(), 2 * i + side, CU_STREAM_WAIT_VALUE_EQ));
      OK(launch(kernels.append, streams[side], 1, 1, list.address(), count.address(), 2 * i + side));
      OK(CU(cuStreamWriteValue32)(streams[side], turn.address(), 2 * i + side + 1, 0));
    }
  }
  OK(CU(cuCtxSynchronize)());
  REQUIRE(count[0] == 2 * kTurns);
  for (unsigned i = 0; i < 2 * kTurns; ++i) REQUIRE(list[i] == i);
  for (const CUstream stream : streams) OK(CU(cuStreamDestroy)(stream));
}

TEST_CASE("a batch of memory operations is done in order", "[forwarded]") {
  const DeviceContext context;
  const DeviceArray<unsigned> memory(2);
  CUstreamBatchMemOpParams operations[3]{};
  operations[0].writeValue = {CU_STREAM_MEM_OP_WRITE_VALUE_32, memory.address(), {5}, 0, 0};
  operations[1].waitValue = {CU_STREAM_MEM_OP_WAIT_VALUE_32, memory.address(), {5}, CU_STREAM_WAIT_VALUE_EQ, 0};
  operations[2].writeValue = {CU_STREAM_MEM_OP_WRITE_VALUE_32, memory.address() + 4, {6}, 0, 0};
  OK(CU(cuStreamBatchMemOp)(nullptr, 3, operations, 0));
  OK(CU(cuCtxSynchronize)());
  CHECK(memory[0] == 5);
  CHECK(memory[1] == 6);
  CHECK(CU(cuStreamBatchMemOp)(nullptr, 3, operations, 1) == CUDA_ERROR_INVALID_VALUE);
  if (driver_kind() != DriverKind::real) CHECK(CU(cuStreamBatchMemOp)(nullptr, 3, nullptr, 0) == CUDA_ERROR_INVALID_VALUE);  // which does not look
  CHECK(CU(cuStreamBatchMemOp)(nullptr, 257, operations, 0) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("memory operations on what is no word of the device", "[forwarded]") {
  const DeviceContext context;
  const DeviceArray<unsigned> memory(2);
  CHECK(CU(cuStreamWriteValue32)(nullptr, memory.address() + 2, 1, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuStreamWriteValue64)(nullptr, memory.address() + 4, 1, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuStreamWaitValue32)(nullptr, memory.address() + 1, 1, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuStreamWriteValue32)(nullptr, 0, 1, 0) == CUDA_ERROR_INVALID_VALUE);
  static unsigned on_host = 0;
  CHECK(CU(cuStreamWriteValue32)(nullptr, reinterpret_cast<CUdeviceptr>(&on_host), 1, 0) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuCtxSynchronize)());
}
