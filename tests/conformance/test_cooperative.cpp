// SPDX-License-Identifier: Apache-2.0
// Cooperative grids beside other work: each block of one waits for all others, so a grid must find the room for all of them in the end,
// whatever else is on the device.
#include <vector>

#include "loaded_image.hpp"
#include "shared_word.hpp"

using namespace mpsshim::test;

namespace {

// As many blocks of 32 threads as the device holds at once.
unsigned most_blocks(CUfunction function) {
  int per_multiprocessor = 0;
  int multiprocessors = 0;
  OK(CU(cuOccupancyMaxActiveBlocksPerMultiprocessor)(&per_multiprocessor, function, 32, 0));
  OK(CU(cuDeviceGetAttribute)(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
  return static_cast<unsigned>(per_multiprocessor * multiprocessors);
}

struct Grid {
  CUfunction function;
  unsigned blocks;
  CUstream stream = new_stream();
  DeviceArray<unsigned> count{1};
  DeviceArray<unsigned> seen{blocks};

  CUresult launch() {
    CUdeviceptr count_address = count.address();
    CUdeviceptr seen_address = seen.address();
    void* arguments[] = {&count_address, &seen_address};
    return CU(cuLaunchCooperativeKernel)(function, blocks, 1, 1, 32, 1, 1, 0, stream, arguments);
  }
  // The last launch of several saw all threads of all of them.
  bool is_complete(unsigned launches) const {
    for (unsigned block = 0; block < blocks; ++block) {
      if (seen[block] != launches * blocks * 32) return false;
    }
    return true;
  }
};

}  // namespace

TEST_CASE("grids of two streams that each fill the device come to their end", "[forwarded]") {
  const DeviceContext context;
  const LoadedImage image;
  const CUfunction function = image.function("grid_barrier");
  constexpr unsigned kLaunches = 10;
  Grid first{function, most_blocks(function)};
  Grid second{function, most_blocks(function)};
  for (unsigned i = 0; i < kLaunches; ++i) {
    OK(first.launch());
    OK(second.launch());
  }
  OK(CU(cuCtxSynchronize)());
  CHECK(first.is_complete(kLaunches));
  CHECK(second.is_complete(kLaunches));
  for (const Grid* grid : {&first, &second}) OK(CU(cuStreamDestroy)(grid->stream));
}

TEST_CASE("a cooperative launch on several devices has one of them", "[forwarded]") {
  const DeviceContext context;
  const LoadedImage image;
  Grid grid{image.function("grid_barrier"), 4};
  CUdeviceptr count_address = grid.count.address();
  CUdeviceptr seen_address = grid.seen.address();
  void* arguments[] = {&count_address, &seen_address};
  CUDA_LAUNCH_PARAMS only{grid.function, grid.blocks, 1, 1, 32, 1, 1, 0, grid.stream, arguments};
  OK(CU(cuLaunchCooperativeKernelMultiDevice)(&only, 1, 0));
  OK(CU(cuStreamSynchronize)(grid.stream));
  CHECK(grid.is_complete(1));
  CHECK(CU(cuLaunchCooperativeKernelMultiDevice)(&only, 0, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(CU(cuLaunchCooperativeKernelMultiDevice)(nullptr, 1, 0) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuStreamDestroy)(grid.stream));
}

TEST_CASE("a cooperative grid waits for the room that another kernel has", "[forwarded]") {
  const DeviceContext context;
  const LoadedImage image;
  const CUfunction function = image.function("grid_barrier");
  SharedWord gate;
  const CUstream other = new_stream();
  Grid grid{function, most_blocks(function)};
  OK(launch(image.function("spin"), other, 1, 1, gate.address()));
  gate.wait_for_spinning();
  OK(grid.launch());
  *gate = 1;
  OK(CU(cuStreamSynchronize)(grid.stream));
  CHECK(grid.is_complete(1));
  OK(CU(cuStreamSynchronize)(other));
  for (const CUstream stream : {other, grid.stream}) OK(CU(cuStreamDestroy)(stream));
}
