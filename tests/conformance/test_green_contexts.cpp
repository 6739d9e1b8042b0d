// SPDX-License-Identifier: Apache-2.0
// Green contexts: made, current, used and gone.
#include <chrono>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "green_context.hpp"
#include "loaded_image.hpp"
#include "shared_word.hpp"

using namespace mpsshim::test;
using namespace std::chrono_literals;

#if CUDA_VERSION >= 13000
TEST_CASE("green contexts come and go, several of one descriptor", "[forwarded]") {
  const DeviceContext context;
  const CUdevResource whole = device_resource();
  const CUdevResource share = split(whole, 1, kFine, 4).groups.at(0);
  const CUdevResourceDesc descriptor = description({share});
  std::set<unsigned long long> ids;
  unsigned long long own = 0;
  OK(CU(cuCtxGetId)(context.handle(), &own));
  ids.insert(own);
  for (int turn = 0; turn < 3; ++turn) {
    const Green first(descriptor);
    const Green second(descriptor);
    for (const Green* green : {&first, &second}) {
      CUdevResource has{};
      OK(CU(cuGreenCtxGetDevResource)(green->handle(), &has, CU_DEV_RESOURCE_TYPE_SM));
      CHECK(has.sm.smCount == share.sm.smCount);
      OK(CU(cuCtxGetDevResource)(green->context(), &has, CU_DEV_RESOURCE_TYPE_SM));
      CHECK(has.sm.smCount == share.sm.smCount);
      unsigned long long id = 0;
      OK(CU(cuGreenCtxGetId)(green->handle(), &id));
      CHECK(ids.insert(id).second);
      CUcontext again = nullptr;
      OK(CU(cuCtxFromGreenCtx)(&again, green->handle()));
      CHECK(again == green->context());
      CHECK(again != context.handle());
    }
  }
  CUdevResource has{};
  CHECK(CU(cuGreenCtxGetDevResource)(Green(descriptor).handle(), nullptr, CU_DEV_RESOURCE_TYPE_SM) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuGreenCtxGetDevResource)(Green(descriptor).handle(), &has, CU_DEV_RESOURCE_TYPE_INVALID) == CUDA_ERROR_INVALID_RESOURCE_TYPE);
}

