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

}  // namespace mpsshim::test
