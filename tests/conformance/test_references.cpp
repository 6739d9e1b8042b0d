// SPDX-License-Identifier: Apache-2.0
// Texture and surface references, in the only form that compilers of today still take them: PTX of one's own.
#include <vector>

#include "loaded_image.hpp"
#include "shared_word.hpp"

// All of it is deprecated.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

using namespace mpsshim::test;

namespace {

constexpr unsigned kCount = 64;

// Kernels that read one texel a thread through a texture reference, and write one through a surface reference.
constexpr const char* kKernels = R"(
.version 7.0
.target sm_75, texmode_unified
.address_size 64
.global .texref image;
.global .surfref canvas;
.visible .entry read_line(.param .u64 result) {
  .reg .b32 %r<1>; .reg .f32 %f<4>; .reg .b64 %d<2>;
  ld.param.u64 %d0, [result];
  mov.u32 %r0, %tid.x;
  tex.1d.v4.f32.s32 {%f0, %f1, %f2, %f3}, [image, {%r0}];
  mul.wide.u32 %d1, %r0, 4;
  add.u64 %d0, %d0, %d1;
  st.global.f32 [%d0], %f0;
  ret;
}
.visible .entry read_plane(.param .u64 result) {
  .reg .b32 %r<1>; .reg .f32 %f<6>; .reg .b64 %d<2>;
  ld.param.u64 %d0, [result];
  mov.u32 %r0, %tid.x;
  cvt.rn.f32.u32 %f4, %r0;
  mov.f32 %f5, 0f3F800000;
  tex.2d.v4.f32.f32 {%f0, %f1, %f2, %f3}, [image, {%f4, %f5}];
  mul.wide.u32 %d1, %r0, 4;
  add.u64 %d0, %d0, %d1;
  st.global.f32 [%d0], %f0;
  ret;
}
.visible .entry draw(.param .u32 first) {
  .reg .b32 %r<3>;
  ld.param.u32 %r2, [first];
  mov.u32 %r0, %tid.x;
  add.u32 %r2, %r2, %r0;
  shl.b32 %r1, %r0, 2;
  sust.b.1d.b32.trap [canvas, {%r1}], %r2;
  ret;
}
)";

CUtexref texture_of(const LoadedImage& image) {
  CUtexref texture = nullptr;
  OK(CU(cuModuleGetTexRef)(&texture, image.handle(), "image"));
  return texture;
}

void fill(CUdeviceptr memory, float first) {
  std::vector<float> values(kCount);
  for (unsigned i = 0; i < kCount; ++i) values[i] = first + static_cast<float>(i);
  OK(CU(cuMemcpyHtoD)(memory, values.data(), kCount * sizeof(float)));
}

