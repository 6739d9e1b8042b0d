// SPDX-License-Identifier: Apache-2.0
//
// What a failed assertion leaves in host memory, and the code that writes it. A thread that asserts goes by its image's entry: it notes where it
// was, if there is room, then tells the client by a word that the client looks at, and ends.
// The records and entries are the executor's own; a client's kernels can write them all the same, as all of the GPU's memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace mpsshim::image {

inline constexpr std::uint32_t kAssertionRecords = 256;  // of one session; whoever comes later only tells

// Which session an image's copy is: read by a thread that asserts, once.
struct AssertionEntry {
  std::uint64_t area = 0;  // AssertionArea, as the GPU sees it
  std::uint64_t word = 0;  // 32 bits: kAssertionError
};
static_assert(sizeof(AssertionEntry) == 16);

struct AssertionRecord {
  std::uint64_t message = 0;  // addresses of texts
  std::uint64_t file = 0;
  std::uint64_t function = 0;
  std::uint32_t line = 0;
  std::uint32_t reserved = 0;
  std::uint32_t block[3] = {};
  std::uint32_t thread[3] = {};
  std::uint32_t is_complete = 0;
  std::uint32_t reserved_too = 0;
};
static_assert(sizeof(AssertionRecord) == 64 && offsetof(AssertionRecord, block) == 32 && offsetof(AssertionRecord, is_complete) == 56);

struct AssertionArea {
  std::uint32_t count = 0;  // of threads that found it below kAssertionRecords
  std::uint32_t reserved[15] = {};
  AssertionRecord record[kAssertionRecords];
};
static_assert(offsetof(AssertionArea, record) == 64 && sizeof(AssertionArea) == 64 * (kAssertionRecords + 1));

inline constexpr std::uint32_t kAssertionError = 710;  // CUDA_ERROR_ASSERT

// The parameters of such a function, and its body, which has @ENTRY@ where the entry's address is to be. It does with the 24 registers that a kernel
// has at least that calls __assertfail. It uses no stack, for the kernel may have none, and no bank of constants, for those are the kernel's. The
// counts and sizes above stand in it as numbers. (scripts/assertion_stubs.py reads the same file.)
inline constexpr std::string_view kAssertionParameters =
    "(.param .b64 message, .param .b64 file, .param .b32 line, .param .b64 function, .param .b64 size)";
inline constexpr std::string_view kAssertionBody =
#include "proto/image/assertion_handler.inc"
    ;
static_assert(kAssertionRecords == 256 && kAssertionError == 710);

}  // namespace mpsshim::image
