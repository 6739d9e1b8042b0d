// SPDX-License-Identifier: Apache-2.0
// The context stack, primary and created contexts, with the forwarding half replaced by a recorder.
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "gen/api_declarations.hpp"
#include "interposer/channel/wait.hpp"
#include "interposer/entry.hpp"
#include "interposer/forward/hooks.hpp"
#include "interposer/local/acting_session.hpp"
#include "interposer/local/contexts.hpp"
#include "interposer/local/devices.hpp"
#include "interposer/settle.hpp"
#include "tests/support/catch.hpp"
#include "tests/unit/interposer/fake_facts.hpp"

using namespace mpsshim;
using namespace mpsshim::interposer;

namespace {

struct Recorder {
  int sessions = 0;
  int renewed = 0;
  std::size_t raised = 0;
  CUresult raise_result = CUDA_ERROR_NOT_SUPPORTED;
  std::size_t persisting_bytes = 0;
  int synchronised = 0;
  std::vector<CUcontext> released;
  CUresult session_result = CUDA_SUCCESS;
  std::uint32_t session_index = 0;  // for which the last of these was
} recorder;

proto::DriverFacts& facts() {
  static auto published = std::make_unique<proto::DriverFacts>();
  return *published;
}

// Fresh devices and an empty stack; contexts of earlier cases stay, as they would in a program.
void begin() {
  test::fill_fake_facts(facts(), 2);
  setenv("CUDA_VISIBLE_DEVICES", "0,1", 1);
  REQUIRE(initialise_devices() == CUDA_SUCCESS);
  while (pop_context(nullptr) == CUDA_SUCCESS) {
  }
  while (api::cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS) {
  }
  recorder = {};
}

CUcontext current() {
  CUcontext context = nullptr;
  REQUIRE(api::cuCtxGetCurrent(&context) == CUDA_SUCCESS);
  return context;
}

CUcontext create() {
  CUcontext context = nullptr;
  REQUIRE(api::cuCtxCreate_v2(&context, 0, 0) == CUDA_SUCCESS);
  return context;
}

}  // namespace

const proto::DriverFacts& mpsshim::interposer::driver_facts() { return facts(); }
CUresult mpsshim::interposer::unsupported(ApiId) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult mpsshim::interposer::forward::ensure_session() {
  recorder.session_index = ActingSession::index();
  ++recorder.sessions;
  return recorder.session_result;
}
CUresult mpsshim::interposer::forward::synchronize_context(CUcontext) {
  ++recorder.synchronised;
  return CUDA_SUCCESS;
}
CUresult mpsshim::interposer::forward::raise_context_limit(CUlimit, std::size_t value) {
  recorder.raised = value;
  return recorder.raise_result;
}
CUresult mpsshim::interposer::forward::set_persisting_cache(CUcontext, std::size_t bytes) {
  recorder.persisting_bytes = bytes;
  return CUDA_SUCCESS;
}
CUresult mpsshim::interposer::forward::renew_process_objects() {
  ++recorder.renewed;
  return CUDA_SUCCESS;
}
void mpsshim::interposer::forward::release_context_objects(CUcontext context) {
  recorder.session_index = ActingSession::index();
  recorder.released.push_back(context);
}

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

TEST_CASE("persisting cache: as much as the device sets aside, and it is asked each time") {
  begin();
  const CUcontext context = create();
  size_t value = 0;
  auto& most = facts().device[0].attribute[CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE];
  most = 0;
  CHECK(api::cuCtxSetLimit(CU_LIMIT_PERSISTING_L2_CACHE_SIZE, 1000) == CUDA_ERROR_UNSUPPORTED_LIMIT);
  most = 5000;
  facts().device[0].attribute[CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE] = 8000;
  CHECK(api::cuCtxSetLimit(CU_LIMIT_PERSISTING_L2_CACHE_SIZE, 1000) == CUDA_SUCCESS);
  CHECK(recorder.persisting_bytes == 1000);
  CHECK(api::cuCtxSetLimit(CU_LIMIT_PERSISTING_L2_CACHE_SIZE, 400) == CUDA_SUCCESS);
  CHECK(recorder.persisting_bytes == 500);  // the others get it back
  CHECK(api::cuCtxSetLimit(CU_LIMIT_PERSISTING_L2_CACHE_SIZE, 5001) == CUDA_ERROR_INVALID_VALUE);
  CHECK(recorder.persisting_bytes == 500);
  CHECK(api::cuCtxSetLimit(CU_LIMIT_PERSISTING_L2_CACHE_SIZE, 5000) == CUDA_SUCCESS);
  CHECK(recorder.persisting_bytes == 5000);
  REQUIRE(api::cuCtxGetLimit(&value, CU_LIMIT_PERSISTING_L2_CACHE_SIZE) == CUDA_SUCCESS);
  CHECK(value == 5000);
  REQUIRE(api::cuCtxDestroy_v2(context) == CUDA_SUCCESS);
}

