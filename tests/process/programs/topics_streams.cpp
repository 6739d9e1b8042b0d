// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "tests/process/programs/topics.hpp"

namespace mpsshim::test {

namespace {

std::vector<unsigned> products(unsigned factor, unsigned plus) {
  std::vector<unsigned> words(kSlowWords);
  for (unsigned i = 0; i < kSlowWords; ++i) words[i] = i * factor + plus;
  return words;
}

CUstream make_stream(unsigned flags) {
  CUstream stream = nullptr;
  CU(cuStreamCreate(&stream, flags));
  return stream;
}

}  // namespace

// A slow writer in one stream, a quick reader in another behind an event.
void stream_order(const Device& device) {
  const CUstream first = make_stream(CU_STREAM_NON_BLOCKING), second = make_stream(CU_STREAM_NON_BLOCKING);
  CUevent written = nullptr, read = nullptr;
  CU(cuEventCreate(&written, CU_EVENT_DISABLE_TIMING));
  CU(cuEventCreate(&read, CU_EVENT_DISABLE_TIMING));
  Words words(kSlowWords, 0);
  for (unsigned factor = 1; factor <= 20; ++factor) {
    CU(cuStreamWaitEvent(first, read, 0));
    CU(device.launch_fill_index(words.address, kSlowWords, factor, first));
    CU(cuEventRecord(written, first));
    CU(cuStreamWaitEvent(second, written, 0));
    CU(device.launch_add(words.address, kSlowWords, factor, second));
    CU(cuEventRecord(read, second));
    if (factor % 5 != 0) continue;
    CU(cuStreamSynchronize(second));
    words.expected = products(factor, factor);
    words.check();
  }
}

// The NULL stream comes after and before each blocking stream, without any event.
void legacy_order(const Device& device) {
  const CUstream blocking = make_stream(CU_STREAM_DEFAULT), another = make_stream(CU_STREAM_DEFAULT);
  Words words(kSlowWords, 0);
  for (unsigned factor = 1; factor <= 10; ++factor) {
    CU(device.launch_fill_index(words.address, kSlowWords, factor, blocking));
    CU(device.launch_add(words.address, kSlowWords, 1, nullptr));
    CU(device.launch_add(words.address, kSlowWords, 1, another));
    CU(device.launch_add(words.address, kSlowWords, 1, CU_STREAM_LEGACY));
    CU(device.launch_add(words.address, kSlowWords, 1, CU_STREAM_PER_THREAD));
    words.expected = products(factor, 4);
    words.check();  // a copy in the NULL stream
  }
  // A non-blocking stream does not wait for the NULL stream.
  const CUstream apart = make_stream(CU_STREAM_NON_BLOCKING);
  Words other(100, 7);
  CUdeviceptr flag = 0;
  CU(cuMemAlloc(&flag, 4));
  CU(cuMemsetD32(flag, 0, 1));
  CU(cuCtxSynchronize());
  CU(device.launch_wait_flag(flag));
  CU(device.launch_add(other.address, 100, 1, apart));
  CU(cuStreamSynchronize(apart));
  CU_GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(nullptr));
  CU(cuMemsetD32Async(flag, 1, 1, apart));
  CU(cuStreamSynchronize(nullptr));
  other.add(1);
  other.check();
}

void events(const Device& device) {
  const CUstream stream = make_stream(CU_STREAM_NON_BLOCKING);
  std::array<CUevent, 3> event{};
  for (CUevent& each : event) CU(cuEventCreate(&each, 0));
  float elapsed_ms = -1;
  CU(cuEventQuery(event[0]));
  CU(cuEventSynchronize(event[0]));
  CU_GIVES(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&elapsed_ms, event[0], event[1]));
  Words words(kSlowWords, 0);
  CU(cuEventRecord(event[0], stream));
  for (unsigned factor = 1; factor <= 5; ++factor) CU(device.launch_fill_index(words.address, kSlowWords, factor, stream));
  CU(cuEventRecord(event[1], stream));
  CU(cuEventSynchronize(event[1]));
  CU(cuEventQuery(event[1]));
  CU(cuStreamQuery(stream));
  CU(cuEventElapsedTime(&elapsed_ms, event[0], event[1]));
  require(elapsed_ms > 0 && elapsed_ms < 60'000, "five launches took " + std::to_string(elapsed_ms) + " ms by their events");
  words.expected = products(5, 0);
  words.check();
  // Not complete while its work runs, and recorded anew it means the new place.
  CUdeviceptr flag = 0;
  CU(cuMemAlloc(&flag, 4));
  CU(cuMemsetD32(flag, 0, 1));
  CU(cuCtxSynchronize());
  CU(device.launch_wait_flag(flag));
  CU(cuEventRecord(event[1], nullptr));
  CU_GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(event[1]));
  CU(cuMemsetD32Async(flag, 1, 1, stream));
  CU(cuEventSynchronize(event[1]));
  CU(cuEventDestroy(event[2]));
  CU_GIVES(CUDA_ERROR_INVALID_HANDLE, cuEventQuery(event[2]));
}

// More than there are connections, each with work, destroyed while it may still run.
void many_streams(const Device& device) {
  constexpr unsigned kStreams = 200;
  Words words(kStreams, 0);
  std::vector<CUstream> streams(kStreams);
  for (unsigned i = 0; i < kStreams; ++i) streams[i] = make_stream(i % 2 == 0 ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT);
  for (unsigned turn = 0; turn < 5; ++turn) {
    for (unsigned i = 0; i < kStreams; ++i) CU(device.launch_add(words.address + i * 4, 1, i + turn, streams[i]));
  }
  for (unsigned i = 0; i < kStreams; ++i) {
    words.expected[i] += 5 * i + 10;
    CU(cuStreamDestroy(streams[i]));
  }
  CU(cuCtxSynchronize());
  words.check();
  CU_GIVES(CUDA_ERROR_INVALID_HANDLE, cuStreamSynchronize(streams[0]));
  Words brief_words(2000, 0);  // one for each: nothing orders these streams
  for (unsigned i = 0; i < brief_words.count(); ++i) {
    const CUstream brief = make_stream(CU_STREAM_DEFAULT);
    CU(device.launch_add(brief_words.address + i * 4, 1, 1, brief));
    CU(cuStreamDestroy(brief));
  }
  CU(cuCtxSynchronize());
  brief_words.add(1);
  brief_words.check();
}

}  // namespace mpsshim::test
