// SPDX-License-Identifier: Apache-2.0
// Two-dimensional copies: up, across and down, each with pitches of its own, and two-dimensional memsets.
#include <cstring>
#include <vector>

#include "exercise.hpp"
#include "tests/process/programs/driver.hpp"

namespace mpsshim::soak {

namespace {

constexpr std::size_t kRoom = 256 << 10;  // bytes of each array

class Boxes final : public Exercise {
 public:
  explicit Boxes(const Tools& tools) : tools_(tools), first_(kRoom), second_(kRoom) {}
  void run() override;

 private:
  struct Side {
    std::size_t pitch = 0;
    std::size_t x = 0;  // bytes
    std::size_t y = 0;
  };
  [[nodiscard]] Side any_side();
  void copy(const CUDA_MEMCPY2D& box, const Stream& stream);

  Tools tools_;
  DeviceMemory first_, second_;
  std::size_t width_ = 0;  // bytes of this turn's box
  std::size_t height_ = 0;
};

Boxes::Side Boxes::any_side() {
  Random& random = tools_.work.random;
  Side side;
  side.x = random.below(64);
  side.y = random.below(4);
  side.pitch = side.x + width_ + random.below(256);
  return side;
}

// The synchronous one is the NULL stream's.
void Boxes::copy(const CUDA_MEMCPY2D& box, const Stream& stream) {
  Workplace& work = tools_.work;
  const bool is_synchronous = work.random.one_in(4);
  work.history.note(is_synchronous ? "cuMemcpy2DUnaligned" : "cuMemcpy2DAsync",
                    {{"width", box.WidthInBytes}, {"height", box.Height}, {"from", box.srcMemoryType}, {"to", box.dstMemoryType}});
  work.did();
  if (!is_synchronous) {
    CU(cuMemcpy2DAsync(&box, stream.handle));
    return;
  }
  if (!stream.is_blocking) CU(cuStreamSynchronize(stream.handle));
  CU(cuMemcpy2DUnaligned(&box));
  if (!stream.is_blocking) CU(cuStreamSynchronize(nullptr));
}

void Boxes::run() {
  Workplace& work = tools_.work;
  const Stream& stream = work.any_stream();
  width_ = work.random.of_any_size(2048);
  height_ = work.random.of_any_size(kRoom / (width_ + 512) - 4);
  std::vector<unsigned char> source, found;
  const Side host = any_side(), first = any_side(), second = any_side(), back = any_side();
  source.resize(host.pitch * (host.y + height_));
  for (unsigned char& byte : source) byte = static_cast<unsigned char>(work.random.word());
  const auto fill = static_cast<unsigned char>(work.random.word());
  CU(cuMemsetD2D8Async(second_.address() + second.x + second.y * second.pitch, second.pitch, fill, width_, height_, stream.handle));

  CUDA_MEMCPY2D up{};
  up.srcMemoryType = CU_MEMORYTYPE_HOST, up.srcHost = source.data(), up.srcPitch = host.pitch, up.srcXInBytes = host.x, up.srcY = host.y;
  up.dstMemoryType = CU_MEMORYTYPE_DEVICE, up.dstDevice = first_.address(), up.dstPitch = first.pitch, up.dstXInBytes = first.x, up.dstY = first.y;
  up.WidthInBytes = width_, up.Height = height_;
  copy(up, stream);
  work.keep_pace(stream);
  CUDA_MEMCPY2D across = up;
  across.srcMemoryType = CU_MEMORYTYPE_DEVICE, across.srcDevice = first_.address(), across.srcPitch = first.pitch;
  across.srcXInBytes = first.x, across.srcY = first.y;
  across.dstDevice = second_.address(), across.dstPitch = second.pitch, across.dstXInBytes = second.x, across.dstY = second.y;
  across.Height = height_ > 1 ? height_ - 1 : 1;  // the last row is the memset's
  copy(across, stream);
  found.assign(back.pitch * (back.y + height_), 0xA5);
  CUDA_MEMCPY2D down = across;
  down.srcDevice = second_.address(), down.srcPitch = second.pitch, down.srcXInBytes = second.x, down.srcY = second.y;
  down.dstMemoryType = CU_MEMORYTYPE_HOST, down.dstHost = found.data(), down.dstPitch = back.pitch, down.dstXInBytes = back.x, down.dstY = back.y;
  down.Height = height_;
  copy(down, stream);
  work.wait_for(stream);

  std::vector<unsigned char> wanted(found.size(), 0xA5);
  for (std::size_t row = 0; row < height_; ++row) {
    unsigned char* const to = wanted.data() + back.x + (back.y + row) * back.pitch;
    if (row < across.Height)
      std::memcpy(to, source.data() + host.x + (host.y + row) * host.pitch, width_);
    else
      std::memset(to, fill, width_);
  }
  test::require(found == wanted, "a box of " + std::to_string(width_) + " bytes by " + std::to_string(height_) + " rows is wrong after three copies");
  work.verified(Kind::boxes);
}

}  // namespace

std::unique_ptr<Exercise> make_boxes(const Tools& tools) { return std::make_unique<Boxes>(tools); }

}  // namespace mpsshim::soak
