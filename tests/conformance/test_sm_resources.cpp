// SPDX-License-Identifier: Apache-2.0
// Multiprocessors as a resource that is split into shares.
#include <cstring>

#include "green_context.hpp"

using namespace mpsshim::test;

#if CUDA_VERSION >= 13000
TEST_CASE("the multiprocessors of a device as a resource", "[forwarded]") {
  const DeviceContext context;
  const CUdevResource whole = device_resource();
  CHECK(whole.type == CU_DEV_RESOURCE_TYPE_SM);
  CHECK(whole.sm.smCount == multiprocessors());
  CHECK(whole.sm.minSmPartitionSize >= 2);
  CHECK(whole.sm.smCoscheduledAlignment >= 2);
  CUdevResource of_context{};
  OK(CU(cuCtxGetDevResource)(context.handle(), &of_context, CU_DEV_RESOURCE_TYPE_SM));
  CHECK(of_context.sm.smCount == whole.sm.smCount);
  CUdevResource other{};
  CHECK(CU(cuDeviceGetDevResource)(0, nullptr, CU_DEV_RESOURCE_TYPE_SM) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuDeviceGetDevResource)(0, &other, CU_DEV_RESOURCE_TYPE_INVALID) == CUDA_ERROR_INVALID_RESOURCE_TYPE);
  CHECK(CU(cuDeviceGetDevResource)(4711, &other, CU_DEV_RESOURCE_TYPE_SM) == CUDA_ERROR_INVALID_DEVICE);
  CHECK(CU(cuCtxGetDevResource)(context.handle(), nullptr, CU_DEV_RESOURCE_TYPE_SM) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("multiprocessors are split into equal groups and a rest", "[forwarded]") {
  const DeviceContext context;
  const CUdevResource whole = device_resource();
  const unsigned smallest = whole.sm.minSmPartitionSize;
  for (const unsigned flags : {0u, kFine}) {
    for (const unsigned wanted : {0u, 1u, smallest, smallest + 1}) {
      INFO("flags " << flags << ", " << wanted << " of " << whole.sm.smCount);
      unsigned most = 4711;
      OK(CU(cuDevSmResourceSplitByCount)(nullptr, &most, &whole, nullptr, flags, wanted));
      REQUIRE(most >= 1);
      const Split made = split(whole, most + 1, flags, wanted);
      CHECK(made.groups.size() == most);
      const unsigned size = made.groups.at(0).sm.smCount;
      CHECK(size >= wanted);
      CHECK(size % 2 == 0);
      if (flags == 0) CHECK(size % whole.sm.smCoscheduledAlignment == 0);
      for (const CUdevResource& group : made.groups) {
        CHECK(group.type == CU_DEV_RESOURCE_TYPE_SM);
        CHECK(group.sm.smCount == size);
      }
      CHECK(made.remaining.sm.smCount == whole.sm.smCount - most * size);
      CHECK(made.remaining.type == (made.remaining.sm.smCount != 0 ? CU_DEV_RESOURCE_TYPE_SM : CU_DEV_RESOURCE_TYPE_INVALID));
      const Split one = split(whole, 1, flags, wanted);
      CHECK(one.groups.at(0).sm.smCount == size);
      CHECK(one.remaining.sm.smCount == whole.sm.smCount - size);
    }
  }
  unsigned fine = 0;
  unsigned coarse = 0;
  OK(CU(cuDevSmResourceSplitByCount)(nullptr, &fine, &whole, nullptr, kFine, 1));
  OK(CU(cuDevSmResourceSplitByCount)(nullptr, &coarse, &whole, nullptr, 0, 1));
  CHECK(fine >= coarse);
}

TEST_CASE("resources and descriptors at fault", "[forwarded]") {
  const DeviceContext context;
  const CUdevResource whole = device_resource();
  const Split parts = split(whole, 2, kFine, 2);
  REQUIRE(parts.groups.size() == 2);
  const Split others = split(whole, 2, kFine, 2);
  CUdevResource out[2] = {};
  unsigned count = 1;
  CHECK(CU(cuDevSmResourceSplitByCount)(out, nullptr, &whole, nullptr, 0, 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuDevSmResourceSplitByCount)(out, &count, nullptr, nullptr, 0, 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuDevSmResourceSplitByCount)(out, &count, &whole, nullptr, 0, whole.sm.smCount + 1) == CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
  CHECK(CU(cuDevSmResourceSplitByCount)(out, &count, &whole, nullptr, 1u << 20, 1) == CUDA_SUCCESS);  // no flag of its own
  const CUdevResource nothing{};
  CHECK(CU(cuDevSmResourceSplitByCount)(out, &count, &nothing, nullptr, 0, 1) == CUDA_ERROR_INVALID_RESOURCE_TYPE);
  CHECK(CU(cuDevSmResourceSplitByCount)(out, &count, &parts.groups[0], nullptr, kFine, 2) == CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);

  CUdevResourceDesc made = nullptr;
  CUdevResource one = parts.groups[0];
  CHECK(CU(cuDevResourceGenerateDesc)(nullptr, &one, 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuDevResourceGenerateDesc)(&made, nullptr, 1) == CUDA_ERROR_INVALID_VALUE);
  // NVIDIA's driver reads the first of none, and takes parts of different splits, and no descriptor.
  const bool is_checked = driver_kind() != DriverKind::real;
  if (is_checked) CHECK(CU(cuDevResourceGenerateDesc)(&made, &one, 0) == CUDA_ERROR_INVALID_VALUE);
  CUdevResource none{};
  CHECK(CU(cuDevResourceGenerateDesc)(&made, &none, 1) == CUDA_ERROR_INVALID_RESOURCE_TYPE);
  CUdevResource both[] = {parts.groups[0], parts.groups[1]};
  CHECK(CU(cuDevResourceGenerateDesc)(&made, both, 2) == CUDA_SUCCESS);
  CUdevResource mixed[] = {parts.groups[0], others.groups[1]};
  if (is_checked) CHECK(CU(cuDevResourceGenerateDesc)(&made, mixed, 2) == CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);

  CUgreenCtx green = nullptr;
  const CUdevResourceDesc good = description({one});
  CHECK(CU(cuGreenCtxCreate)(nullptr, good, 0, CU_GREEN_CTX_DEFAULT_STREAM) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuGreenCtxCreate)(&green, good, 0, 0) == CUDA_ERROR_INVALID_VALUE);
  if (is_checked) CHECK(CU(cuGreenCtxCreate)(&green, nullptr, 0, CU_GREEN_CTX_DEFAULT_STREAM) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuGreenCtxCreate)(&green, good, 4711, CU_GREEN_CTX_DEFAULT_STREAM) == CUDA_ERROR_INVALID_DEVICE);
}

