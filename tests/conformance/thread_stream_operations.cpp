// SPDX-License-Identifier: Apache-2.0
// What threads do with streams and events.
#include "thread_steps.hpp"

namespace mpsshim::test {

namespace {

void synchronize_context(Worker& worker) {
  const CUresult refused = worker.captures_meet_waits ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
  worker.expect(DRIVER(worker, cuCtxSynchronize), {CUDA_SUCCESS, refused});
}

// --- streams ---

CUstream make_stream(Worker& worker) {
  CUstream made = nullptr;
  const unsigned flags = worker.below(2) == 0 ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT;
  worker.expect(DRIVER(worker, cuStreamCreate, &made, flags));
  return made;
}

void create_streams(Worker& worker) {
  const CUstream made = make_stream(worker);
  if (made == nullptr || !worker.add_one(made)) return;
  if (const auto old = worker.shared.passed_streams.put(made)) STEP(worker, cuStreamDestroy, *old);
}

void destroy_streams(Worker& worker) {
  auto taken = worker.shared.passed_streams.take();
  if (!taken) {
    taken = make_stream(worker);
    if (*taken == nullptr || !worker.add_one(*taken)) return;
  }
  STEP(worker, cuStreamDestroy, *taken);
}

void synchronize_streams(Worker& worker) {
  STEP(worker, cuStreamSynchronize, worker.any_stream());
  STEP(worker, cuStreamSynchronize, nullptr);
}

void query_streams(Worker& worker) {
  unsigned flags = 0;
  int priority = 0;
  CUcontext context = nullptr;
  worker.expect(DRIVER(worker, cuStreamQuery, worker.any_stream()), {CUDA_SUCCESS, CUDA_ERROR_NOT_READY});
  worker.expect(DRIVER(worker, cuStreamQuery, nullptr), {CUDA_SUCCESS, CUDA_ERROR_NOT_READY});
  STEP(worker, cuStreamGetFlags, worker.any_stream(), &flags);
  STEP(worker, cuStreamGetPriority, worker.any_stream(), &priority);
  STEP(worker, cuStreamGetCtx, worker.any_stream(), &context);
}

void wait_for_events(Worker& worker) { STEP(worker, cuStreamWaitEvent, worker.any_stream(), worker.any_event(), 0); }

void launch_kernels(Worker& worker) { worker.add_one(worker.any_stream()); }

void launch_in_null_stream(Worker& worker) { worker.add_one(nullptr); }

void call_host(Worker& worker) {
  SharedObjects& shared = worker.shared;
  if (worker.expect(DRIVER(worker, cuLaunchHostFunc, worker.any_stream(), count_call, &shared.host_calls))) ++shared.expected_host_calls;
}

// --- events ---

void record_events(Worker& worker) { STEP(worker, cuEventRecord, worker.any_event(), worker.any_stream()); }

void query_events(Worker& worker) {
  worker.expect(DRIVER(worker, cuEventQuery, worker.any_event()), {CUDA_SUCCESS, CUDA_ERROR_NOT_READY});
  float milliseconds = 0;
  worker.expect(DRIVER(worker, cuEventElapsedTime, &milliseconds, worker.shared.events[0], worker.shared.events[1]),
                {CUDA_SUCCESS, CUDA_ERROR_NOT_READY});
}

void synchronize_events(Worker& worker) { STEP(worker, cuEventSynchronize, worker.any_event()); }

void create_events(Worker& worker) {
  CUevent made = nullptr;
  STEP(worker, cuEventCreate, &made, worker.below(2) == 0 ? CU_EVENT_DISABLE_TIMING : CU_EVENT_DEFAULT);
  STEP(worker, cuEventRecord, made, worker.any_stream());
  if (const auto old = worker.shared.passed_events.put(made)) STEP(worker, cuEventDestroy, *old);
}

void destroy_events(Worker& worker) {
  auto taken = worker.shared.passed_events.take();
  if (!taken) {
    CUevent made = nullptr;
    STEP(worker, cuEventCreate, &made, CU_EVENT_DEFAULT);
    STEP(worker, cuEventRecord, made, worker.any_stream());
    taken = made;
  }
  STEP(worker, cuStreamWaitEvent, worker.any_stream(), *taken, 0);
  if (worker.below(2) == 0) STEP(worker, cuEventSynchronize, *taken);
  STEP(worker, cuEventDestroy, *taken);
}

constexpr Operation kStreamOperations[] = {
    {"synchronize the context", synchronize_context, true, true},
    {"create streams", create_streams},
    {"destroy streams", destroy_streams},
    {"synchronize streams", synchronize_streams},
    {"query streams", query_streams},
    {"wait for events in streams", wait_for_events},
    {"launch kernels", launch_kernels},
    {"launch in the NULL stream", launch_in_null_stream},
    {"call the host", call_host},
    {"record events", record_events},
    {"query events", query_events},
    {"synchronize events", synchronize_events},
    {"create events", create_events},
    {"destroy events", destroy_events},
};

}  // namespace

std::span<const Operation> stream_operations() { return kStreamOperations; }

}  // namespace mpsshim::test
