// SPDX-License-Identifier: Apache-2.0
//
// The fatbin container: a header, then entries, each a PTX text or a cubin, stored, LZ4 or zstd. NVIDIA documents only
// the wrapper; the container's layout was measured on nvcc 12 and 13 and agrees with what other projects found.
// The bytes are not trusted: every offset and size is checked against the span, a broken entry ends the list.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace mpsshim::image {

inline constexpr std::uint32_t kFatbinMagic = 0xba55ed50;
inline constexpr std::size_t kFatbinHeaderBytes = 16;

enum class EntryKind : std::uint16_t { ptx = 1, elf = 2 };  // others exist, and are passed over by their readers
enum class Compression { none, lz4, zstd };

struct FatbinEntry {
  std::uint16_t kind = 0;  // an EntryKind, or one that is not known here
  std::uint32_t architecture = 0;  // 75 for sm_75 or compute_75
  std::uint64_t flags = 0;
  Compression compression = Compression::none;
  std::size_t unpacked_bytes = 0;
  std::span<const std::byte> payload;  // as stored, within the container
  std::span<const std::byte> whole;    // with its header
  std::string_view options;            // such as "--compile-only" for -rdc; within the container

  bool is(EntryKind wanted) const { return kind == static_cast<std::uint16_t>(wanted); }
  // "sm_90a", "compute_90a": for devices of that architecture alone.
  [[nodiscard]] bool is_architecture_specific() const { return (flags & 0x100000) != 0; }
  // "sm_100f", "compute_100f": for those of its major version alone.
  [[nodiscard]] bool is_family_specific() const { return (flags & 0x200000) != 0; }
};

// Options of the entries in what the CPU driver's linker gives out: all of them belong together, none is an alternative to the others.
inline constexpr std::string_view kLinkedOption = "--mpsshim-linked";
[[nodiscard]] inline bool is_linked_text(const FatbinEntry& entry) { return entry.is(EntryKind::ptx) && entry.options == kLinkedOption; }

// The container's length as its header says, header included; 0 if there is no header.
[[nodiscard]] std::size_t fatbin_bytes(std::span<const std::byte> container);

// False if the header or an entry is broken; `entries` then holds those before it.
[[nodiscard]] bool read_fatbin(std::span<const std::byte> container, std::vector<FatbinEntry>& entries);

enum class UnpackError {
  none,
  too_large,     // more than the caller allows
  corrupt,       // the compressed bytes do not give what the entry says
  not_built_in,  // this build has no LZ4, or no zstd
};
[[nodiscard]] const char* to_text(UnpackError error);

// A container of these entries alone, as they are stored in another one.
[[nodiscard]] std::vector<std::byte> container_of(std::span<const FatbinEntry> entries);

// The entry's bytes. Never more than `limit_bytes` are allocated. A PTX text's trailing NULs are kept.
[[nodiscard]] UnpackError unpack(const FatbinEntry& entry, std::size_t limit_bytes, std::vector<std::byte>& bytes);

}  // namespace mpsshim::image