TEST_CASE("green contexts that are none", "[forwarded]") {
  if (!refuses_dead_handles()) MPSSHIM_SKIP("the real driver follows such a handle");
  const DeviceContext context;
  Green green;
  const CUgreenCtx dead = green.handle();
  const CUcontext dead_context = green.context();
  green.end();
  CUcontext found = nullptr;
  CUstream stream = nullptr;
  CUdevResource resource{};
  unsigned long long id = 0;
  for (const CUgreenCtx handle : {dead, static_cast<CUgreenCtx>(nullptr), reinterpret_cast<CUgreenCtx>(context.handle())}) {
    CHECK(CU(cuGreenCtxDestroy)(handle) == CUDA_ERROR_INVALID_CONTEXT);
    CHECK(CU(cuCtxFromGreenCtx)(&found, handle) == CUDA_ERROR_INVALID_CONTEXT);
    CHECK(CU(cuGreenCtxStreamCreate)(&stream, handle, CU_STREAM_NON_BLOCKING, 0) == CUDA_ERROR_INVALID_CONTEXT);
    CHECK(CU(cuGreenCtxGetDevResource)(handle, &resource, CU_DEV_RESOURCE_TYPE_SM) == CUDA_ERROR_INVALID_CONTEXT);
    CHECK(CU(cuGreenCtxGetId)(handle, &id) == CUDA_ERROR_INVALID_CONTEXT);
  }
  CHECK(CU(cuCtxSetCurrent)(dead_context) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(CU(cuCtxGetDevResource)(dead_context, &resource, CU_DEV_RESOURCE_TYPE_SM) == CUDA_ERROR_INVALID_CONTEXT);
}

TEST_CASE("a green context is current like another", "[forwarded]") {
  const DeviceContext context;
  const LoadedImage image;
  const CUfunction add = image.function("add_to");
  DeviceArray<unsigned> sum(1);
  const Green green;
  CUgreenCtx of_null = green.handle();
  OK(CU(cuStreamGetGreenCtx)(nullptr, &of_null));
  CHECK(of_null == nullptr);
  {
    const Current current(green.context());
    CUcontext found = nullptr;
    OK(CU(cuCtxGetCurrent)(&found));
    CHECK(found == green.context());
    CUdevice device = -1;
    OK(CU(cuCtxGetDevice)(&device));
    CHECK(device == 0);
    unsigned flags = 4711;
    OK(CU(cuCtxGetFlags)(&flags));
    unsigned long long green_id = 0;
    unsigned long long current_id = 0;
    OK(CU(cuGreenCtxGetId)(nullptr, &green_id));
    OK(CU(cuCtxGetId)(green.context(), &current_id));
    CHECK(green_id == current_id);
    CHECK(green.of(nullptr) == green.handle());
    OK(CU(cuStreamGetCtx)(nullptr, &found));
    CHECK(found == green.context());

    const CUstream made = new_stream();
    CHECK(green.of(made) == green.handle());
    OK(CU(cuStreamGetCtx)(made, &found));
    CHECK(found == green.context());
    for (unsigned i = 0; i < 20; ++i) OK(launch(add, i < 10 ? nullptr : made, 1, 1, sum.address(), 1u));
    OK(CU(cuCtxSynchronize)());
    CHECK(sum[0] == 20);
    const LoadedImage again;  // modules and memory as ever
    DeviceArray<unsigned> word(1);
    OK(launch(again.function("store"), nullptr, 1, 1, word.address(), 4711u));
    CHECK(word[0] == 4711);
    OK(CU(cuStreamDestroy)(made));
    CHECK(CU(cuStreamGetGreenCtx)(CU_STREAM_PER_THREAD, &of_null) == CUDA_ERROR_INVALID_HANDLE);
  }
  CUcontext found = nullptr;
  OK(CU(cuCtxGetCurrent)(&found));
  CHECK(found == context.handle());
}

TEST_CASE("memory and modules made in a green context outlive it", "[forwarded]") {
  const DeviceContext context;
  CUdeviceptr memory = 0;
  CUmodule module = nullptr;
  const std::string content = read_image("kernels.fatbin");
  {
    const Green green;
    const Current current(green.context());
    OK(CU(cuMemAlloc)(&memory, 4));
    OK(CU(cuModuleLoadData)(&module, content.data()));
  }
  CUfunction store = nullptr;
  OK(CU(cuModuleGetFunction)(&store, module, "store"));
  OK(launch(store, nullptr, 1, 1, memory, 17u));
  unsigned value = 0;
  OK(CU(cuMemcpyDtoH)(&value, memory, 4));
  CHECK(value == 17);
  OK(CU(cuModuleUnload)(module));
  OK(CU(cuMemFree)(memory));
}

TEST_CASE("the primary context waits for its green contexts, a green one for itself", "[forwarded]") {
  const DeviceContext context;
  const LoadedImage image;
  const CUfunction spin = image.function("spin");
  const Green green;
  const Green other;
  SharedWord until;
  const CUstream stream = green.stream();
  OK(launch(spin, stream, 1, 1, until.address()));
  until.wait_for_spinning();
  {
    const Current current(other.context());
    OK(CU(cuCtxSynchronize)());  // returns while the other one's kernel runs
  }
  std::thread release([&] {
    std::this_thread::sleep_for(20ms);
    *until = 1;
  });
  OK(CU(cuCtxSynchronize)());
  CHECK(CU(cuStreamQuery)(stream) == CUDA_SUCCESS);
  release.join();
  OK(CU(cuStreamDestroy)(stream));
}

TEST_CASE("one client has sixteen green contexts at most", "[forwarded]") {
  if (driver_kind() != DriverKind::forwarded) MPSSHIM_SKIP("a limit of the broker");
  const DeviceContext context;
  const CUdevResourceDesc descriptor = description({split(device_resource(), 1, kFine, 2).groups.at(0)});
  std::vector<CUgreenCtx> made(16);
  for (CUgreenCtx& green : made) OK(CU(cuGreenCtxCreate)(&green, descriptor, 0, CU_GREEN_CTX_DEFAULT_STREAM));
  CUgreenCtx one_more = nullptr;
  CHECK(CU(cuGreenCtxCreate)(&one_more, descriptor, 0, CU_GREEN_CTX_DEFAULT_STREAM) == CUDA_ERROR_OUT_OF_MEMORY);
  for (int turn = 0; turn < 40; ++turn) {
    OK(CU(cuGreenCtxDestroy)(made.back()));
    OK(CU(cuGreenCtxCreate)(&made.back(), descriptor, 0, CU_GREEN_CTX_DEFAULT_STREAM));
  }
  for (const CUgreenCtx green : made) OK(CU(cuGreenCtxDestroy)(green));
}
#endif
