// SPDX-License-Identifier: Apache-2.0
// Copies of two and three dimensions between memories of each kind, and what is at the destination afterwards.
#pragma once

#include <cstring>
#include <random>
#include <vector>

#include "driver_under_test.hpp"

namespace mpsshim::test {

enum class Kind { device, pinned, pageable };
inline constexpr Kind kKinds[] = {Kind::device, Kind::pinned, Kind::pageable};

// Memory of one kind that a test reads and writes through the host.
class Memory {
 public:
  Memory(Kind kind, size_t bytes) : kind_(kind), bytes_(bytes) {
    if (kind == Kind::device) OK(CU(cuMemAlloc)(&device_, bytes));
    if (kind == Kind::pinned) OK(CU(cuMemHostAlloc)(&pinned_, bytes, 0));
    if (kind == Kind::pageable) own_.resize(bytes);
  }
  ~Memory() {
    if (device_ != 0) CU(cuMemFree)(device_);
    if (pinned_ != nullptr) CU(cuMemFreeHost)(pinned_);
  }
  Memory(const Memory&) = delete;

  unsigned char* host() { return kind_ == Kind::pinned ? static_cast<unsigned char*>(pinned_) : own_.data(); }
  CUdeviceptr device() const { return device_; }
  Kind kind() const { return kind_; }
  void set(const std::vector<unsigned char>& bytes) {
    if (kind_ == Kind::device)
      OK(CU(cuMemcpyHtoD)(device_, bytes.data(), bytes_));
    else
      std::memcpy(host(), bytes.data(), bytes_);
  }
  std::vector<unsigned char> get() {
    std::vector<unsigned char> bytes(bytes_);
    if (kind_ == Kind::device)
      OK(CU(cuMemcpyDtoH)(bytes.data(), device_, bytes_));
    else
      std::memcpy(bytes.data(), host(), bytes_);
    return bytes;
  }

 private:
  Kind kind_;
  size_t bytes_;
  CUdeviceptr device_ = 0;
  void* pinned_ = nullptr;
  std::vector<unsigned char> own_;
};

struct Side {
  size_t x = 0, y = 0, z = 0, pitch = 0, rows = 0;
  size_t at(size_t column, size_t row, size_t slice) const { return ((z + slice) * rows + y + row) * pitch + x + column; }
};
struct Box {
  Side to, from;
  size_t width = 0, height = 0, depth = 1;
};

inline std::vector<unsigned char> noise(size_t bytes, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<unsigned char> all(bytes);
  for (unsigned char& byte : all) byte = static_cast<unsigned char>(random());
  return all;
}

inline void source_of(CUDA_MEMCPY2D& copy, Memory& memory) {
  copy.srcMemoryType = memory.kind() == Kind::device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
  copy.srcDevice = memory.device();
  copy.srcHost = memory.host();
}
inline void source_of(CUDA_MEMCPY3D& copy, Memory& memory) {
  copy.srcMemoryType = memory.kind() == Kind::device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
  copy.srcDevice = memory.device();
  copy.srcHost = memory.host();
}
template <typename Copy>
void destination_of(Copy& copy, Memory& memory) {
  copy.dstMemoryType = memory.kind() == Kind::device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
  copy.dstDevice = memory.device();
  copy.dstHost = memory.host();
}

template <typename Copy>
Copy describe(const Box& box, Memory& to, Memory& from) {
  Copy copy{};
  source_of(copy, from);
  destination_of(copy, to);
  copy.srcXInBytes = box.from.x;
  copy.srcY = box.from.y;
  copy.srcPitch = box.from.pitch;
  copy.dstXInBytes = box.to.x;
  copy.dstY = box.to.y;
  copy.dstPitch = box.to.pitch;
  copy.WidthInBytes = box.width;
  copy.Height = box.height;
  return copy;
}
inline CUDA_MEMCPY2D plane(const Box& box, Memory& to, Memory& from) { return describe<CUDA_MEMCPY2D>(box, to, from); }
inline CUDA_MEMCPY3D volume(const Box& box, Memory& to, Memory& from) {
  auto copy = describe<CUDA_MEMCPY3D>(box, to, from);
  copy.srcZ = box.from.z;
  copy.srcHeight = box.from.rows;
  copy.dstZ = box.to.z;
  copy.dstHeight = box.to.rows;
  copy.Depth = box.depth;
  return copy;
}

// What is at the destination afterwards, byte for byte, what lies between its rows included.
template <typename Copier>
void check_copy(const Box& box, Kind to_kind, Kind from_kind, size_t bytes, Copier&& copier) {
  Memory to(to_kind, bytes), from(from_kind, bytes);
  const auto before = noise(bytes, 1), source = noise(bytes, 2);
  to.set(before);
  from.set(source);
  OK(CU(cuCtxSynchronize)());  // the copier's stream does not wait for these
  copier(to, from);
  auto expected = before;
  for (size_t z = 0; z < box.depth; ++z) {
    for (size_t y = 0; y < box.height; ++y) {
      for (size_t x = 0; x < box.width; ++x) expected[box.to.at(x, y, z)] = source[box.from.at(x, y, z)];
    }
  }
  const bool is_equal = to.get() == expected;
  CAPTURE(static_cast<int>(to_kind), static_cast<int>(from_kind), box.width, box.height, box.depth);
  CHECK(is_equal);
}

}  // namespace mpsshim::test
