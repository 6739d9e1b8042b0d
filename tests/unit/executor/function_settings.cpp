// SPDX-License-Identifier: Apache-2.0
// What several clients set on a function that they share.
#include "broker/executor/modules/function_settings.hpp"

#include <memory>

#include "tests/support/catch.hpp"

using namespace mpsshim::broker;

namespace {

// The driver's function.
int limit = 0;
int carve_out = 0;
int large_clusters = 0;

CUresult get_attribute(int* value, CUfunction_attribute, CUfunction) {
  *value = limit;
  return CUDA_SUCCESS;
}

CUresult set_attribute(CUfunction, CUfunction_attribute attribute, int value) {
  if (value < -1 || value > 200'000) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: limit = value; return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: carve_out = value; return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED: large_clusters = value; return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

std::unique_ptr<Driver> fake_driver() {
  mpsshim::DriverTable table{};
  table.cuFuncGetAttribute = get_attribute;
  table.cuFuncSetAttribute = set_attribute;
  return Driver::from_table(table);
}

struct Fixture {
  std::unique_ptr<Driver> owned = fake_driver();
  const Driver& driver = *owned;
  FunctionSettings settings;

  Fixture() {
    limit = 49'152;
    carve_out = kDefaultCarveOut;
    large_clusters = 0;
  }
  CUresult set(CUfunction_attribute attribute, int value) { return settings.set(driver, nullptr, attribute, value); }
};

}  // namespace

TEST_CASE("function settings: the limit of shared memory grows to the largest") {
  Fixture f;
  for (const int bytes : {60'000, 50'000, 70'000, 0}) CHECK(f.set(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, bytes) == CUDA_SUCCESS);
  CHECK(limit == 70'000);
  CHECK(f.set(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 300'000) == CUDA_ERROR_INVALID_VALUE);
  CHECK(f.set(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, -5) == CUDA_ERROR_INVALID_VALUE);
  CHECK(limit == 70'000);
}

TEST_CASE("function settings: large clusters stay allowed once somebody has wanted them") {
  Fixture f;
  CHECK(f.set(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1) == CUDA_SUCCESS);
  CHECK(f.set(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 0) == CUDA_SUCCESS);
  CHECK(large_clusters == 1);
  large_clusters = 7;
  CHECK(f.set(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1) == CUDA_SUCCESS);
  CHECK(large_clusters == 7);  // the driver is not asked again
}

TEST_CASE("function settings: the driver answers under the asker's carve-out, and keeps the last one set") {
  Fixture f;
  CHECK(f.set(CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 50) == CUDA_SUCCESS);
  int seen = 0;
  const auto ask = [&] {
    seen = carve_out;
    return CUDA_ERROR_NOT_FOUND;
  };
  CHECK(f.settings.with_carve_out(f.driver, nullptr, kDefaultCarveOut, ask) == CUDA_ERROR_NOT_FOUND);
  CHECK(seen == kDefaultCarveOut);
  CHECK(carve_out == 50);
  CHECK(f.settings.with_carve_out(f.driver, nullptr, -2, ask) == CUDA_ERROR_INVALID_VALUE);
  CHECK(carve_out == 50);
}

// Its library sends none; the driver's are the executor's own.
TEST_CASE("function settings: no client sets clusters in the driver") {
  Fixture f;
  for (const CUfunction_attribute attribute : {CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT,
                                               CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH, CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE}) {
    CHECK(f.set(attribute, 2) == CUDA_ERROR_NOT_SUPPORTED);  // of the driver here: CUDA_ERROR_INVALID_VALUE
  }
}
