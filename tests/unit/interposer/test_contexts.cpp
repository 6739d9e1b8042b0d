// SPDX-License-Identifier: Apache-2.0
// The context stack, primary and created contexts, with the forwarding half replaced by a recorder.
#include <thread>
#include <vector>

#include "gen/api_declarations.hpp"
#include "interposer/local/contexts.hpp"
#include "interposer/local/devices.hpp"
#include "tests/support/catch.hpp"
#include "tests/unit/interposer/context_recorder.hpp"

using namespace mpsshim::interposer;
using namespace mpsshim::test;

TEST_CASE("without a context calls that need one say so") {
  begin();
  CUdevice device = -1;
  unsigned value = 0;
  size_t limit = 0;
  CHECK(current() == nullptr);
  CHECK(api::cuCtxGetDevice(&device) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(api::cuCtxGetFlags(&value) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(api::cuCtxGetLimit(&limit, CU_LIMIT_STACK_SIZE) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(api::cuCtxSynchronize() == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(api::cuCtxPopCurrent_v2(nullptr) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(api::cuCtxSetCurrent(nullptr) == CUDA_SUCCESS);
  CHECK(recorder.sessions == 0);
}

TEST_CASE("a created context is current, the stack is the thread's own") {
  begin();
  const CUcontext first = create();
  CHECK(current() == first);
  const CUcontext second = create();
  CHECK(second != first);
  CHECK(current() == second);
  CUcontext popped = nullptr;
  REQUIRE(api::cuCtxPopCurrent_v2(&popped) == CUDA_SUCCESS);
  CHECK(popped == second);
  CHECK(current() == first);
  REQUIRE(api::cuCtxPushCurrent_v2(second) == CUDA_SUCCESS);
  REQUIRE(api::cuCtxSetCurrent(first) == CUDA_SUCCESS);    // replaces the top
  REQUIRE(api::cuCtxSetCurrent(nullptr) == CUDA_SUCCESS);  // pops it
  CHECK(current() == first);
  CUcontext elsewhere = first;
  std::thread([&] { (void)api::cuCtxGetCurrent(&elsewhere); }).join();
  CHECK(elsewhere == nullptr);
  CHECK(api::cuCtxDestroy_v2(second) == CUDA_SUCCESS);
  CHECK(api::cuCtxDestroy_v2(first) == CUDA_SUCCESS);
  CHECK(current() == nullptr);
}

TEST_CASE("a stack of a thousand entries") {
  begin();
  const CUcontext one = create();
  const CUcontext other = create();
  for (int i = 0; i < 1000; ++i) REQUIRE(api::cuCtxPushCurrent_v2(i % 2 == 0 ? one : other) == CUDA_SUCCESS);
  for (int i = 999; i >= 0; --i) {
    CUcontext popped = nullptr;
    REQUIRE(api::cuCtxPopCurrent_v2(&popped) == CUDA_SUCCESS);
    REQUIRE(popped == (i % 2 == 0 ? one : other));
  }
  CHECK(current() == other);
}

TEST_CASE("handles that are none are refused, not followed") {
  begin();
  const CUcontext destroyed = create();
  REQUIRE(api::cuCtxDestroy_v2(destroyed) == CUDA_SUCCESS);
  unsigned version = 0;
  for (const std::uintptr_t bits : {std::uintptr_t{1}, std::uintptr_t{0xdeadbeef}, ~std::uintptr_t{0}, reinterpret_cast<std::uintptr_t>(destroyed)}) {
    const auto handle = reinterpret_cast<CUcontext>(bits);
    CHECK(api::cuCtxSetCurrent(handle) == CUDA_ERROR_INVALID_CONTEXT);
    CHECK(api::cuCtxPushCurrent_v2(handle) == CUDA_ERROR_INVALID_CONTEXT);
    CHECK(api::cuCtxDestroy_v2(handle) == CUDA_ERROR_INVALID_CONTEXT);
    CHECK(api::cuCtxGetApiVersion(handle, &version) == CUDA_ERROR_INVALID_CONTEXT);
    CHECK(api::cuCtxSynchronize_v2(handle) == CUDA_ERROR_INVALID_CONTEXT);
  }
  CHECK(api::cuCtxPushCurrent_v2(nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(api::cuCtxDestroy_v2(nullptr) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("a context destroyed by another thread is found to be so") {
  begin();
  const CUcontext context = create();
  std::thread([&] { CHECK(api::cuCtxDestroy_v2(context) == CUDA_SUCCESS); }).join();
  CHECK(current() == context);
  CHECK(api::cuCtxSynchronize() == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK(recorder.released == std::vector<CUcontext>{context});
}

TEST_CASE("the primary context: handle before retaining, counted, reset") {
  begin();
  const CUcontext handle = primary_context(0);
  unsigned flags = 99;
  int active = -1;
  REQUIRE(api::cuDevicePrimaryCtxGetState(0, &flags, &active) == CUDA_SUCCESS);
  CHECK(active == 0);
  CHECK(api::cuCtxSetCurrent(handle) == CUDA_SUCCESS);  // the runtime does this before it retains
  CHECK(recorder.sessions == 0);
  CUcontext retained = nullptr;
  REQUIRE(api::cuDevicePrimaryCtxRetain(&retained, 0) == CUDA_SUCCESS);
  CHECK(retained == handle);
  CHECK(recorder.sessions == 1);
  CHECK(api::cuCtxSynchronize() == CUDA_SUCCESS);
  REQUIRE(api::cuDevicePrimaryCtxRetain(&retained, 0) == CUDA_SUCCESS);
  REQUIRE(api::cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS);
  CHECK(recorder.released.empty());
  REQUIRE(api::cuDevicePrimaryCtxGetState(0, &flags, &active) == CUDA_SUCCESS);
  CHECK(active == 1);
  REQUIRE(api::cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS);
  CHECK(recorder.released == std::vector<CUcontext>{handle});
  CHECK(api::cuCtxSynchronize() == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  unsigned version = 0;
  CHECK(api::cuCtxGetApiVersion(handle, &version) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK(api::cuDevicePrimaryCtxRelease_v2(0) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(api::cuCtxDestroy_v2(handle) == CUDA_ERROR_INVALID_CONTEXT);
  REQUIRE(api::cuDevicePrimaryCtxRetain(&retained, 0) == CUDA_SUCCESS);
  CHECK(retained == handle);
  CHECK(api::cuCtxSynchronize() == CUDA_SUCCESS);
  REQUIRE(api::cuDevicePrimaryCtxReset_v2(0) == CUDA_SUCCESS);
  CHECK(api::cuCtxSynchronize() == CUDA_ERROR_CONTEXT_IS_DESTROYED);
}

TEST_CASE("stored values end with the context, before its objects") {
  begin();
  const CUcontext context = create();
  static int calls;
  calls = 0;
  find_context(context)->storage.put(&calls, &recorder, [](CUcontext, void* key, void* value) {
    calls += key == &calls && value == &recorder && recorder.released.empty() ? 1 : 100;
  });
  REQUIRE(api::cuCtxDestroy_v2(context) == CUDA_SUCCESS);
  CHECK(calls == 1);
  CHECK(recorder.released.size() == 1);
}

TEST_CASE("no context comes out of a session that cannot be opened") {
  begin();
  recorder.session_result = CUDA_ERROR_MPS_MAX_CLIENTS_REACHED;
  CUcontext context = nullptr;
  CHECK(api::cuDevicePrimaryCtxRetain(&context, 0) == CUDA_ERROR_MPS_MAX_CLIENTS_REACHED);
  CHECK(api::cuCtxCreate_v2(&context, 0, 0) == CUDA_ERROR_MPS_MAX_CLIENTS_REACHED);
  CHECK(current() == nullptr);
  unsigned flags = 0;
  int active = -1;
  REQUIRE(api::cuDevicePrimaryCtxGetState(0, &flags, &active) == CUDA_SUCCESS);
  CHECK(active == 0);
}

TEST_CASE("contexts on two devices: each begins and ends in the name of its device's session") {
  begin();
  const CUcontext context = create();
  CHECK(recorder.session_index == session_of(0));
  CUcontext other = nullptr;
  REQUIRE(api::cuDevicePrimaryCtxRetain(&other, 1) == CUDA_SUCCESS);
  CHECK(session_of(1) != session_of(0));
  CHECK(recorder.session_index == session_of(1));
  CUcontext created = nullptr;
  REQUIRE(api::cuCtxCreate_v2(&created, 0, 1) == CUDA_SUCCESS);
  CUdevice device = -1;
  REQUIRE(api::cuCtxGetDevice(&device) == CUDA_SUCCESS);
  CHECK(device == 1);
  REQUIRE(api::cuCtxPopCurrent_v2(nullptr) == CUDA_SUCCESS);
  REQUIRE(api::cuCtxGetDevice(&device) == CUDA_SUCCESS);
  CHECK(device == 0);
  REQUIRE(api::cuDevicePrimaryCtxReset_v2(1) == CUDA_SUCCESS);
  CHECK(recorder.released.back() == other);
  CHECK(recorder.session_index == session_of(1));
  REQUIRE(api::cuCtxDestroy_v2(context) == CUDA_SUCCESS);
}
