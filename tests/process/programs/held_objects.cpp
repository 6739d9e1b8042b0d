// SPDX-License-Identifier: Apache-2.0
#include "tests/process/programs/held_objects.hpp"

#include <algorithm>

namespace mpsshim::test {

HeldObjects::HeldObjects(const Device& device, std::size_t largest_words) : device_(device), graphs_(device) {
  // Three share a chunk, the fourth needs a larger one and the last a chunk of its own, with an odd size.
  const std::size_t counts[] = {1, 250, 4096, std::min<std::size_t>(largest_words, 800'000), largest_words};
  for (const std::size_t count : counts) words_.emplace_back(count, static_cast<unsigned>(count) + 17);
  words_.emplace_back(20'000, 3, Words::Origin::pooled);
  words_.emplace_back(std::min<std::size_t>(largest_words, 600'000), 4, Words::Origin::mapped);
  words_.emplace_back(30'000, 5, Words::Origin::managed);
  words_.emplace_back(10'000, 6, Words::Origin::of_graph);
  int least = 0, greatest = 0;
  CU(cuCtxGetStreamPriorityRange(&least, &greatest));
  CU(cuStreamCreate(&streams_[1], CU_STREAM_DEFAULT));
  CU(cuStreamCreate(&streams_[2], CU_STREAM_NON_BLOCKING));
  CU(cuStreamCreateWithPriority(&streams_[3], CU_STREAM_NON_BLOCKING, greatest));
  CU(cuMemHostAlloc(reinterpret_cast<void**>(&pinned_), kPinnedWords * sizeof(unsigned), 0));
  for (std::size_t i = 0; i < kPinnedWords; ++i) pinned_expected_.push_back(static_cast<unsigned>(i) ^ 0x5a5a5a5au);
  std::copy(pinned_expected_.begin(), pinned_expected_.end(), pinned_);
  for (std::size_t i = 0; i < events_.size(); ++i) {
    CU(cuEventCreate(&events_[i], i % 2 == 0 ? CU_EVENT_DEFAULT : CU_EVENT_DISABLE_TIMING));
    CU(cuEventRecord(events_[i], streams_[i]));
  }
  CU(cuEventCreate(&never_recorded_, CU_EVENT_DEFAULT));
  CU(cuEventCreate(&shared_, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
  use();
}

void HeldObjects::check() const {
  for (const CUevent event : events_) {
    CU(cuEventQuery(event));
    CU(cuEventSynchronize(event));
  }
  CU(cuEventQuery(never_recorded_));
  CU(cuEventQuery(shared_));
  for (const CUstream stream : streams_) CU(cuStreamQuery(stream));
  for (const Words& words : words_) words.check();
  check_words("pinned memory", pinned_, pinned_expected_);
}

void HeldObjects::use() {
  unsigned value = 0;
  for (std::size_t turn = 0; turn < streams_.size(); ++turn) {
    // Each turn works on another stream and waits there for the turn before.
    const std::size_t before = (turn + streams_.size() - 1) % streams_.size();
    CU(cuStreamWaitEvent(streams_[turn], events_[before], 0));
    for (Words& words : words_) {
      // Of large ones a part: the first, then further on, then the last.
      const std::size_t part = std::min(kUsedWords, words.expected.size());
      const std::size_t first = (words.expected.size() - part) * turn / (streams_.size() - 1);
      CU(device_.launch_add(words.address + first * sizeof(unsigned), static_cast<unsigned>(part), ++value, streams_[turn]));
      words.add(value, first, part);
    }
    CU(cuEventRecord(events_[turn], streams_[turn]));
  }
  CU(cuEventRecord(shared_, streams_[1]));
  CU(cuStreamWaitEvent(streams_[2], shared_, 0));
  for (const CUevent event : events_) CU(cuEventSynchronize(event));
  CU(cuEventSynchronize(shared_));
  use_pinned();
  graphs_.use();
  for (const CUstream stream : streams_) CU(cuStreamSynchronize(stream));
  check();
}

// By copies, and by a kernel that works on it where it lies.
void HeldObjects::use_pinned() {
  const CUstream stream = streams_[2];
  Words& words = words_[3];
  CU(cuMemcpyHtoDAsync(words.address, pinned_, kPinnedWords * sizeof(unsigned), stream));
  std::copy(pinned_expected_.begin(), pinned_expected_.end(), words.expected.begin());
  CUdeviceptr mapped = 0;
  CU(cuMemHostGetDevicePointer(&mapped, pinned_, 0));
  CU(device_.launch_add(mapped, kPinnedWords, 3, stream));
  for (unsigned& word : pinned_expected_) word += 3;
  CU(cuStreamSynchronize(stream));
}

}  // namespace mpsshim::test
