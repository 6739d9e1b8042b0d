// SPDX-License-Identifier: Apache-2.0
// refused_client STEP...: does each step and says "STEP=CUresult" for it, whatever it was.
//   module, library       loads a text with a texture instruction, which the CPU driver does not run
//   code_only             loads a fat binary that holds machine code for no device there is, as a library
//   good_library          loads the kernels of driver.hpp as a library
//   launch                data[i] += 7, by a kernel that was loaded at the start
//   copy                  reads the data; says their first word, too
//   sync, allocate, query
#include <cstdio>
#include <string>
#include <vector>

#include "tests/process/programs/driver.hpp"

using namespace mpsshim::test;

namespace {

const char kTexturePtx[] = R"ptx(
.version 6.4
.target sm_75
.address_size 64
.visible .entry look_up(.param .u64 texture)
{
    .reg .f32 %f<5>;
    .reg .b32 %r<2>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [texture];
    mov.u32 %r1, 0;
    tex.1d.v4.f32.s32 {%f1, %f2, %f3, %f4}, [%rd1, {%r1}];
    ret;
}
)ptx";

// A container with one entry: "machine code" for sm_10.
std::vector<unsigned char> code_only() {
  std::vector<unsigned char> bytes(16 + 64 + 64, 0);
  const auto put = [&](std::size_t at, unsigned long long value, int size) {
    for (int i = 0; i < size; ++i) bytes[at + static_cast<std::size_t>(i)] = static_cast<unsigned char>(value >> (8 * i));
  };
  put(0, 0xba55ed50, 4);  // magic, version, size of the header, size of what follows
  put(4, 1, 2);
  put(6, 16, 2);
  put(8, bytes.size() - 16, 8);
  put(16, 2, 2);  // kind, version, sizes of header and content, architecture, flags
  put(18, 0x101, 2);
  put(20, 64, 4);
  put(24, 64, 8);
  put(16 + 28, 10, 4);
  put(16 + 40, 0x11, 8);
  return bytes;
}

CUresult load_library(const void* image) {
  CUlibrary library = nullptr;
  return cuLibraryLoadData(&library, image, nullptr, nullptr, 0, nullptr, nullptr, 0);
}

CUresult do_step(const std::string& step, const Device& device, const Words& words, unsigned& first) {
  if (step == "module") {
    CUmodule module = nullptr;
    return cuModuleLoadData(&module, kTexturePtx);
  }
  if (step == "library") return load_library(kTexturePtx);
  if (step == "good_library") return load_library(kPlainPtx);
  if (step == "code_only") {
    const std::vector<unsigned char> image = code_only();
    return load_library(image.data());
  }
  if (step == "launch") return device.launch_add(words.address, words.count(), 7);
  if (step == "copy") return cuMemcpyDtoH(&first, words.address, sizeof first);
  if (step == "sync") return cuCtxSynchronize();
  if (step == "query") return cuStreamQuery(nullptr);
  CUdeviceptr memory = 0;
  return cuMemAlloc(&memory, 4096);
}

}  // namespace

int main(int argc, char** argv) try {
  const Device device;
  const Words words(64, 3);
  unsigned first = 0;
  for (int i = 1; i < argc; ++i) {
    const std::string step = argv[i];
    std::printf("%s=%d ", step.c_str(), static_cast<int>(do_step(step, device, words, first)));
  }
  std::printf("first=%s\n", first == words.expected[0] + 7 ? "right" : first == 0 ? "none" : "other");
  return 0;
} catch (const std::exception& error) {
  std::printf("%s\n", error.what());
  return 1;
}
