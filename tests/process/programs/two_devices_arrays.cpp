// SPDX-License-Identifier: Apache-2.0
// Arrays as ends of copies between the devices.
#include "tests/process/programs/two_devices.hpp"

namespace mpsshim::test {

namespace {

constexpr std::size_t kWidth = 48, kHeight = 20, kDepth = 3;  // in words
constexpr std::size_t kCount = kWidth * kHeight * kDepth;

CUarray array_on(const Side& side) {
  side.use();
  CUDA_ARRAY3D_DESCRIPTOR shape{};
  shape.Width = kWidth;
  shape.Height = kHeight;
  shape.Depth = kDepth;
  shape.Format = CU_AD_FORMAT_UNSIGNED_INT32;
  shape.NumChannels = 1;
  CUarray array = nullptr;
  CU(cuArray3DCreate(&array, &shape));
  return array;
}

void volume(CUDA_MEMCPY3D& copy) {
  copy.WidthInBytes = kWidth * sizeof(unsigned);
  copy.Height = kHeight;
  copy.Depth = kDepth;
}

void write(const Side& side, CUarray array, unsigned factor) {
  side.use();
  std::vector<unsigned> words(kCount);
  for (unsigned i = 0; i < kCount; ++i) words[i] = i * factor;
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = words.data();
  copy.srcPitch = kWidth * sizeof(unsigned);
  copy.srcHeight = kHeight;
  copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.dstArray = array;
  volume(copy);
  CU(cuMemcpy3D(&copy));
}

std::vector<unsigned> read(const Side& side, CUarray array) {
  side.use();
  std::vector<unsigned> words(kCount);
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.srcArray = array;
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = words.data();
  copy.dstPitch = kWidth * sizeof(unsigned);
  copy.dstHeight = kHeight;
  volume(copy);
  CU(cuMemcpy3D(&copy));
  return words;
}

struct End {
  const Side* side;
  CUarray array;        // or
  CUdeviceptr address;  // tightly packed
};

CUDA_MEMCPY3D_PEER between(const End& to, const End& from) {
  CUDA_MEMCPY3D_PEER copy{};
  copy.srcMemoryType = from.array != nullptr ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_DEVICE;
  copy.srcArray = from.array;
  copy.srcDevice = from.address;
  copy.srcPitch = kWidth * sizeof(unsigned);
  copy.srcHeight = kHeight;
  copy.srcContext = from.side->context;
  copy.dstMemoryType = to.array != nullptr ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_DEVICE;
  copy.dstArray = to.array;
  copy.dstDevice = to.address;
  copy.dstPitch = kWidth * sizeof(unsigned);
  copy.dstHeight = kHeight;
  copy.dstContext = to.side->context;
  copy.WidthInBytes = kWidth * sizeof(unsigned);
  copy.Height = kHeight;
  copy.Depth = kDepth;
  return copy;
}

}  // namespace

void peer_arrays(Sides& sides) {
  for (const unsigned by : {0u, 1u}) {
    const Side &here = sides[by], &there = sides[1 - by];
    CUarray const near = array_on(here), far = array_on(there), beside = array_on(here);
    write(here, near, 3 + by);
    write(there, far, 99);
    // Whatever context is current; the third is neither end's alone.
    for (const Side* current : {&here, &there}) {
      current->use();
      CUDA_MEMCPY3D_PEER copy = between({&there, far, 0}, {&here, near, 0});
      CU(cuMemcpy3DPeer(&copy));
      require_index(read(there, far), 3 + by, "an array on the other device");
      write(there, far, 99);
    }
    // Within a device, and linear ends.
    CUDA_MEMCPY3D_PEER copy = between({&here, beside, 0}, {&here, near, 0});
    CU(cuMemcpy3DPeer(&copy));
    require_index(read(here, beside), 3 + by, "an array on the same device");
    copy = between({&there, nullptr, there.data}, {&here, near, 0});
    CU(cuMemcpy3DPeer(&copy));
    there.use();
    std::vector<unsigned> words = there.read(there.data);
    words.resize(kCount);
    require_index(words, 3 + by, "memory of the other device");
    CU(cuMemsetD32(there.data, 0, kWords));
    CU(cuCtxSynchronize());  // the stream below does not wait for the NULL stream
    there.launch_fill(there.data, 7);
    CU(cuStreamSynchronize(there.stream));
    copy = between({&here, near, 0}, {&there, nullptr, there.data});
    CU(cuMemcpy3DPeer(&copy));
    require_index(read(here, near), 7, "an array of the other device's memory");
    // In a stream's order, behind what it has.
    write(there, far, 0);
    for (unsigned round = 0; round < 3; ++round) {
      there.use();
      there.launch_fill(there.data, 11 + round);
      copy = between({&here, beside, 0}, {&there, nullptr, there.data});
      CU(cuMemcpy3DPeerAsync(&copy, there.stream));
      copy = between({&there, far, 0}, {&here, beside, 0});
      CU(cuMemcpy3DPeerAsync(&copy, there.stream));
      CU(cuStreamSynchronize(there.stream));
      require_index(read(there, far), 11 + round, "an array of another device's, copied in a stream");
    }
    // A part: the last row of the last slice.
    write(there, far, 0);
    copy = between({&there, far, 0}, {&here, near, 0});
    copy.srcZ = copy.dstZ = kDepth - 1;
    copy.srcY = copy.dstY = kHeight - 1;
    copy.Height = copy.Depth = 1;
    CU(cuMemcpy3DPeer(&copy));
    words = read(there, far);
    for (unsigned i = 0; i < kCount; ++i) require(words[i] == (i >= kCount - kWidth ? 7 * i : 0), "a row of an array on the other device");
    // Beyond the array's end.
    copy.dstY = kHeight;
    CU_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpy3DPeer(&copy));
    for (const CUarray array : {near, far, beside}) CU(cuArrayDestroy(array));
  }
}

