// SPDX-License-Identifier: Apache-2.0
// What a program does that generates text: a kernel or a chain of them, eight bytes of result, again. The result must be there as soon as it is
// said to be.
#include <sched.h>

#include <cstring>

#include "exercise.hpp"
#include "tests/process/programs/driver.hpp"

namespace mpsshim::soak {

namespace {

constexpr Sum kPoison = 0xA5A5A5A5A5A5A5A5;

class Words final : public Exercise {
 public:
  explicit Words(const Tools& tools) : tools_(tools), poke_(tools.work.process.kernels.function("poke")), value_(sizeof(Sum)) {
    CU(cuMemHostAlloc(reinterpret_cast<void**>(&pinned_), sizeof *pinned_, CU_MEMHOSTALLOC_DEVICEMAP));
    CU(cuMemHostGetDevicePointer(&pinned_address_, pinned_, 0));
    CU(cuEventCreate(&event_, CU_EVENT_DISABLE_TIMING));
  }
  ~Words() override {
    if (tools_.work.process.options.leaves_at_once) return;
    cuMemFreeHost(pinned_);
    cuEventDestroy(event_);
  }
  void run() override;

 private:
  void poke(CUdeviceptr where, Sum value, const Stream& stream);
  void wait_for_event();
  [[nodiscard]] Sum fetch(const Stream& stream);

  Tools tools_;
  CUfunction poke_;
  DeviceMemory value_;
  Sum* pinned_ = nullptr;
  CUdeviceptr pinned_address_ = 0;
  CUevent event_ = nullptr;
};

void Words::poke(CUdeviceptr where, Sum value, const Stream& stream) {
  unsigned ticks = tools_.work.random.one_in(4) ? static_cast<unsigned>(tools_.work.random.of_any_size(tools_.work.sizes().ticks)) : 0;
  void* arguments[] = {&where, &value, &ticks};
  tools_.work.history.note("poke", {{"to", where}, {"value", value}, {"ticks", ticks}});
  tools_.work.did();
  CU(cuLaunchKernel(poke_, 1, 1, 1, 1, 1, 1, 0, stream.handle, arguments, nullptr));
}

void Words::wait_for_event() {
  CUresult result = CUDA_ERROR_NOT_READY;
  while ((result = cuEventQuery(event_)) == CUDA_ERROR_NOT_READY) sched_yield();
  CU(result);
}

Sum Words::fetch(const Stream& stream) {
  const std::size_t way = tools_.work.random.below(4);
  tools_.work.history.note("8 bytes", {{"way", way}});
  tools_.work.did(2);
  Sum found = kPoison;
  switch (way) {
    case 0:
      if (!stream.is_blocking) CU(cuStreamSynchronize(stream.handle));
      CU(cuMemcpyDtoH(&found, value_.address(), sizeof found));
      return found;
    case 1:
      CU(cuMemcpyDtoHAsync(&found, value_.address(), sizeof found, stream.handle));
      CU(cuStreamSynchronize(stream.handle));
      return found;
    case 2:
      *pinned_ = kPoison;
      CU(cuMemcpyDtoHAsync(pinned_, value_.address(), sizeof found, stream.handle));
      CU(cuEventRecord(event_, stream.handle));
      wait_for_event();
      break;
    default:
      *pinned_ = kPoison;
      CU(cuMemcpyDtoHAsync(pinned_, value_.address(), sizeof found, stream.handle));
      CU(cuStreamSynchronize(stream.handle));
  }
  std::memcpy(&found, pinned_, sizeof found);
  return found;
}

void Words::run() {
  Workplace& work = tools_.work;
  const Stream& stream = work.any_stream();
  for (std::size_t left = 1 + work.random.below(32); left > 0; --left) {
    const Sum value = work.random.number();
    if (work.random.one_in(5)) {  // straight into the host's memory
      *pinned_ = kPoison;
      poke(pinned_address_, value, stream);
      work.wait_for(stream);
      Sum found;
      std::memcpy(&found, pinned_, sizeof found);
      work.expect("what a kernel has stored in pinned memory", found, value);
    } else {
      poke(value_.address(), value, stream);
      work.expect("eight bytes that were downloaded", fetch(stream), value);
    }
    work.verified(Kind::words);
  }
}

}  // namespace

std::unique_ptr<Exercise> make_words(const Tools& tools) { return std::make_unique<Words>(tools); }

}  // namespace mpsshim::soak
