// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/modules/persisting_cache.hpp"

#include <memory>
#include <vector>

#include "tests/support/catch.hpp"

namespace mpsshim::broker {
namespace {

constexpr int kMostBytes = 1000;
std::size_t limit = 0;
std::vector<std::size_t> told;
CUresult set_result = CUDA_SUCCESS;

CUresult CUDAAPI get_attribute(int* value, CUdevice_attribute attribute, CUdevice) {
  *value = attribute == CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE ? kMostBytes : 0;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI get_limit(std::size_t* value, CUlimit) {
  *value = limit;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI set_limit(CUlimit which, std::size_t value) {
  if (which != CU_LIMIT_PERSISTING_L2_CACHE_SIZE) return CUDA_ERROR_INVALID_VALUE;
  told.push_back(value);
  return set_result;
}

std::unique_ptr<Driver> fake_driver() {
  limit = 0;
  told.clear();
  set_result = CUDA_SUCCESS;
  DriverTable functions;
  functions.cuDeviceGetAttribute = get_attribute;
  functions.cuCtxGetLimit = get_limit;
  functions.cuCtxSetLimit = set_limit;
  return Driver::from_table(functions);
}

using Told = std::vector<std::size_t>;

}  // namespace

TEST_CASE("the largest wish is set aside, and less again when its session wishes less or ends") {
  const auto driver = fake_driver();
  PersistingCache cache(*driver, 0);
  CHECK(cache.apply() == CUDA_SUCCESS);
  CHECK(told.empty());
  cache.wish(1, 400);
  CHECK(cache.apply() == CUDA_SUCCESS);
  cache.wish(2, 300);
  CHECK(cache.apply() == CUDA_SUCCESS);
  CHECK(told == Told{400});
  cache.wish(2, 5000);
  CHECK(cache.apply() == CUDA_SUCCESS);
  CHECK(told == Told{400, kMostBytes});
  cache.wish(2, 100);
  CHECK(cache.apply() == CUDA_SUCCESS);
  CHECK(told == Told{400, kMostBytes, 400});
  cache.forget(1);
  CHECK(cache.apply() == CUDA_SUCCESS);
  cache.wish(2, 0);
  CHECK(cache.apply() == CUDA_SUCCESS);
  CHECK(told == Told{400, kMostBytes, 400, 100, 0});
}

TEST_CASE("what the context began with stays, and what the driver refused is told again") {
  const auto driver = fake_driver();
  limit = 200;
  PersistingCache cache(*driver, 0);
  cache.wish(1, 100);
  CHECK(cache.apply() == CUDA_SUCCESS);
  CHECK(told.empty());
  cache.wish(1, 300);
  set_result = CUDA_ERROR_UNKNOWN;
  CHECK(cache.apply() == CUDA_ERROR_UNKNOWN);
  set_result = CUDA_SUCCESS;
  CHECK(cache.apply() == CUDA_SUCCESS);
  CHECK(told == Told{300, 300});
  cache.forget(1);
  CHECK(cache.apply() == CUDA_SUCCESS);
  CHECK(told == Told{300, 300, 200});
}

}  // namespace mpsshim::broker
