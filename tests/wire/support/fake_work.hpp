// SPDX-License-Identifier: Apache-2.0
// What the operations of a fake stream do, and how they are recorded: kernels' parameters, and words that are written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/wire/support/fake_driver.hpp"

namespace mpsshim::test {

inline constexpr char kWriter[] = "mpsshim_write_words";
inline constexpr char kClusterWidth[] = "mpsshim_cluster_width";

// The grid may be launched in such clusters.
[[nodiscard]] inline bool divides(const FakeCluster& cluster, unsigned grid_x) { return cluster[0] == 0 || grid_x % cluster[0] == 0; }
[[nodiscard]] std::vector<std::byte> gather(const FakeFunction& function, void* const* parameters);
[[nodiscard]] CUstreamBatchMemOpParams write_operation(CUdeviceptr address, std::uint32_t value);
// What the executor's own writing kernel does with these parameters (broker/executor/base/word_writes.hpp).
[[nodiscard]] std::vector<CUstreamBatchMemOpParams> writes_of_kernel(const std::vector<std::byte>& parameters);
// What the executor's own kernel does that looks at its cluster; of any other, nothing.
void run_kernel(const FakeCall& call);
void write_value(const CUstreamBatchMemOpParams& operation);
[[nodiscard]] FakeCall write_call(const CUstreamBatchMemOpParams& operation);

// The functions of memory; of streams, events and green contexts; of modules, launches, copies, fills and written words.
struct FakeMemory {
  static void fill(DriverTable& table);
};
struct FakeStreams {
  static void fill(DriverTable& table);
};
struct FakeLaunches {
  static void fill(DriverTable& table);
};

// The functions that make and launch graphs.
struct FakeGraphs {
  static void fill(DriverTable& table);
  static CUresult CUDAAPI launch(CUgraphExec exec, CUstream stream);
};

// The functions that make and end arrays and textures.
struct FakeArrays {
  static void fill(DriverTable& table);
};

}  // namespace mpsshim::test
