// SPDX-License-Identifier: Apache-2.0
// What a context is set to and tells of itself: limits, flags, ids, and how its threads wait.
#include <thread>

#include "gen/api_declarations.hpp"
#include "interposer/channel/wait.hpp"
#include "tests/support/catch.hpp"
#include "tests/unit/interposer/context_recorder.hpp"

using namespace mpsshim::interposer;
using namespace mpsshim::test;

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
