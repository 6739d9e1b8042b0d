// SPDX-License-Identifier: Apache-2.0
//
// What a load call may receive (cuModuleLoadData, cuLibraryLoadData, __cudaRegisterFatBinary): which form it is, and
// how many bytes it has. Two kinds of caller, two kinds of function:
//   - in the application's own process a pointer is all there is; it is as trusted as the real driver trusts it
//     (extent_of, containers_of);
//   - elsewhere the bytes came from another process: a span, and nothing outside it is ever read (everything else here).
// No function allocates more than its result, keeps anything, or throws anything but std::bad_alloc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace mpsshim::image {

enum class Form {
  unknown,
  fatbin_wrapper,  // 24 bytes that point at containers; has a meaning only in the process it lies in
  fatbin,          // a container of PTX texts and cubins
  elf,             // a cubin
  archive,         // "!<arch>", a library for cuLinkAddData
  ptx,             // text
};

// The toolkit's __fatBinC_Wrapper_t (fatbinary_section.h).
struct FatbinWrapper {
  static constexpr std::uint32_t kMagic = 0x466243b1;
  static constexpr std::uint32_t kSingle = 1;  // data points at a container
  static constexpr std::uint32_t kLinked = 2;  // -rdc: data is the linked cubin's, `others` the objects it was made of

  std::uint32_t magic = kMagic;
  std::uint32_t version = kSingle;
  const void* data = nullptr;
  const void* others = nullptr;  // kLinked: array of pointers to containers, ended by null
};
static_assert(sizeof(FatbinWrapper) == 24);

struct Extent {
  Form form = Form::unknown;
  std::size_t bytes = 0;  // 0 where the form is unknown, a wrapper, or an archive (which does not say its length)
};

// PTX counts its terminating NUL.
[[nodiscard]] Extent extent_of(const void* trusted_image);

// The containers of a wrapper, the linked one first. Empty if it is none.
[[nodiscard]] std::vector<std::span<const std::byte>> containers_of(const void* trusted_wrapper);

// Looks at the first bytes only.
[[nodiscard]] Form form_of(std::span<const std::byte> image);

// The same length as extent_of, provided all of it lies within the span; else 0. PTX without a NUL ends with the span.
[[nodiscard]] std::size_t length_of(std::span<const std::byte> image);

}  // namespace mpsshim::image
