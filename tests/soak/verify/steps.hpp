// SPDX-License-Identifier: Apache-2.0
// Steps of a chain: kernels that make an array of words out of another one, and what they must make of it. All need lengths that are multiples
// of kTile, and leave their source as it is.
#pragma once

#include <cuda.h>

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "mix.hpp"
#include "random.hpp"

namespace mpsshim::soak {

enum class StepKind : std::uint8_t {
  brief,     // few arguments
  few,       // a structure of 104 bytes; compilers keep it in local memory
  many,      // of more than 1 KiB
  more,      // of 1.6 KiB
  much,      // of 3.2 KiB
  most,      // of nearly 4 KiB
  tile,      // static shared memory
  dynamic,   // dynamic shared memory
  local_64,  // local arrays of so many bytes
  local_512,
  local_4096,
  local_32768,
  warp,         // shuffles
  floats,       // sums of tiles in floating point
  sum,          // three operations: the sum of everything is cleared, made, used
  cooperative,  // a barrier of the grid
  dependent,    // begins early: programmatic stream serialization. These two need compute capability 9.0
  cluster,
};
constexpr std::size_t kStepKinds = 18;

struct Step {
  StepKind kind = StepKind::brief;
  unsigned stride = 1;
  Word salt = 0;
  unsigned words = 1;         // of dynamic shared memory; blocks of a cluster
  unsigned grid = 1;          // blocks, as the next a matter of the launch alone
  unsigned block = kTile;     // threads
  unsigned ticks = 0;         // that it takes its time for
  bool has_priority = false;  // as a launch attribute
  bool tells_early = false;   // its own dependents
};

[[nodiscard]] const char* name_of(StepKind kind);
[[nodiscard]] std::string describe(const Step& step);
// What the step makes of `in`; both are of the same length.
void apply(const Step& step, std::span<const Word> in, std::span<Word> out);

// Addresses of one chain on the device.
struct ChainMemory {
  CUdeviceptr from = 0;  // source and destination of the next step
  CUdeviceptr to = 0;
  CUdeviceptr scratch = 0;  // as long
  CUdeviceptr sum = 0;      // of a Sum
  unsigned count = 0;       // words
};

// kernelParams of a step from brief to most, which nodes of graphs may be as well. They are there as long as `use` runs.
void with_node_arguments(const Step& step, const ChainMemory& memory, const std::function<void(void**)>& use);

// The functions, and what the device allows. Of a process; used by all its threads.
class StepKernels {
 public:
  // With the context current. `folder` has the images. How much dynamic shared memory a launch may ask for is each process's own choice.
  StepKernels(CUdevice device, const std::string& folder, unsigned most_local_bytes, Random& random);

  [[nodiscard]] bool offers(StepKind kind) const { return functions_[static_cast<std::size_t>(kind)] != nullptr; }
  [[nodiscard]] CUfunction function(StepKind kind) const { return functions_[static_cast<std::size_t>(kind)]; }
  [[nodiscard]] CUfunction function(const char* name) const;  // of the first image
  [[nodiscard]] bool is_9_0() const { return module_90_ != nullptr; }

  // A step of this kind with everything else at random. `most_ticks`: it may take so long.
  [[nodiscard]] Step choose(StepKind kind, unsigned count, Random& random, unsigned most_ticks) const;
  // Returns the number of operations it took.
  unsigned launch(const Step& step, const ChainMemory& memory, CUstream stream) const;

 private:
  void launch_kernel(const Step& step, unsigned shared_bytes, CUstream stream, void** arguments) const;

  CUmodule module_ = nullptr;
  CUmodule module_90_ = nullptr;
  std::array<CUfunction, kStepKinds> functions_{};
  CUfunction add_all_ = nullptr;
  unsigned most_shared_bytes_ = 0;
};

}  // namespace mpsshim::soak
