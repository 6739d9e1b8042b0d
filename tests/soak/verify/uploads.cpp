// SPDX-License-Identifier: Apache-2.0
// Uploads of all sizes from memory that is gone or holds something else a moment later; a kernel behind them adds up what has arrived.
#include <algorithm>
#include <vector>

#include "exercise.hpp"
#include "tests/process/programs/driver.hpp"

namespace mpsshim::soak {

namespace {

class Uploads final : public Exercise {
 public:
  explicit Uploads(const Tools& tools)
      : tools_(tools),
        digest_(tools.work.process.kernels.function("digest")),
        sum_(sizeof(Sum)),
        memory_(std::max<std::size_t>(tools.work.random.of_any_size(tools.work.sizes().copy_bytes), 1 << 16)) {}
  void run() override;

 private:
  void add_up(const Stream& stream, std::size_t first, std::size_t count);

  Tools tools_;
  CUfunction digest_;
  DeviceMemory sum_;
  DeviceMemory memory_;
};

void Uploads::add_up(const Stream& stream, std::size_t first, std::size_t count) {
  CUdeviceptr data = memory_.address() + first * sizeof(Word), sum = sum_.address();
  Sum words = count;
  void* arguments[] = {&data, &words, &sum};
  const auto blocks = static_cast<unsigned>(std::clamp<std::size_t>(count / 4096, 1, 64));
  tools_.work.history.note("digest", {{"from", data}, {"words", count}});
  tools_.work.did();
  CU(cuLaunchKernel(digest_, blocks, 1, 1, 128, 1, 1, 0, stream.handle, arguments, nullptr));
}

// Some uploads in a row, most of them over the one before, each read by a kernel at once.
void Uploads::run() {
  Random& random = tools_.work.random;
  const Stream& stream = tools_.work.any_stream();
  const std::size_t room = memory_.bytes() / sizeof(Word);
  const std::size_t largest = random.one_in(20) ? room : std::min<std::size_t>(room, 64 << 10);
  std::vector<Word> words;
  Sum wanted = 0;
  CU(cuMemsetD32Async(sum_.address(), 0, sizeof(Sum) / sizeof(Word), stream.handle));
  for (std::size_t left = largest > (1 << 20) ? 1 : 1 + random.below(12); left > 0; --left) {
    words.resize(random.of_any_size(largest));
    const Word seed = random.word();
    for (std::size_t i = 0; i < words.size(); ++i) {
      words[i] = pattern(seed, static_cast<Word>(i));
      wanted += mix(words[i], static_cast<Word>(i));
    }
    const std::size_t first = random.one_in(3) ? random.below(room - words.size() + 1) : 0;
    tools_.transfers.upload(stream, memory_.address() + first * sizeof(Word), words);
    add_up(stream, first, words.size());
    tools_.work.keep_pace(stream);
  }
  const std::vector<Word> sum = tools_.transfers.download(stream, sum_.address(), sizeof(Sum) / sizeof(Word));
  tools_.work.expect("the sum of what was uploaded", Sum{sum[0]} | Sum{sum[1]} << 32, wanted);
  tools_.work.verified(Kind::uploads);
}

}  // namespace

std::unique_ptr<Exercise> make_uploads(const Tools& tools) { return std::make_unique<Uploads>(tools); }

}  // namespace mpsshim::soak
