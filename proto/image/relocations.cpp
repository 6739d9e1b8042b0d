// SPDX-License-Identifier: Apache-2.0
#include "proto/image/relocations.hpp"

#include <algorithm>

namespace mpsshim::image {

std::optional<CubinRelocations> CubinRelocations::read(std::span<std::byte> cubin, std::string& why) {
  auto elf = ElfFile::read(cubin);
  Elf64_Ehdr header{};
  if (!elf || !load_value(cubin, 0, header)) {
    why = "it is no cubin";
    return std::nullopt;
  }
  CubinRelocations read(cubin, std::move(*elf));
  read.header_ = header;
  read.sections_.resize(header.e_shnum);
  for (std::size_t i = 0; i < read.sections_.size(); ++i) {
    if (!load_value(cubin, header.e_shoff + i * sizeof(Elf64_Shdr), read.sections_[i])) {
      why = "its section headers are cut off";
      return std::nullopt;
    }
  }
  const auto is_table = [](const Elf64_Shdr& section) { return section.sh_type == SHT_SYMTAB; };
  const auto tables = std::ranges::count_if(read.sections_, is_table);
  if (tables != 1) {
    why = "it has " + std::to_string(tables) + " symbol tables";
    return std::nullopt;
  }
  read.symbol_table_ = static_cast<std::size_t>(std::ranges::find_if(read.sections_, is_table) - read.sections_.begin());
  return read;
}

std::uint64_t CubinRelocations::entry_of_symbol(std::size_t symbol) const { return sections_[symbol_table_].sh_offset + symbol * sizeof(Elf64_Sym); }

bool CubinRelocations::take_out(const std::function<bool(std::uint64_t)>& is_wanted, const std::function<bool(const Relocation&)>& apply,
                                std::string& why) {
  for (std::size_t i = 0; i < sections_.size(); ++i) {
    if ((sections_[i].sh_type == SHT_REL || sections_[i].sh_type == SHT_RELA) && !take_out_of(i, is_wanted, apply, why)) return false;
  }
  return true;
}

bool CubinRelocations::take_out_of(std::size_t index, const std::function<bool(std::uint64_t)>& is_wanted,
                                   const std::function<bool(const Relocation&)>& apply, std::string& why) {
  Elf64_Shdr& section = sections_[index];
  const bool has_addends = section.sh_type == SHT_RELA;
  const std::size_t entry_bytes = has_addends ? sizeof(Elf64_Rela) : sizeof(Elf64_Rel);
  if (section.sh_link != symbol_table_ || section.sh_info >= sections_.size()) return true;
  const Elf64_Shdr& target = sections_[section.sh_info];
  if ((target.sh_flags & SHF_ALLOC) == 0 || target.sh_type == SHT_NOBITS || target.sh_type == SHT_NULL) return true;  // for debuggers
  std::uint64_t kept_bytes = 0;
  for (std::uint64_t at = 0; at + entry_bytes <= section.sh_size; at += entry_bytes) {
    Elf64_Rela entry{};
    std::memcpy(&entry, cubin_.data() + section.sh_offset + at, entry_bytes);
    Relocation one;
    one.symbol = ELF64_R_SYM(entry.r_info);
    one.kind = static_cast<std::uint32_t>(ELF64_R_TYPE(entry.r_info));
    if (is_wanted(one.symbol)) {
      if (entry.r_offset > target.sh_size) {
        why = "it has a relocation outside its section";
        return false;
      }
      one.offset = entry.r_offset;
      one.place = target.sh_offset + entry.r_offset;
      one.section = cubin_.subspan(target.sh_offset, target.sh_size);
      if (has_addends) one.addend = static_cast<std::uint64_t>(entry.r_addend);
      if (!apply(one)) return false;
      continue;
    }
    std::memmove(cubin_.data() + section.sh_offset + kept_bytes, cubin_.data() + section.sh_offset + at, entry_bytes);
    kept_bytes += entry_bytes;
  }
  if (kept_bytes == section.sh_size) return true;
  section.sh_size = kept_bytes;
  if (kept_bytes == 0) section.sh_type = SHT_NULL;
  return store_value(cubin_, header_.e_shoff + index * sizeof(Elf64_Shdr), section);
}

}  // namespace mpsshim::image