TEST_CASE("resources that no call has filled are refused", "[forwarded]") {
  if (driver_kind() == DriverKind::real) MPSSHIM_SKIP("the real driver may believe what it finds");
  const DeviceContext context;
  CUdevResource forged = device_resource();
  std::memset(forged._internal_padding, 0x5a, sizeof forged._internal_padding);
  CUdevResourceDesc made = nullptr;
  CHECK(CU(cuDevResourceGenerateDesc)(&made, &forged, 1) == CUDA_ERROR_INVALID_RESOURCE_TYPE);
  unsigned count = 1;
  CUdevResource out{};
  CHECK(CU(cuDevSmResourceSplitByCount)(&out, &count, &forged, nullptr, 0, 1) == CUDA_ERROR_INVALID_RESOURCE_TYPE);
  CUgreenCtx green = nullptr;
  int nobody = 0;
  CHECK(CU(cuGreenCtxCreate)(&green, reinterpret_cast<CUdevResourceDesc>(&nobody), 0, CU_GREEN_CTX_DEFAULT_STREAM) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("a share of a green context's multiprocessors", "[forwarded]") {
  const DeviceContext context;
  const CUdevResource whole = device_resource();
  const Green outer(description({split(whole, 1, 0, whole.sm.minSmPartitionSize).groups.at(0)}));
  CUdevResource has{};
  OK(CU(cuGreenCtxGetDevResource)(outer.handle(), &has, CU_DEV_RESOURCE_TYPE_SM));
  const Split halves = split(has, 2, kFine, has.sm.smCount / 2);
  REQUIRE(!halves.groups.empty());
  const Green inner(description({halves.groups.at(0)}));
  CUdevResource inner_has{};
  OK(CU(cuGreenCtxGetDevResource)(inner.handle(), &inner_has, CU_DEV_RESOURCE_TYPE_SM));
  CHECK(inner_has.sm.smCount == halves.groups.at(0).sm.smCount);
  CHECK(inner_has.sm.smCount <= has.sm.smCount);
}
#endif