// Boxes of memory, where neither device has been let into the other's.
void apart_boxes(Sides& sides) {
  constexpr std::size_t kPitch = 1000 * sizeof(unsigned), kRows = 100;
  constexpr std::size_t kColumns = 300;  // of 1,000
  for (const unsigned by : {0u, 1u}) {
    const Side &from = sides[by], &to = sides[1 - by];
    to.use();
    CU(cuMemsetD32(to.data, 0, kWords));
    from.use();
    CUDA_MEMCPY2D copy{};
    copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = from.data;
    copy.dstDevice = to.data;
    copy.srcPitch = copy.dstPitch = kPitch;
    copy.srcXInBytes = 100 * sizeof(unsigned);
    copy.dstXInBytes = 200 * sizeof(unsigned);
    copy.WidthInBytes = kColumns * sizeof(unsigned);
    copy.Height = kRows;
    const auto require_copied = [&](unsigned factor, const char* what) {
      to.use();
      const std::vector<unsigned> words = to.read(to.data);
      for (unsigned i = 0; i < kWords; ++i) {
        const unsigned column = i % 1000;
        const bool is_in = column >= 200 && column < 200 + kColumns;
        require(words[i] == (is_in ? (i - 100) * factor : 0), what);
      }
      from.use();
    };
    CU(cuMemsetD32(from.data, 0, kWords));
    CU(cuCtxSynchronize());  // the stream does not wait for the NULL stream
    from.launch_fill(from.data, 3);
    CU(cuStreamSynchronize(from.stream));
    CU(cuMemcpy2D(&copy));
    require_copied(3, "rows copied to the other device");
    from.launch_fill(from.data, 5);
    CU(cuMemcpy2DAsync(&copy, from.stream));
    CU(cuStreamSynchronize(from.stream));
    require_copied(5, "rows copied to the other device in a stream");
    CUDA_MEMCPY3D_PEER volume{};
    volume.srcMemoryType = volume.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    volume.srcDevice = from.data;
    volume.dstDevice = to.data;
    volume.srcContext = from.context;
    volume.dstContext = to.context;
    volume.srcPitch = volume.dstPitch = kPitch;
    volume.srcHeight = volume.dstHeight = kRows / 4;
    volume.srcXInBytes = copy.srcXInBytes;
    volume.dstXInBytes = copy.dstXInBytes;
    volume.WidthInBytes = copy.WidthInBytes;
    volume.Height = kRows / 4;
    volume.Depth = 4;
    from.launch_fill(from.data, 7);
    CU(cuStreamSynchronize(from.stream));
    CU(cuMemcpy3DPeer(&volume));
    require_copied(7, "slices copied to the other device");
    from.launch_fill(from.data, 9);
    CU(cuMemcpy3DPeerAsync(&volume, from.stream));
    CU(cuStreamSynchronize(from.stream));
    require_copied(9, "slices copied to the other device in a stream");
  }
}

}  // namespace mpsshim::test
