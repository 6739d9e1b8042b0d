// SPDX-License-Identifier: Apache-2.0
// One word of pinned memory that host and device both see, and the streams and events that cases wait with.
#pragma once

#include <atomic>
#include <thread>

#include "driver_under_test.hpp"

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
