// SPDX-License-Identifier: Apache-2.0
#include <elf.h>

#include <algorithm>
#include <optional>

#include "proto/image/elf.hpp"
#include "proto/image/managed.hpp"
#include "proto/image/relocations.hpp"

namespace mpsshim::image {
namespace {

constexpr std::uint8_t kSymbolIsManaged = 0x04;  // in st_other

constexpr std::uint64_t kOperandOffset = 4;  // bytes, of an instruction's bits 32 to 63

bool is_managed_variable(const ElfSymbol& symbol, std::span<const ElfSection> sections) {
  return symbol.type == STT_OBJECT && (symbol.other & kSymbolIsManaged) != 0 && symbol.section < sections.size();
}

class Placer {
 public:
  Placer(std::span<std::byte> cubin, std::string& why) : cubin_(cubin), why_(why) {}

  bool place(std::span<const Placement> placements) {
    std::string wrong;
    auto relocations = CubinRelocations::read(cubin_, wrong);
    if (!relocations) return refuse(wrong);
    if (!find_addresses(relocations->elf(), placements)) return false;
    const auto is_placed = [this](std::uint64_t symbol) { return symbol < addresses_.size() && addresses_[symbol]; };
    if (!relocations->take_out(
            is_placed, [this](const Relocation& one) { return apply(one, *addresses_[one.symbol]); }, wrong)) {
      return wrong.empty() ? false : refuse(wrong);
    }
    return clear_flags(*relocations);
  }

 private:
  bool refuse(std::string reason) {
    why_ = "the image's __managed__ variables cannot be placed: " + std::move(reason);
    return false;
  }

  bool find_addresses(const ElfFile& elf, std::span<const Placement> placements) {
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

  bool apply(const Relocation& one, std::uint64_t address) {
    const bool is_half = one.kind == kRelocateLowHalf || one.kind == kRelocateUpperHalf;
    if (one.kind != kRelocateAddress && !is_half) return refuse("it has a relocation of kind " + std::to_string(one.kind) + " against one");
    const std::uint64_t offset = one.offset + (is_half ? kOperandOffset : 0);
    std::uint64_t in_place = 0;
    std::uint32_t half_in_place = 0;
    if (is_half ? !load_value(one.section, offset, half_in_place) : !load_value(one.section, offset, in_place)) {
      return refuse("it has a relocation outside its section");
    }
    // Without an entry's own addend it stands in place; of an address in two halves neither says all of it.
    if (is_half && half_in_place != 0) return refuse("a half of an address has an addend");
    const std::uint64_t value = address + one.addend.value_or(in_place);
    if (!is_half) return store_value(one.section, offset, value);
    return store_value(one.section, offset, static_cast<std::uint32_t>(one.kind == kRelocateLowHalf ? value : value >> 32));
  }

  // The driver makes ordinary variables of them.
  bool clear_flags(const CubinRelocations& relocations) {
    for (std::size_t i = 0; i < addresses_.size(); ++i) {
      if (!addresses_[i]) continue;
      const std::uint64_t at = relocations.entry_of_symbol(i) + offsetof(Elf64_Sym, st_other);
      std::uint8_t other = 0;
      if (!load_value(cubin_, at, other)) return refuse("its symbol table is cut off");
      if (!store_value(cubin_, at, static_cast<std::uint8_t>(other & ~kSymbolIsManaged))) return false;
    }
    return true;
  }

  const std::span<std::byte> cubin_;
  std::string& why_;
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
