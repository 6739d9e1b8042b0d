// SPDX-License-Identifier: Apache-2.0
//
// The little that is asked of a PTX text without compiling it. The text is not trusted; it need not end with a NUL.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace mpsshim::image {

// Comments and blanks, then ".version".
[[nodiscard]] bool looks_like_ptx(std::string_view text);

// 90 for ".version 9.0"; 0 where the text does not begin with a version.
[[nodiscard]] unsigned ptx_version(std::string_view text);

// The oldest version that a linker takes, because it compiles to objects first (ptxas: "'Compile only(-c)' requires PTX ISA .version 3.1 or
// later"). Modules are made of older texts, too.
inline constexpr unsigned kOldestLinkedPtx = 31;

// Has .global or .const variables that a program can change (see CubinInfo::has_writable_globals). Says yes when in doubt.
[[nodiscard]] bool ptx_has_writable_globals(std::string_view text);
// CubinInfo::takes_code_addresses, as far as a text tells: it has functions besides kernels.
[[nodiscard]] bool ptx_takes_code_addresses(std::string_view text);
// CubinInfo::adds_for_system.
[[nodiscard]] bool ptx_adds_for_system(std::string_view text);
// CubinInfo::code_takes_addresses: one of its functions or kernels is named within another, and not to call it.
[[nodiscard]] bool ptx_code_takes_addresses(std::string_view text);
// The names of the variables of ptx_has_writable_globals(). Where the text is in doubt a name may be none.
[[nodiscard]] std::vector<std::string> ptx_variables(std::string_view text);

// Its kernels that call printf(), themselves or by functions that they call; with calls through pointers all that might.
[[nodiscard]] std::vector<std::string> ptx_printing_kernels(std::string_view text);

// Declares texture or surface references (see CubinInfo::has_references).
[[nodiscard]] bool ptx_has_references(std::string_view text);

// NVIDIA's device runtime (libcudadevrt, in every image that was linked with it; kernels launch kernels by it). It speaks with the hardware, so
// the CPU driver has functions of its own in its place.
[[nodiscard]] bool ptx_is_device_runtime(std::string_view text);

// Declares the device's malloc() (see CubinInfo::uses_device_heap), or its cudaMalloc().
[[nodiscard]] bool ptx_uses_device_heap(std::string_view text);
// Its kernels that may call one of the two.
[[nodiscard]] std::vector<std::string> ptx_heap_kernels(std::string_view text);

}  // namespace mpsshim::image
