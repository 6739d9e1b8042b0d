// SPDX-License-Identifier: Apache-2.0
// Downloads of all sizes, right behind the kernel or the memset that has written what they fetch.
#include <algorithm>
#include <vector>

#include "exercise.hpp"
#include "tests/process/programs/driver.hpp"

namespace mpsshim::soak {

namespace {

class Downloads final : public Exercise {
 public:
  explicit Downloads(const Tools& tools)
      : tools_(tools),
        fill_(tools.work.process.kernels.function("fill")),
        memory_(std::max<std::size_t>(tools.work.random.of_any_size(tools.work.sizes().copy_bytes), 1 << 16)) {}
  void run() override;

 private:
  // Returns what must stand there.
  [[nodiscard]] std::vector<Word> write(const Stream& stream, std::size_t first, std::size_t count);

  Tools tools_;
  CUfunction fill_;
  DeviceMemory memory_;
};

std::vector<Word> Downloads::write(const Stream& stream, std::size_t first, std::size_t count) {
  Workplace& work = tools_.work;
  CUdeviceptr to = memory_.address() + first * sizeof(Word);
  Word seed = work.random.word();
  work.did();
  if (work.random.one_in(4)) {  // the same byte, half word or word everywhere
    const auto byte = seed & 0xff, half = seed & 0xffff;
    const std::size_t width = work.random.below(3);
    work.history.note("cuMemsetAsync", {{"to", to}, {"words", count}, {"width", width}});
    if (width == 0) CU(cuMemsetD8Async(to, static_cast<unsigned char>(byte), count * sizeof(Word), stream.handle));
    if (width == 1) CU(cuMemsetD16Async(to, static_cast<unsigned short>(half), count * 2, stream.handle));
    if (width == 2) CU(cuMemsetD32Async(to, seed, count, stream.handle));
    return std::vector<Word>(count, width == 0 ? byte * 0x01010101u : width == 1 ? half * 0x00010001u : seed);
  }
  Sum words = count;
  void* arguments[] = {&to, &words, &seed};
  const auto blocks = static_cast<unsigned>(std::clamp<std::size_t>(count / 4096, 1, 64));
  work.history.note("fill", {{"to", to}, {"words", count}, {"seed", seed}});
  CU(cuLaunchKernel(fill_, blocks, 1, 1, 128, 1, 1, 0, stream.handle, arguments, nullptr));
  std::vector<Word> wanted(count);
  for (std::size_t i = 0; i < count; ++i) wanted[i] = pattern(seed, static_cast<Word>(i));
  return wanted;
}

void Downloads::run() {
  Random& random = tools_.work.random;
  const Stream& stream = tools_.work.any_stream();
  const std::size_t room = memory_.bytes() / sizeof(Word);
  const std::size_t largest = random.one_in(20) ? room : std::min<std::size_t>(room, 64 << 10);
  const std::size_t count = random.of_any_size(largest);
  const std::size_t first = random.one_in(3) ? random.below(room - count + 1) : 0;
  const std::vector<Word> wanted = write(stream, first, count);
  tools_.work.keep_pace(stream);
  const std::size_t skipped = random.below(count);
  const std::vector<Word> found = tools_.transfers.download(stream, memory_.address() + (first + skipped) * sizeof(Word), count - skipped);
  tools_.work.expect("what was downloaded", found, std::span(wanted).subspan(skipped));
  tools_.work.verified(Kind::downloads);
}

}  // namespace

std::unique_ptr<Exercise> make_downloads(const Tools& tools) { return std::make_unique<Downloads>(tools); }

}  // namespace mpsshim::soak
