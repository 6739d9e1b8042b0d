// SPDX-License-Identifier: Apache-2.0
// The kernels of kernels.cu as a fat binary, and loading them.
#pragma once

#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include "driver_under_test.hpp"

namespace mpsshim::test {

inline std::string read_image(const char* name) {
  std::ifstream file(std::string(MPSSHIM_TEST_IMAGES "/") + name, std::ios::binary);
  REQUIRE(file.good());
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

class LoadedImage {
 public:
  struct Content {};  // the string is the image, not a file's name
  explicit LoadedImage(const char* name = "kernels.fatbin") : LoadedImage(read_image(name), Content{}) {}
  LoadedImage(std::string image, Content) : image_(std::move(image)) { OK(CU(cuModuleLoadData)(&module_, image_.data())); }
  ~LoadedImage() { CU(cuModuleUnload)(module_); }
  LoadedImage(const LoadedImage&) = delete;
  LoadedImage& operator=(const LoadedImage&) = delete;

  CUmodule handle() const { return module_; }
  const std::string& content() const { return image_; }
  CUfunction function(const char* name) const {
    CUfunction found = nullptr;
    OK(CU(cuModuleGetFunction)(&found, module_, name));
    OK(CU(cuFuncLoad)(found));  // a first launch that loads waits for whatever runs, which may wait for this thread
    return found;
  }

 private:
  std::string image_;
  CUmodule module_ = nullptr;
};

// One block of `threads`, arguments by value.
template <class... Arguments>
CUresult launch(CUfunction function, CUstream stream, unsigned blocks, unsigned threads, Arguments... arguments) {
  void* pointers[] = {&arguments..., nullptr};
  return CU(cuLaunchKernel)(function, blocks, 1, 1, threads, 1, 1, 0, stream, pointers, nullptr);
}

// The real driver may keep the first launch of a kernel from returning until streams that stand have gone on: for cases that let
// them go on behind such a launch. `store` is the kernel of that name.
inline void launch_once(CUfunction store) {
  CUdeviceptr word = 0;
  OK(CU(cuMemAlloc)(&word, sizeof(unsigned)));
  OK(launch(store, nullptr, 1, 1, word, 0u));
  OK(CU(cuCtxSynchronize)());
  OK(CU(cuMemFree)(word));
}

// Zeroed when it is made, for streams as well that do not wait for the NULL stream.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t count) {
    OK(CU(cuMemAlloc)(&address_, count * sizeof(T)));
    OK(CU(cuMemsetD8)(address_, 0, count * sizeof(T)));
    OK(CU(cuStreamSynchronize)(nullptr));
  }
  ~DeviceArray() { CU(cuMemFree)(address_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  CUdeviceptr address() const { return address_; }
  T operator[](size_t index) const {
    T value{};
    OK(CU(cuMemcpyDtoH)(&value, address_ + index * sizeof(T), sizeof(T)));
    return value;
  }

 private:
  CUdeviceptr address_ = 0;
};

}  // namespace mpsshim::test
