// SPDX-License-Identifier: Apache-2.0
// One word of pinned memory that host and device both see, and the streams, events and kernels that cases wait with.
#pragma once

#include <atomic>
#include <thread>

#include "loaded_image.hpp"

namespace mpsshim::test {

class SharedWord {
 public:
  SharedWord() {
    void* pointer = nullptr;
    OK(CU(cuMemHostAlloc)(&pointer, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
    word_ = static_cast<std::atomic<unsigned>*>(pointer);
    word_[0] = word_[1] = 0;
  }
  ~SharedWord() { CU(cuMemFreeHost)(word_); }
  SharedWord(const SharedWord&) = delete;
  SharedWord& operator=(const SharedWord&) = delete;

  CUdeviceptr address() const { return reinterpret_cast<CUdeviceptr>(word_); }
  std::atomic<unsigned>& operator*() { return *word_; }
  // Until the kernel `spin`, launched with this word, runs.
  void wait_for_spinning() const {
    while (word_[1] == 0) std::this_thread::yield();
  }

 private:
  std::atomic<unsigned>* word_ = nullptr;
};

// Streams are held by kernels that spin on a gate, which every driver can, rather than by memory operations. Functions are looked up before
// anything runs: a driver that loads lazily waits there for every running kernel.
struct GateKernels {
  LoadedImage image;
  CUfunction spin = image.function("spin");    // until the gate is open (not 0)
  CUfunction store = image.function("store");  // a value
};

inline CUstream new_stream(unsigned flags = CU_STREAM_NON_BLOCKING) {
  CUstream stream = nullptr;
  OK(CU(cuStreamCreate)(&stream, flags));
  return stream;
}

inline CUevent new_event(unsigned flags = CU_EVENT_DEFAULT) {
  CUevent event = nullptr;
  OK(CU(cuEventCreate)(&event, flags));
  return event;
}

}  // namespace mpsshim::test