TEST_CASE("limits: as much as the shared context has, or less") {
  begin();
  const CUcontext context = create();
  size_t value = 0;
  REQUIRE(api::cuCtxGetLimit(&value, CU_LIMIT_STACK_SIZE) == CUDA_SUCCESS);
  CHECK(value == 1024);
  CHECK(api::cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1024) == CUDA_SUCCESS);
  CHECK(api::cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1025) == CUDA_ERROR_NOT_SUPPORTED);  // as the executor says
  CHECK(recorder.raised == 1025);
  recorder.raise_result = CUDA_SUCCESS;
  CHECK(api::cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 2048) == CUDA_SUCCESS);
  REQUIRE(api::cuCtxGetLimit(&value, CU_LIMIT_STACK_SIZE) == CUDA_SUCCESS);
  CHECK(value == 2048);
  recorder.raised = 0;
  CHECK(api::cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 2000) == CUDA_SUCCESS);
  CHECK(recorder.raised == 0);
  CHECK(api::cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 512) == CUDA_SUCCESS);
  REQUIRE(api::cuCtxGetLimit(&value, CU_LIMIT_STACK_SIZE) == CUDA_SUCCESS);
  CHECK(value == 512);
  CHECK(api::cuCtxSetLimit(CU_LIMIT_MAX_L2_FETCH_GRANULARITY, 128) == CUDA_SUCCESS);
  CHECK(api::cuCtxSetLimit(CU_LIMIT_MAX_L2_FETCH_GRANULARITY, 129) == CUDA_ERROR_INVALID_VALUE);
  CHECK(api::cuCtxGetLimit(&value, static_cast<CUlimit>(10)) == CUDA_ERROR_UNSUPPORTED_LIMIT);
  for (const int number : {-1, 32, 1000}) {
    CHECK(api::cuCtxGetLimit(&value, static_cast<CUlimit>(number)) == CUDA_ERROR_INVALID_VALUE);
  }
  REQUIRE(api::cuCtxDestroy_v2(context) == CUDA_SUCCESS);
}

TEST_CASE("ids are never reused, facts come from the device") {
  begin();
  unsigned long long first = 0;
  unsigned long long second = 0;
  CUcontext context = create();
  REQUIRE(api::cuCtxGetId(nullptr, &first) == CUDA_SUCCESS);
  unsigned version = 0;
  REQUIRE(api::cuCtxGetApiVersion(context, &version) == CUDA_SUCCESS);
  CHECK(version == 3020);
  int least = 1;
  int greatest = 1;
  REQUIRE(api::cuCtxGetStreamPriorityRange(&least, &greatest) == CUDA_SUCCESS);
  CHECK(least == 0);
  CHECK(greatest == -5);
  CHECK(api::cuCtxGetStreamPriorityRange(nullptr, nullptr) == CUDA_SUCCESS);
  REQUIRE(api::cuCtxDestroy_v2(context) == CUDA_SUCCESS);
  context = create();
  REQUIRE(api::cuCtxGetId(context, &second) == CUDA_SUCCESS);
  CHECK(second > first);
  REQUIRE(api::cuCtxDestroy_v2(context) == CUDA_SUCCESS);
}

TEST_CASE("flags: one way to wait, nothing unknown") {
  begin();
  CUcontext context = nullptr;
  CHECK(api::cuCtxCreate_v2(&context, 0x100, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(api::cuCtxCreate_v2(&context, CU_CTX_SCHED_SPIN | CU_CTX_SCHED_YIELD, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(api::cuCtxCreate_v2(nullptr, 0, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(api::cuCtxCreate_v2(&context, 0, 7) == CUDA_ERROR_INVALID_DEVICE);
  REQUIRE(api::cuCtxCreate_v2(&context, CU_CTX_SCHED_BLOCKING_SYNC | CU_CTX_MAP_HOST, 0) == CUDA_SUCCESS);
  unsigned flags = 0;
  REQUIRE(api::cuCtxGetFlags(&flags) == CUDA_SUCCESS);
  CHECK(flags == (CU_CTX_SCHED_BLOCKING_SYNC | CU_CTX_MAP_HOST));
  REQUIRE(api::cuCtxDestroy_v2(context) == CUDA_SUCCESS);
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

TEST_CASE("the current context's flags say how a thread waits for the GPU") {
  begin();
  CHECK(Wait::style_of_thread() == WaitStyle::automatic);
  CUcontext primary = nullptr;
  REQUIRE(api::cuDevicePrimaryCtxRetain(&primary, 0) == CUDA_SUCCESS);
  REQUIRE(api::cuCtxSetCurrent(primary) == CUDA_SUCCESS);
  CHECK(Wait::style_of_thread() == WaitStyle::automatic);
  REQUIRE(api::cuDevicePrimaryCtxSetFlags_v2(0, CU_CTX_SCHED_BLOCKING_SYNC | CU_CTX_MAP_HOST) == CUDA_SUCCESS);
  CHECK(Wait::style_of_thread() == WaitStyle::sleep);
  REQUIRE(api::cuDevicePrimaryCtxSetFlags_v2(0, CU_CTX_SCHED_YIELD) == CUDA_SUCCESS);
  CHECK(Wait::style_of_thread() == WaitStyle::yield);
  CUcontext created = nullptr;
  REQUIRE(api::cuCtxCreate_v2(&created, CU_CTX_SCHED_SPIN, 0) == CUDA_SUCCESS);
  CHECK(Wait::style_of_thread() == WaitStyle::spin);
  REQUIRE(api::cuCtxDestroy_v2(created) == CUDA_SUCCESS);
  REQUIRE(api::cuCtxSetCurrent(nullptr) == CUDA_SUCCESS);
  std::thread([] { CHECK(Wait::style_of_thread() == WaitStyle::automatic); }).join();
}
