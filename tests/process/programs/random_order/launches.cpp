// SPDX-License-Identifier: Apache-2.0
// The random launches of a World.
#include <algorithm>
#include <cstddef>

#include "tests/process/programs/driver.hpp"
#include "tests/process/programs/random_order/world.hpp"

namespace mpsshim::test {

namespace {

constexpr std::uint32_t kMostKernelWords = 1024;
constexpr std::uint32_t kMostSlowWords = 32;
constexpr std::uint32_t kMostRounds = 20'000;  // some 100 us on a GPU

}  // namespace

void World::launch(std::size_t lane) {
  const std::size_t module = below(kOrderModules);
  const OrderKernels& kernels = kernels_[module];
  const std::uint32_t kind = below(100);
  if (kind < 40)
    launch_affine(lane, kernels);
  else if (kind < 44)
    launch_slow(lane, kernels);
  else if (kind < 60)
    launch_combine(lane, kernels);
  else if (kind < 72)
    launch_rotate(lane, kernels);
  else if (kind < 90)
    launch_blob(lane, kernels);
  else
    launch_bump(lane, module);
}

// The ways in which a program can launch, most often the plain one. A launch with attributes, or a cooperative one, cannot be part of a run.
void World::launch_function(CUfunction function, std::size_t lane, std::uint32_t threads, std::uint32_t block, std::uint32_t shared_bytes,
                            void** arguments) {
  const std::uint32_t grid = (threads + block - 1) / block;
  const CUstream stream = lanes_[lane].stream;
  const std::uint32_t way = below(100);
  if (way < 94) {
    CU(cuLaunchKernel(function, grid, 1, 1, block, 1, 1, shared_bytes, stream, arguments, nullptr));
  } else if (way < 96 && grid <= 8) {
    CU(cuLaunchCooperativeKernel(function, grid, 1, 1, block, 1, 1, shared_bytes, stream, arguments));
  } else {
    CUlaunchAttribute priority{};
    priority.id = CU_LAUNCH_ATTRIBUTE_PRIORITY;
    priority.value.priority = 0;
    CUlaunchConfig config{};
    config.gridDimX = grid;
    config.blockDimX = block;
    config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1;
    config.sharedMemBytes = shared_bytes;
    config.hStream = stream;
    config.attrs = &priority;
    config.numAttrs = way < 98 ? 1 : 0;
    CU(cuLaunchKernelEx(&config, function, arguments, nullptr));
  }
}

void World::launch_affine(std::size_t lane, const OrderKernels& kernels) {
  const Part part = part_for(lane, kMostKernelWords);
  std::uint32_t a = static_cast<std::uint32_t>(random_()) | 1u, b = static_cast<std::uint32_t>(random_());  // odd: nothing is forgotten
  begin_work(lane, {}, {part.region}, "affine");
  CUdeviceptr data = part.address();
  std::uint32_t count = part.count;
  const std::uint32_t block = 32u << below(4);
  if (chance(10)) {  // the arguments as one buffer
    struct {
      CUdeviceptr data;
      std::uint32_t count, a, b;
    } packed{data, count, a, b};
    std::size_t size = offsetof(decltype(packed), b) + sizeof packed.b;
    void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
    CU(cuLaunchKernel(kernels.affine, (count + block - 1) / block, 1, 1, block, 1, 1, 0, lanes_[lane].stream, nullptr, extra));
  } else {
    void* arguments[] = {&data, &count, &a, &b};
    launch_function(kernels.affine, lane, count, block, 0, arguments);
  }
  model_affine(part.words(), a, b, kernels.constant);
}

void World::launch_slow(std::size_t lane, const OrderKernels& kernels) {
  const Part part = part_for(lane, kMostSlowWords);
  std::uint32_t a = static_cast<std::uint32_t>(random_()) | 1u, b = static_cast<std::uint32_t>(random_()), rounds = below(kMostRounds);
  begin_work(lane, {}, {part.region}, "slow");
  CUdeviceptr data = part.address();
  std::uint32_t count = part.count;
  void* arguments[] = {&data, &count, &a, &b, &rounds};
  launch_function(kernels.slow, lane, count, 32, 0, arguments);
  model_slow(part.words(), a, b, rounds, kernels.constant);
}

void World::launch_combine(std::size_t lane, const OrderKernels& kernels) {
  Part part = part_for(lane, kMostKernelWords);
  Part source = part_for(lane, kMostKernelWords);
  if (source.region == part.region) return launch_affine(lane, kernels);
  part.count = source.count = std::min(part.count, source.count);
  std::uint32_t a = static_cast<std::uint32_t>(random_()) | 1u;
  begin_work(lane, {source.region}, {part.region}, "combine");
  CUdeviceptr data = part.address(), from = source.address();
  std::uint32_t count = part.count;
  void* arguments[] = {&data, &from, &count, &a};
  launch_function(kernels.combine, lane, count, 64, 0, arguments);
  model_combine(part.words(), source.words(), a, kernels.constant);
}

void World::launch_rotate(std::size_t lane, const OrderKernels& kernels) {
  const Part part = part_for(lane, kMaxRotated);
  std::uint32_t a = static_cast<std::uint32_t>(random_()) | 1u;
  begin_work(lane, {}, {part.region}, "rotate");
  CUdeviceptr data = part.address();
  std::uint32_t count = part.count;
  void* arguments[] = {&data, &count, &a};
  const std::uint32_t block = (count + 31) / 32 * 32;
  launch_function(kernels.rotate, lane, block, block, block * sizeof(std::uint32_t), arguments);
  model_rotate(part.words(), a, kernels.constant);
}

void World::launch_blob(std::size_t lane, const OrderKernels& kernels) {
  const Part part = part_for(lane, kMostSlowWords);
  const std::size_t which = below(kBlobWords.size());
  Words32 blob = random_words(kBlobWords[which]);
  begin_work(lane, {}, {part.region}, "blob_" + std::to_string(kBlobWords[which]));
  CUdeviceptr data = part.address();
  std::uint32_t count = part.count;
  void* arguments[] = {&data, &count, blob.data()};
  launch_function(kernels.blob[which], lane, count, 32, 0, arguments);
  model_blob(part.words(), blob, kernels.constant);
}

void World::launch_bump(std::size_t lane, std::size_t module) {
  const OrderKernels& kernels = kernels_[module];
  Region& state = *regions_[module];
  begin_work(lane, {}, {&state}, "bump");
  launch_function(kernels.bump, lane, 1, 1, 0, nullptr);
  model_bump(state.expected[0], kernels.constant);
}

}  // namespace mpsshim::test
