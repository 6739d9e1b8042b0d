// SPDX-License-Identifier: Apache-2.0
//
// A 64-bit little-endian ELF file as a list of sections and symbols. The bytes are not trusted: what does not lie
// within the span is not there. Views point into the span.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace mpsshim::image {

inline constexpr std::size_t kElfHeaderBytes = 64;

[[nodiscard]] bool is_elf(std::span<const std::byte> bytes);

// Of an ELF file: it has to be linked before anything of it can run.
[[nodiscard]] bool is_relocatable(std::span<const std::byte> elf);

// How far the program and section header tables reach, which is what elf_bytes needs to see. 0: no ELF header.
[[nodiscard]] std::size_t elf_table_bytes(std::span<const std::byte> header);
// The file's length: the end of its tables or of its last section. 0 if the tables do not lie within the span.
[[nodiscard]] std::size_t elf_bytes(std::span<const std::byte> file);

struct ElfSection {
  std::string_view name;
  std::uint32_t type = 0;
  std::uint64_t flags = 0;
  std::uint64_t size_bytes = 0;
  std::span<const std::byte> content;  // empty for SHT_NOBITS
};

struct ElfSymbol {
  std::string_view name;
  std::uint8_t type = 0;   // STT_*
  std::uint8_t other = 0;  // CUDA keeps flags of its own here
  std::uint16_t section = 0;
  std::uint64_t value = 0;  // of an object: where it begins in its section
  std::uint64_t size_bytes = 0;
};

class ElfFile {
 public:
  // Empty if it is not ELF or its tables are broken.
  static std::optional<ElfFile> read(std::span<const std::byte> file);

  const std::vector<ElfSection>& sections() const { return sections_; }
  const std::vector<ElfSymbol>& symbols() const { return symbols_; }
  const ElfSection* find(std::string_view section_name) const;

 private:
  std::vector<ElfSection> sections_;  // by index, the first is the null section
  std::vector<ElfSymbol> symbols_;
};

}  // namespace mpsshim::image
