// SPDX-License-Identifier: Apache-2.0
// two_devices NAME: one subject of a program that works on the first two devices that it sees, results checked. Nothing here is of mpsshim: natively
// each is right on a machine with two GPUs. Throws Failure where something is not as CUDA's manual says.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "tests/process/programs/driver.hpp"

namespace mpsshim::test {

inline constexpr unsigned kWords = 100'000;
inline constexpr std::size_t kBytes = kWords * sizeof(unsigned);

struct Side {
  CUdevice device = 0;
  CUcontext context = nullptr;
  CUmodule module = nullptr;
  CUfunction add = nullptr;
  CUfunction fill_index = nullptr;
  CUstream stream = nullptr;
  CUdeviceptr data = 0;

  void make(int ordinal) {
    CU(cuDeviceGet(&device, ordinal));
    CU(cuDevicePrimaryCtxRetain(&context, device));
    CU(cuCtxSetCurrent(context));
    CU(cuModuleLoadData(&module, kPlainPtx));
    CU(cuModuleGetFunction(&add, module, "add"));
    CU(cuModuleGetFunction(&fill_index, module, "fill_index"));
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU(cuMemAlloc(&data, kBytes));
    CU(cuMemsetD32(data, 0, kWords));
    CU(cuCtxSynchronize());
  }
  void use() const { CU(cuCtxSetCurrent(context)); }
  void launch_add(CUdeviceptr words, unsigned value) const { launch_add(add, words, value); }
  void launch_add(CUfunction function, CUdeviceptr words, unsigned value) const {
    unsigned count = kWords;
    void* arguments[] = {&words, &count, &value};
    CU(cuLaunchKernel(function, (kWords + 127) / 128, 1, 1, 128, 1, 1, 0, stream, arguments, nullptr));
  }
  // One thread adds 1 to a word of `data`.
  void launch_small(unsigned word = 0) const {
    CUdeviceptr words = data + word * sizeof(unsigned);
    unsigned count = 1, value = 1;
    void* arguments[] = {&words, &count, &value};
    CU(cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr));
  }
  // Runs long: one thread writes all.
  void launch_fill(CUdeviceptr words, unsigned factor) const {
    unsigned count = kWords;
    void* arguments[] = {&words, &count, &factor};
    CU(cuLaunchKernel(fill_index, 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr));
  }
  [[nodiscard]] std::vector<unsigned> read(CUdeviceptr words) const {
    std::vector<unsigned> found(kWords);
    CU(cuMemcpyDtoH(found.data(), words, kBytes));
    return found;
  }
};

using Sides = std::array<Side, 2>;

// Pinned, read by streams of both.
struct PinnedWord {
  unsigned* words = nullptr;
  PinnedWord() {
    CU(cuMemHostAlloc(reinterpret_cast<void**>(&words), 64, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
    *words = 0;
  }
  ~PinnedWord() { (void)cuMemFreeHost(words); }
  PinnedWord(const PinnedWord&) = delete;
  [[nodiscard]] CUdeviceptr address() const { return reinterpret_cast<CUdeviceptr>(words); }
  void set(unsigned value) const { __atomic_store_n(words, value, __ATOMIC_RELEASE); }
};

inline void require_all(const std::vector<unsigned>& words, unsigned value, const char* what) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] != value)
      throw Failure(std::string(what) + ": word " + std::to_string(i) + " is " + std::to_string(words[i]) + ", not " + std::to_string(value));
  }
}
inline void require_index(const std::vector<unsigned>& words, unsigned factor, const char* what) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] != i * factor) throw Failure(std::string(what) + ": word " + std::to_string(i) + " is " + std::to_string(words[i]));
  }
}

inline bool are_peers(const Sides& sides) {
  int forth = 0, back = 0;
  CU(cuDeviceCanAccessPeer(&forth, sides[0].device, sides[1].device));
  CU(cuDeviceCanAccessPeer(&back, sides[1].device, sides[0].device));
  require(forth == back, "devices that reach each other in one direction alone");
  return forth != 0;
}

// `side`'s kernel writes memory, wherever it lies; its owner reads it.
inline void require_written_by(const Side& side, const Side& owner, CUdeviceptr memory, unsigned factor, const char* what) {
  side.use();
  side.launch_fill(memory, factor);
  CU(cuStreamSynchronize(side.stream));
  owner.use();
  require_index(owner.read(memory), factor, what);
}

// two_devices_order.cpp
void events(Sides& sides);
void copies(Sides& sides);
void null_streams(Sides& sides);
void threads(Sides& sides);
void forks(Sides& sides);

// two_devices_waits.cpp
void ping_pong(Sides& sides);
void waits(Sides& sides);
void shared_events(Sides& sides);

// two_devices_peers.cpp
void peer_answers(Sides& sides);
void peers(Sides& sides);
void peer_threads(Sides& sides);
void peer_fault(Sides& sides);
void peer_copies(Sides& sides);

// two_devices_mappings.cpp
// 2 MiB or so on the second device, mapped for both.
CUdeviceptr map_for_both(Sides& sides);
void peer_mappings(Sides& sides);
void peer_aliases(Sides& sides);
void peer_pools(Sides& sides);

// two_devices_meet.cpp
void meetings(Sides& sides);
void churn(Sides& sides);

// two_devices_arrays.cpp
void peer_arrays(Sides& sides);
void apart_boxes(Sides& sides);

// two_devices_managed.cpp
void managed_in_turns(Sides& sides);
void managed_threads(Sides& sides);
void managed_given_up(Sides& sides);
void managed_fault(Sides& sides);

// two_devices_host.cpp
void host_memory(Sides& sides);
void registered_memory(Sides& sides);
void host_memory_in_use(Sides& sides);
void managed(Sides& sides);
void managed_variables(Sides& sides);
void fault_in_common(Sides& sides);
void fault_awaited(Sides& sides);
void host_memory_before(Sides& sides);  // makes its sides itself

}  // namespace mpsshim::test
