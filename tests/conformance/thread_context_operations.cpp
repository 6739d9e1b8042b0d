// SPDX-License-Identifier: Apache-2.0
// What threads do with contexts.
#include "thread_steps.hpp"

namespace mpsshim::test {

namespace {

// --- contexts ---

void retain_primary_context(Worker& worker) {
  CUcontext context = nullptr;
  STEP(worker, cuDevicePrimaryCtxRetain, &context, 0);
  if (context != worker.shared.current()) worker.expect(CUDA_ERROR_UNKNOWN);
  unsigned flags = 0;
  int is_active = 0;
  STEP(worker, cuDevicePrimaryCtxGetState, 0, &flags, &is_active);
  if (is_active != 1) worker.expect(CUDA_ERROR_UNKNOWN);
  STEP(worker, cuDevicePrimaryCtxRelease, 0);
}

void change_current_context(Worker& worker) {
  CUcontext context = nullptr;
  STEP(worker, cuCtxPushCurrent, worker.shared.current());
  STEP(worker, cuCtxPopCurrent, &context);
  STEP(worker, cuCtxSetCurrent, nullptr);
  STEP(worker, cuCtxSetCurrent, context);
  STEP(worker, cuCtxGetCurrent, &context);
  if (context != worker.shared.current()) worker.expect(CUDA_ERROR_UNKNOWN);
}

// Another context, which ends with all that was made in it.
void use_another_context(Worker& worker) {
  CUcontext made = nullptr;
  worker.call = "cuCtxCreate_v2";
  if (!worker.expect(call("cuCtxCreate_v2", &made, 0u, CUdevice{0}))) return;
  CUstream stream = nullptr;
  CUevent event = nullptr;
  CUdeviceptr memory = 0;
  void* host = nullptr;
  STEP(worker, cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
  STEP(worker, cuEventCreate, &event, CU_EVENT_DEFAULT);
  STEP(worker, cuMemAlloc, &memory, Worker::kBytes);
  STEP(worker, cuMemHostAlloc, &host, Worker::kBytes, 0);
  STEP(worker, cuMemsetD32Async, memory, 1, Worker::kWords, stream);
  STEP(worker, cuEventRecord, event, stream);
  STEP(worker, cuCtxDestroy, made);
  STEP(worker, cuCtxSetCurrent, worker.shared.current());
}

// The stream that is the thread's own, made at its first use.
void use_own_stream(Worker& worker) {
  if (!worker.add_one(CU_STREAM_PER_THREAD)) return;
  STEP(worker, cuStreamSynchronize, CU_STREAM_PER_THREAD);
}

constexpr Operation kContextOperations[] = {
    {"retain the primary context", retain_primary_context},
    {"change the current context", change_current_context},
    {"use another context", use_another_context, false},
    {"use the thread's own stream", use_own_stream},
};

}  // namespace

std::span<const Operation> context_operations() { return kContextOperations; }

}  // namespace mpsshim::test
