// SPDX-License-Identifier: Apache-2.0
// Memory that is freed while work on it is under way or just over, and is somebody else's the next moment: what the former owner still did to it, or
// the next one did too early, shows in the sums that each owner has made of its contents.
#include <algorithm>
#include <vector>

#include "exercise.hpp"
#include "tests/process/programs/driver.hpp"

namespace mpsshim::soak {

namespace {

constexpr std::size_t kMostOwners = 16;

class Allocations final : public Exercise {
 public:
  explicit Allocations(const Tools& tools)
      : tools_(tools),
        fill_(tools.work.process.kernels.function("fill")),
        digest_(tools.work.process.kernels.function("digest")),
        poke_(tools.work.process.kernels.function("poke")),
        sums_((kMostOwners + 1) * sizeof(Sum)) {
    CU(cuEventCreate(&event_, CU_EVENT_DISABLE_TIMING));
  }
  ~Allocations() override {
    if (!tools_.work.process.options.leaves_at_once) cuEventDestroy(event_);
  }
  void run() override;

 private:
  void own(CUdeviceptr block, std::size_t count, std::size_t owner, const Stream& stream);
  // What comes next in `to` comes behind what `from` has now.
  void follow(const Stream& from, const Stream& to);

  Tools tools_;
  CUfunction fill_, digest_, poke_;
  DeviceMemory sums_;
  CUevent event_ = nullptr;
  std::vector<Sum> wanted_;
};

// After a while it fills the block and adds up what is there.
void Allocations::own(CUdeviceptr block, std::size_t count, std::size_t owner, const Stream& stream) {
  Workplace& work = tools_.work;
  Word seed = work.random.word();
  Sum words = count;
  CUdeviceptr sum = sums_.address() + owner * sizeof(Sum), spare = sums_.address() + kMostOwners * sizeof(Sum);
  const auto blocks = static_cast<unsigned>(std::clamp<std::size_t>(count / 1024, 1, 32));
  if (work.random.below(2) == 0) {
    auto ticks = static_cast<unsigned>(work.random.of_any_size(work.sizes().ticks));
    void* arguments[] = {&spare, &words, &ticks};
    CU(cuLaunchKernel(poke_, 1, 1, 1, 1, 1, 1, 0, stream.handle, arguments, nullptr));
  }
  work.history.note("fill and digest", {{"block", block}, {"words", count}, {"owner", owner}, {"seed", seed}});
  work.did(3);
  void* filled[] = {&block, &words, &seed};
  CU(cuLaunchKernel(fill_, blocks, 1, 1, 128, 1, 1, 0, stream.handle, filled, nullptr));
  void* added[] = {&block, &words, &sum};
  CU(cuLaunchKernel(digest_, blocks, 1, 1, 128, 1, 1, 0, stream.handle, added, nullptr));
  Sum wanted = 0;
  for (std::size_t i = 0; i < count; ++i) wanted += mix(pattern(seed, static_cast<Word>(i)), static_cast<Word>(i));
  wanted_.push_back(wanted);
}

void Allocations::follow(const Stream& from, const Stream& to) {
  if (from.handle == to.handle) return;
  CU(cuEventRecord(event_, from.handle));
  CU(cuStreamWaitEvent(to.handle, event_, 0));
  tools_.work.did(2);
}

void Allocations::run() {
  Workplace& work = tools_.work;
  Stream stream = work.any_stream();
  const bool is_ordered = !work.random.one_in(3);  // allocated and freed in the order of a stream
  const std::size_t most = is_ordered || work.random.one_in(3) ? work.sizes().words * 4 : work.sizes().words;
  const std::size_t count = work.random.of_any_size(most);
  wanted_.clear();
  CU(cuMemsetD32Async(sums_.address(), 0, sums_.bytes() / sizeof(Word), stream.handle));
  for (std::size_t owners = 2 + work.random.below(kMostOwners - 1); wanted_.size() < owners;) {
    CUdeviceptr block = 0;
    const std::size_t words = work.random.one_in(4) ? work.random.of_any_size(most) : count;
    if (is_ordered) {
      CU(cuMemAllocAsync(&block, words * sizeof(Word), stream.handle));
      own(block, words, wanted_.size(), stream);
      CU(cuMemFreeAsync(block, stream.handle));
      work.history.note("cuMemFreeAsync", {{"block", block}});
      if (work.streams().size() > 1 && work.random.one_in(3)) {
        const Stream next = work.any_stream();
        follow(stream, next);
        stream = next;
      }
    } else {
      CU(cuMemAlloc(&block, words * sizeof(Word)));
      own(block, words, wanted_.size(), stream);
      CU(cuMemFree(block));  // waits
      work.history.note("cuMemFree", {{"block", block}});
    }
    work.keep_pace(stream);
  }
  const std::vector<Word> sums = tools_.transfers.download(stream, sums_.address(), wanted_.size() * 2);
  for (std::size_t i = 0; i < wanted_.size(); ++i) {
    work.expect(is_ordered ? "the sum of a block of a pool" : "the sum of a block", Sum{sums[2 * i]} | Sum{sums[2 * i + 1]} << 32, wanted_[i]);
  }
  work.verified(Kind::allocations);
}

}  // namespace

std::unique_ptr<Exercise> make_allocations(const Tools& tools) { return std::make_unique<Allocations>(tools); }

}  // namespace mpsshim::soak