bool counts_from(const DeviceArray<float>& seen, float first) {
  for (unsigned i = 0; i < kCount; ++i) {
    if (seen[i] != first + static_cast<float>(i)) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("a kernel reads what its texture reference is bound to", "[forwarded]") {
  const DeviceContext context;
  if (is_cpu_device()) MPSSHIM_SKIP("the CPU driver has no textures");
  const LoadedImage image(kKernels, LoadedImage::Content{});
  const CUfunction read = image.function("read_line");
  const CUtexref texture = texture_of(image);
  const DeviceArray<float> first(kCount), second(kCount), seen(kCount);
  fill(first.address(), 1);
  fill(second.address(), 1000);
  OK(CU(cuTexRefSetFormat)(texture, CU_AD_FORMAT_FLOAT, 1));
  size_t offset = 1;
  OK(CU(cuTexRefSetAddress)(&offset, texture, first.address(), kCount * sizeof(float)));
  CHECK(offset == 0);
  OK(launch(read, nullptr, 1, kCount, seen.address()));
  OK(CU(cuCtxSynchronize)());
  CHECK(counts_from(seen, 1));
  OK(CU(cuTexRefSetAddress)(&offset, texture, second.address(), kCount * sizeof(float)));
  OK(launch(read, nullptr, 1, kCount, seen.address()));
  OK(CU(cuCtxSynchronize)());
  CHECK(counts_from(seen, 1000));
  CUdeviceptr bound = 0;
  OK(CU(cuTexRefGetAddress)(&bound, texture));
  CHECK(bound == second.address());
  CUarray array = nullptr;
  CHECK(CU(cuTexRefGetArray)(&array, texture) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("an array is read through a texture reference with its own format", "[forwarded]") {
  const DeviceContext context;
  if (is_cpu_device()) MPSSHIM_SKIP("the CPU driver has no textures");
  const LoadedImage image(kKernels, LoadedImage::Content{});
  const CUtexref texture = texture_of(image);
  const CUDA_ARRAY3D_DESCRIPTOR plane{kCount, 2, 0, CU_AD_FORMAT_FLOAT, 1, 0};
  CUarray array = nullptr;
  OK(CU(cuArray3DCreate)(&array, &plane));
  std::vector<float> values(2 * kCount);
  for (unsigned i = 0; i < 2 * kCount; ++i) values[i] = static_cast<float>(i);
  CUDA_MEMCPY2D up{};
  up.srcMemoryType = CU_MEMORYTYPE_HOST;
  up.srcHost = values.data();
  up.srcPitch = kCount * sizeof(float);
  up.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  up.dstArray = array;
  up.WidthInBytes = kCount * sizeof(float);
  up.Height = 2;
  OK(CU(cuMemcpy2D)(&up));
  for (const int dimension : {0, 1}) OK(CU(cuTexRefSetAddressMode)(texture, dimension, CU_TR_ADDRESS_MODE_CLAMP));
  OK(CU(cuTexRefSetFilterMode)(texture, CU_TR_FILTER_MODE_POINT));
  OK(CU(cuTexRefSetArray)(texture, array, CU_TRSA_OVERRIDE_FORMAT));
  const DeviceArray<float> seen(kCount);
  OK(launch(image.function("read_plane"), nullptr, 1, kCount, seen.address()));
  OK(CU(cuCtxSynchronize)());
  CHECK(counts_from(seen, kCount));  // the second row
  CUarray bound = nullptr;
  OK(CU(cuTexRefGetArray)(&bound, texture));
  CHECK(bound == array);
  CUarray_format format{};
  int channels = 0;
  OK(CU(cuTexRefGetFormat)(&format, &channels, texture));
  CHECK(format == CU_AD_FORMAT_FLOAT);
  CHECK(channels == 1);
  OK(CU(cuTexRefSetArray)(texture, array, 0));  // as without the flag
  OK(CU(cuArrayDestroy)(array));
}

TEST_CASE("a kernel writes to the array that its surface reference is bound to", "[forwarded]") {
  const DeviceContext context;
  if (is_cpu_device()) MPSSHIM_SKIP("the CPU driver has no surfaces");
  const LoadedImage image(kKernels, LoadedImage::Content{});
  CUsurfref surface = nullptr;
  OK(CU(cuModuleGetSurfRef)(&surface, image.handle(), "canvas"));
  const CUDA_ARRAY3D_DESCRIPTOR line{kCount, 0, 0, CU_AD_FORMAT_UNSIGNED_INT32, 1, CUDA_ARRAY3D_SURFACE_LDST};
  CUarray array = nullptr;
  OK(CU(cuArray3DCreate)(&array, &line));
  OK(CU(cuSurfRefSetArray)(surface, array, 0));
  CUarray bound = nullptr;
  OK(CU(cuSurfRefGetArray)(&bound, surface));
  CHECK(bound == array);
  OK(launch(image.function("draw"), nullptr, 1, kCount, 100u));
  std::vector<unsigned> seen(kCount, 0);
  OK(CU(cuMemcpyAtoH)(seen.data(), array, 0, kCount * sizeof(unsigned)));
  for (unsigned i = 0; i < kCount; ++i) CHECK(seen[i] == 100 + i);
  OK(CU(cuArrayDestroy)(array));
}

TEST_CASE("modules have the references that their images declare", "[forwarded]") {
  if (is_cpu_driver()) MPSSHIM_SKIP("asked of the library in front of the CPU driver");
  const DeviceContext context;
  const LoadedImage plain;
  CUtexref texture = nullptr;
  CUsurfref surface = nullptr;
  CHECK(CU(cuModuleGetTexRef)(&texture, plain.handle(), "image") == CUDA_ERROR_NOT_FOUND);
  CHECK(CU(cuModuleGetSurfRef)(&surface, plain.handle(), "canvas") == CUDA_ERROR_NOT_FOUND);
  CHECK(CU(cuModuleGetTexRef)(nullptr, plain.handle(), "image") == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("references that an image declares are found by their names", "[forwarded]") {
  const DeviceContext context;
  if (is_cpu_device()) MPSSHIM_SKIP("the CPU driver takes no texture references");
  const LoadedImage image(kKernels, LoadedImage::Content{});
  CUtexref texture = nullptr;
  CHECK(CU(cuModuleGetTexRef)(&texture, image.handle(), "nothing") == CUDA_ERROR_NOT_FOUND);
  CUtexref again = nullptr;
  OK(CU(cuModuleGetTexRef)(&texture, image.handle(), "image"));
  OK(CU(cuModuleGetTexRef)(&again, image.handle(), "image"));
  CHECK(texture == again);
  CHECK(CU(cuParamSetTexRef)(image.function("read_line"), CU_PARAM_TR_DEFAULT, texture) == CUDA_ERROR_INVALID_VALUE);  // H200, driver 580
}

TEST_CASE("a texture reference answers what was set on it", "[forwarded]") {
  if (is_cpu_driver()) MPSSHIM_SKIP("asked of the library in front of the CPU driver");
  const DeviceContext context;
  CUtexref texture = nullptr;
  OK(CU(cuTexRefCreate)(&texture));
  OK(CU(cuTexRefSetFormat)(texture, CU_AD_FORMAT_UNSIGNED_INT8, 4));
  CUarray_format format{};
  int channels = 0;
  OK(CU(cuTexRefGetFormat)(&format, &channels, texture));
  CHECK(format == CU_AD_FORMAT_UNSIGNED_INT8);
  CHECK(channels == 4);
  OK(CU(cuTexRefSetFlags)(texture, CU_TRSF_READ_AS_INTEGER | CU_TRSF_NORMALIZED_COORDINATES));
  unsigned flags = 0;
  OK(CU(cuTexRefGetFlags)(&flags, texture));
  CHECK(flags == (CU_TRSF_READ_AS_INTEGER | CU_TRSF_NORMALIZED_COORDINATES));
  OK(CU(cuTexRefSetAddressMode)(texture, 1, CU_TR_ADDRESS_MODE_MIRROR));
  CUaddress_mode mode{};
  OK(CU(cuTexRefGetAddressMode)(&mode, texture, 1));
  CHECK(mode == CU_TR_ADDRESS_MODE_MIRROR);
  OK(CU(cuTexRefSetFilterMode)(texture, CU_TR_FILTER_MODE_LINEAR));
  CUfilter_mode filter{};
  OK(CU(cuTexRefGetFilterMode)(&filter, texture));
  CHECK(filter == CU_TR_FILTER_MODE_LINEAR);
  OK(CU(cuTexRefSetMipmapFilterMode)(texture, CU_TR_FILTER_MODE_LINEAR));
  OK(CU(cuTexRefGetMipmapFilterMode)(&filter, texture));
  CHECK(filter == CU_TR_FILTER_MODE_LINEAR);
  float first = 0;
  float second = 0;
  OK(CU(cuTexRefSetMipmapLevelBias)(texture, 0.5f));
  OK(CU(cuTexRefGetMipmapLevelBias)(&first, texture));
  CHECK(first == 0.5f);
  OK(CU(cuTexRefSetMipmapLevelClamp)(texture, 1.0f, 3.0f));
  OK(CU(cuTexRefGetMipmapLevelClamp)(&first, &second, texture));
  CHECK((first == 1.0f && second == 3.0f));
  OK(CU(cuTexRefSetMaxAnisotropy)(texture, 4));
  int anisotropy = 0;
  OK(CU(cuTexRefGetMaxAnisotropy)(&anisotropy, texture));
  CHECK(anisotropy == 4);
  float border[4] = {0.25f, 0.5f, 0.75f, 1.0f};
  float found[4] = {};
  OK(CU(cuTexRefSetBorderColor)(texture, border));
  OK(CU(cuTexRefGetBorderColor)(found, texture));
  for (int i = 0; i < 4; ++i) CHECK(found[i] == border[i]);
  CUmipmappedArray mipmapped = nullptr;
  CHECK(CU(cuTexRefGetMipmappedArray)(&mipmapped, texture) == CUDA_ERROR_INVALID_VALUE);
  OK(CU(cuTexRefDestroy)(texture));
}

#pragma GCC diagnostic pop
