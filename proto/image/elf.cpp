// SPDX-License-Identifier: Apache-2.0
#include "proto/image/elf.hpp"

#include <elf.h>

#include <algorithm>
#include <cstring>

namespace mpsshim::image {
namespace {

using Bytes = std::span<const std::byte>;

template <class T>
bool read_at(Bytes bytes, std::uint64_t offset, T& value) {
  if (offset > bytes.size() || sizeof(T) > bytes.size() - offset) return false;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return true;
}

std::optional<Bytes> part(Bytes bytes, std::uint64_t offset, std::uint64_t size) {
  if (offset > bytes.size() || size > bytes.size() - offset) return std::nullopt;
  return bytes.subspan(offset, size);
}

// Names end with a NUL within their table, or they are empty.
std::string_view name_at(Bytes table, std::uint32_t offset) {
  if (offset >= table.size()) return {};
  const auto* start = reinterpret_cast<const char*>(table.data()) + offset;
  const std::size_t length = strnlen(start, table.size() - offset);
  return length == table.size() - offset ? std::string_view{} : std::string_view{start, length};
}

bool read_header(Bytes file, Elf64_Ehdr& header) {
  if (!is_elf(file) || !read_at(file, 0, header)) return false;
  return header.e_ident[EI_CLASS] == ELFCLASS64 && header.e_ident[EI_DATA] == ELFDATA2LSB &&
         (header.e_shnum == 0 || header.e_shentsize == sizeof(Elf64_Shdr)) &&
         (header.e_phnum == 0 || header.e_phentsize == sizeof(Elf64_Phdr));
}

bool end_of(std::uint64_t offset, std::uint64_t size, std::uint64_t& end) {
  return !__builtin_add_overflow(offset, size, &end);
}

bool end_of_tables(const Elf64_Ehdr& header, std::uint64_t& end) {
  std::uint64_t sections = 0;
  std::uint64_t segments = 0;
  if (!end_of(header.e_shoff, std::uint64_t{header.e_shnum} * sizeof(Elf64_Shdr), sections)) return false;
  if (!end_of(header.e_phoff, std::uint64_t{header.e_phnum} * sizeof(Elf64_Phdr), segments)) return false;
  end = std::max({sections, segments, std::uint64_t{sizeof header}});
  return true;
}

void read_symbols(Bytes table, Bytes names, std::vector<ElfSymbol>& symbols) {
  Elf64_Sym raw{};
  for (std::uint64_t offset = 0; read_at(table, offset, raw); offset += sizeof raw) {
    ElfSymbol symbol;
    symbol.name = name_at(names, raw.st_name);
    symbol.type = ELF64_ST_TYPE(raw.st_info);
    symbol.other = raw.st_other;
    symbol.section = raw.st_shndx;
    symbol.value = raw.st_value;
    symbol.size_bytes = raw.st_size;
    symbols.push_back(symbol);
  }
}

}  // namespace

bool is_elf(Bytes bytes) { return bytes.size() >= SELFMAG && std::memcmp(bytes.data(), ELFMAG, SELFMAG) == 0; }

bool is_relocatable(Bytes elf) {
  Elf64_Ehdr header{};
  return read_header(elf, header) && header.e_type == ET_REL;
}

std::size_t elf_table_bytes(Bytes bytes) {
  Elf64_Ehdr header{};
  std::uint64_t end = 0;
  return read_header(bytes, header) && end_of_tables(header, end) ? end : 0;
}

std::size_t elf_bytes(Bytes file) {
  Elf64_Ehdr header{};
  std::uint64_t end = 0;
  if (!read_header(file, header) || !end_of_tables(header, end) || end > file.size()) return 0;
  for (std::uint64_t i = 0; i < header.e_shnum; ++i) {
    Elf64_Shdr section{};
    std::uint64_t section_end = 0;
    if (!read_at(file, header.e_shoff + i * sizeof section, section)) return 0;
    if (section.sh_type == SHT_NOBITS || section.sh_type == SHT_NULL) continue;
    if (!end_of(section.sh_offset, section.sh_size, section_end)) return 0;
    end = std::max(end, section_end);
  }
  return end;
}

std::optional<ElfFile> ElfFile::read(Bytes file) {
  Elf64_Ehdr header{};
  if (!read_header(file, header)) return std::nullopt;
  std::vector<Elf64_Shdr> raw(header.e_shnum);
  for (std::size_t i = 0; i < raw.size(); ++i) {
    if (!read_at(file, header.e_shoff + i * sizeof(Elf64_Shdr), raw[i])) return std::nullopt;
  }
  const auto content_of = [&](const Elf64_Shdr& section) -> std::optional<Bytes> {
    if (section.sh_type == SHT_NOBITS || section.sh_type == SHT_NULL) return Bytes{};
    return part(file, section.sh_offset, section.sh_size);
  };
  ElfFile elf;
  Bytes names;
  if (header.e_shstrndx < raw.size()) names = content_of(raw[header.e_shstrndx]).value_or(Bytes{});
  for (const Elf64_Shdr& section : raw) {
    const auto content = content_of(section);
    if (!content) return std::nullopt;
    elf.sections_.push_back({name_at(names, section.sh_name), section.sh_type, section.sh_flags, section.sh_size, *content});
    if (section.sh_type != SHT_SYMTAB || section.sh_link >= raw.size()) continue;
    read_symbols(*content, content_of(raw[section.sh_link]).value_or(Bytes{}), elf.symbols_);
  }
  return elf;
}

const ElfSection* ElfFile::find(std::string_view section_name) const {
  const auto found = std::find_if(sections_.begin(), sections_.end(),
                                  [&](const ElfSection& section) { return section.name == section_name; });
  return found == sections_.end() ? nullptr : &*found;
}

}  // namespace mpsshim::image
