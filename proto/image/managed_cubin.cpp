// SPDX-License-Identifier: Apache-2.0
#include <elf.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "proto/image/elf.hpp"
#include "proto/image/managed.hpp"

namespace mpsshim::image {
namespace {

constexpr std::uint8_t kSymbolIsManaged = 0x04;  // in st_other

// Relocations that name an address in global memory, as nvcc's tools emit them for compute capability 7.0 and newer.
enum Relocation : std::uint32_t {
  kAddress = 2,       // R_CUDA_64: eight bytes, as in the bank of constants that holds addresses
  kLowHalf = 0x38,    // R_CUDA_ABS32_LO_32: the lower half, in bits 32 to 63 of an instruction
  kUpperHalf = 0x39,  // R_CUDA_ABS32_HI_32
};
constexpr std::uint64_t kOperandOffset = 4;  // bytes, of those bits

bool is_managed_variable(const ElfSymbol& symbol, std::span<const ElfSection> sections) {
  return symbol.type == STT_OBJECT && (symbol.other & kSymbolIsManaged) != 0 && symbol.section < sections.size();
}

template <class T>
bool load(std::span<const std::byte> bytes, std::uint64_t offset, T& value) {
  if (offset > bytes.size() || sizeof(T) > bytes.size() - offset) return false;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return true;
}
template <class T>
bool store(std::span<std::byte> bytes, std::uint64_t offset, const T& value) {
  if (offset > bytes.size() || sizeof(T) > bytes.size() - offset) return false;
  std::memcpy(bytes.data() + offset, &value, sizeof(T));
  return true;
}

class Placer {
 public:
  Placer(std::span<std::byte> cubin, std::string& why) : cubin_(cubin), why_(why) {}

  bool place(std::span<const Placement> placements) {
    const auto elf = ElfFile::read(cubin_);
    if (!elf || !load(cubin_, 0, header_)) return refuse("it is no cubin");
    sections_.resize(header_.e_shnum);
    for (std::size_t i = 0; i < sections_.size(); ++i) {
      if (!load(cubin_, offset_of_section(i), sections_[i])) return refuse("its section headers are cut off");
    }
    if (!find_addresses(*elf, placements)) return false;
    for (std::size_t i = 0; i < sections_.size(); ++i) {
      if ((sections_[i].sh_type == SHT_REL || sections_[i].sh_type == SHT_RELA) && !resolve(i)) return false;
    }
    return clear_flags();
  }

 private:
  bool refuse(std::string reason) {
    why_ = "the image's __managed__ variables cannot be placed: " + std::move(reason);
    return false;
  }

  std::uint64_t offset_of_section(std::size_t index) const { return header_.e_shoff + index * sizeof(Elf64_Shdr); }

  bool find_addresses(const ElfFile& elf, std::span<const Placement> placements) {
    const auto tables = std::ranges::count_if(sections_, [](const Elf64_Shdr& section) { return section.sh_type == SHT_SYMTAB; });
    if (tables != 1) return refuse("it has " + std::to_string(tables) + " symbol tables");
    symbol_table_ = static_cast<std::size_t>(
        std::ranges::find_if(sections_, [](const Elf64_Shdr& section) { return section.sh_type == SHT_SYMTAB; }) - sections_.begin());
    addresses_.resize(elf.symbols().size());
    for (std::size_t i = 0; i < addresses_.size(); ++i) {
      const ElfSymbol& symbol = elf.symbols()[i];
      if (!is_managed_variable(symbol, elf.sections())) continue;
      const auto placement = std::ranges::find_if(placements, [&](const Placement& one) { return one.name == symbol.name; });
      if (placement == placements.end()) return refuse(std::string(symbol.name) + " has no place");
      addresses_[i] = placement->address;
    }
    return true;
  }

  // Of one section: relocations against placed variables are applied and taken out.
  bool resolve(std::size_t index) {
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
      const std::uint64_t symbol = ELF64_R_SYM(entry.r_info);
      if (symbol < addresses_.size() && addresses_[symbol]) {
        if (!apply(entry, has_addends, target, *addresses_[symbol])) return false;
        continue;
      }
      std::memmove(cubin_.data() + section.sh_offset + kept_bytes, cubin_.data() + section.sh_offset + at, entry_bytes);
      kept_bytes += entry_bytes;
    }
    if (kept_bytes == section.sh_size) return true;
    section.sh_size = kept_bytes;
    if (kept_bytes == 0) section.sh_type = SHT_NULL;
    return store(cubin_, offset_of_section(index), section);
  }

  bool apply(const Elf64_Rela& entry, bool has_addends, const Elf64_Shdr& target, std::uint64_t address) {
    const auto bytes = cubin_.subspan(target.sh_offset, target.sh_size);
    const auto kind = static_cast<std::uint32_t>(ELF64_R_TYPE(entry.r_info));
    const bool is_half = kind == kLowHalf || kind == kUpperHalf;
    if (kind != kAddress && !is_half) return refuse("it has a relocation of kind " + std::to_string(kind) + " against one");
    if (entry.r_offset > bytes.size()) return refuse("it has a relocation outside its section");
    const std::uint64_t offset = entry.r_offset + (is_half ? kOperandOffset : 0);
    std::uint64_t in_place = 0;
    std::uint32_t half_in_place = 0;
    if (is_half ? !load(bytes, offset, half_in_place) : !load(bytes, offset, in_place)) return refuse("it has a relocation outside its section");
    // Without an entry's own addend it stands in place; of an address in two halves neither says all of it.
    if (is_half && half_in_place != 0) return refuse("a half of an address has an addend");
    const std::uint64_t value = address + (has_addends ? static_cast<std::uint64_t>(entry.r_addend) : in_place);
    if (!is_half) return store(bytes, offset, value);
    return store(bytes, offset, static_cast<std::uint32_t>(kind == kLowHalf ? value : value >> 32));
  }

  // The driver makes ordinary variables of them.
  bool clear_flags() {
    const Elf64_Shdr& table = sections_[symbol_table_];
    for (std::size_t i = 0; i < addresses_.size(); ++i) {
      if (!addresses_[i]) continue;
      const std::uint64_t at = table.sh_offset + i * sizeof(Elf64_Sym) + offsetof(Elf64_Sym, st_other);
      std::uint8_t other = 0;
      if (!load(cubin_, at, other)) return refuse("its symbol table is cut off");
      if (!store(cubin_, at, static_cast<std::uint8_t>(other & ~kSymbolIsManaged))) return false;
    }
    return true;
  }

  const std::span<std::byte> cubin_;
  std::string& why_;
  Elf64_Ehdr header_{};
  std::vector<Elf64_Shdr> sections_;
  std::size_t symbol_table_ = 0;
  std::vector<std::optional<std::uint64_t>> addresses_;  // by symbol
};

}  // namespace

std::vector<ManagedVariable> managed_of_cubin(std::span<const std::byte> cubin) {
  std::vector<ManagedVariable> variables;
  const auto elf = ElfFile::read(cubin);
  if (!elf) return variables;
  for (const ElfSymbol& symbol : elf->symbols()) {
    if (!is_managed_variable(symbol, elf->sections())) continue;
    variables.push_back({std::string(symbol.name), symbol.size_bytes, elf->sections()[symbol.section].type == SHT_NOBITS});
  }
  return variables;
}

bool place_in_cubin(std::span<std::byte> cubin, std::span<const Placement> placements, std::string& why) {
  return Placer(cubin, why).place(placements);
}

}  // namespace mpsshim::image
