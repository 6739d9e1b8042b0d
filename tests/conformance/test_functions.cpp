// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <vector>

#include "loaded_image.hpp"

using namespace mpsshim::test;

TEST_CASE("a function knows its module", "[forwarded]") {
  const DeviceContext context;
  const LoadedImage image;
  const CUfunction function = image.function("store");
  CUmodule module = nullptr;
  OK(CU(cuFuncGetModule)(&module, function));
  CHECK(module == image.handle());
  CHECK(CU(cuFuncGetModule)(nullptr, function) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("a function is loaded once it was asked to be", "[forwarded]") {
  const DeviceContext context;
  const LoadedImage image;
  const CUfunction function = image.function("store");
  OK(CU(cuFuncLoad)(function));
  CUfunctionLoadingState state = CU_FUNCTION_LOADING_STATE_UNLOADED;
  OK(CU(cuFuncIsLoaded)(&state, function));
  CHECK(state == CU_FUNCTION_LOADING_STATE_LOADED);
  CHECK(CU(cuFuncIsLoaded)(nullptr, function) == CUDA_ERROR_INVALID_VALUE);
  CUmoduleLoadingMode mode{};
  OK(CU(cuModuleGetLoadingMode)(&mode));
  CHECK((mode == CU_MODULE_EAGER_LOADING || mode == CU_MODULE_LAZY_LOADING));
}

TEST_CASE("a module counts and lists its functions", "[forwarded]") {
  const DeviceContext context;
  const LoadedImage image;
  unsigned count = 0;
  OK(CU(cuModuleGetFunctionCount)(&count, image.handle()));
  REQUIRE(count >= 10);
  std::vector<CUfunction> functions(count);
  OK(CU(cuModuleEnumerateFunctions)(functions.data(), count, image.handle()));
  std::vector<std::string> names;
  for (const CUfunction function : functions) {
    const char* name = nullptr;
    OK(CU(cuFuncGetName)(&name, function));
    names.emplace_back(name);
  }
  for (const char* wanted : {"store", "append", "spin"}) CHECK(std::count(names.begin(), names.end(), wanted) == 1);
  CHECK(CU(cuModuleEnumerateFunctions)(nullptr, count, image.handle()) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("a fat binary is loaded by the call named after it", "[forwarded]") {
  const DeviceContext context;
  const std::string image = read_image("kernels.fatbin");
  CUmodule module = nullptr;
  OK(CU(cuModuleLoadFatBinary)(&module, image.data()));
  CUfunction function = nullptr;
  OK(CU(cuModuleGetFunction)(&function, module, "store"));
  const DeviceArray<unsigned> word(1);
  OK(launch(function, nullptr, 1, 1, word.address(), 7u));
  CHECK(word[0] == 7);
  OK(CU(cuModuleUnload)(module));
  CHECK(CU(cuModuleLoadFatBinary)(nullptr, image.data()) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("the variants of occupancy with flags answer as those without", "[forwarded]") {
  const DeviceContext context;
  const LoadedImage image;
  const CUfunction function = image.function("vector_add");
  int plain = 0, with_flags = 0;
  OK(CU(cuOccupancyMaxActiveBlocksPerMultiprocessor)(&plain, function, 256, 0));
  OK(CU(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags)(&with_flags, function, 256, 0, CU_OCCUPANCY_DEFAULT));
  CHECK(plain == with_flags);
  CHECK(plain >= 1);
  CHECK(CU(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags)(&with_flags, function, 256, 0, 8) == CUDA_ERROR_INVALID_VALUE);
  int grid = 0, block = 0, other_grid = 0, other_block = 0;
  OK(CU(cuOccupancyMaxPotentialBlockSize)(&grid, &block, function, nullptr, 0, 0));
  OK(CU(cuOccupancyMaxPotentialBlockSizeWithFlags)(&other_grid, &other_block, function, nullptr, 0, 0, CU_OCCUPANCY_DEFAULT));
  CHECK(grid == other_grid);
  CHECK(block == other_block);
}

TEST_CASE("shared memory that is left for a block", "[forwarded]") {
  const DeviceContext context;
  const LoadedImage image;
  const CUfunction function = image.function("vector_add");
  size_t alone = 0, shared = 0;
  OK(CU(cuOccupancyAvailableDynamicSMemPerBlock)(&alone, function, 1, 128));
  OK(CU(cuOccupancyAvailableDynamicSMemPerBlock)(&shared, function, 4, 128));
  CHECK(alone >= 48 << 10);
  CHECK(shared <= alone);
  if (driver_kind() != DriverKind::real) {  // which writes to nowhere
    CHECK(CU(cuOccupancyAvailableDynamicSMemPerBlock)(nullptr, function, 1, 128) == CUDA_ERROR_INVALID_VALUE);
  }
}

TEST_CASE("clusters that fit", "[forwarded]") {
  if (is_cpu_driver()) MPSSHIM_SKIP("asked of the CPU driver by the broker only");
  const DeviceContext context;
  int capability = 0;
  OK(CU(cuDeviceGetAttribute)(&capability, CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, 0));
  if (capability == 0 || is_cpu_device()) MPSSHIM_SKIP("the device has no clusters");
  const LoadedImage image;
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  attribute.value.clusterDim = {2, 1, 1};
  CUlaunchConfig config{};
  config.gridDimX = 8;
  config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1;
  config.blockDimX = 128;
  config.attrs = &attribute;
  config.numAttrs = 1;
  int clusters = 0, size = 0;
  OK(CU(cuOccupancyMaxActiveClusters)(&clusters, image.function("vector_add"), &config));
  CHECK(clusters >= 1);
  config.numAttrs = 0;
  OK(CU(cuOccupancyMaxPotentialClusterSize)(&size, image.function("vector_add"), &config));
  CHECK(size == 8);
}
