// SPDX-License-Identifier: Apache-2.0
// What the test clients share: ordinary programs of the driver API that know nothing of mpsshim. Every call is checked; what goes wrong is
// thrown as text that names the call and the error, and becomes an answer or the program's last line.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace mpsshim::test {

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// "700 CUDA_ERROR_ILLEGAL_ADDRESS"; "0 CUDA_SUCCESS".
[[nodiscard]] std::string describe(CUresult result);
void require_success(CUresult result, const char* call);
void require_result(CUresult result, CUresult wanted, const char* call);
void require(bool holds, const std::string& what);

#define CU(call) ::mpsshim::test::require_success((call), #call)
#define CU_GIVES(wanted, call) ::mpsshim::test::require_result((call), (wanted), #call)

// The primary context of device 0, current on this thread, and the kernels below.
struct Device {
  CUcontext context = nullptr;
  CUmodule module = nullptr;
  CUfunction add = nullptr;         // (u64 data, u32 count, u32 value): data[i] += value, one thread an element
  CUfunction store = nullptr;       // (u64 address): one word is stored there
  CUfunction wait_flag = nullptr;   // (u64 flag): runs until the word there is not 0
  CUfunction fill_index = nullptr;  // (u64 data, u32 count, u32 factor): data[i] = i * factor, one thread for all of it: runs long

  Device();
  // data[0..count) += value, 128 threads a block.
  [[nodiscard]] CUresult launch_add(CUdeviceptr data, unsigned count, unsigned value, CUstream stream = nullptr) const;
  [[nodiscard]] CUresult launch_fill_index(CUdeviceptr data, unsigned count, unsigned factor, CUstream stream) const;
  [[nodiscard]] CUresult launch_store(CUdeviceptr address) const;
  [[nodiscard]] CUresult launch_wait_flag(CUdeviceptr flag) const;
};

extern const char kPlainPtx[];    // the kernels above
extern const char kManagedPtx[];  // the same with a managed counter
extern const char kGlobalPtx[];   // .global u32 counter = 5; kernel count(u64 out): *out = ++counter

// Device words and what they are to be. Values differ from word to word, so that nothing passes by chance.
struct Words {
  enum class Origin : std::uint8_t {
    allocated,
    pooled,  // stream-ordered
    mapped,  // by the virtual memory functions, in pieces of 2 MiB
    managed,
    of_graph,  // allocated by a graph's launch and left
  };
  CUdeviceptr address = 0;
  std::vector<unsigned> expected;

  Words(std::size_t count, unsigned seed, Origin origin = Origin::allocated);  // allocates and fills
  [[nodiscard]] unsigned count() const { return static_cast<unsigned>(expected.size()); }
  void add(unsigned value) { add(value, 0, expected.size()); }     // to what is expected
  void add(unsigned value, std::size_t first, std::size_t words);  // to a part of it
  void check() const;                                              // throws with the first wrong word
};

void check_words(const char* what, const unsigned* words, const std::vector<unsigned>& expected);

}  // namespace mpsshim::test
