// SPDX-License-Identifier: Apache-2.0
//
// Code has the address of a variable by a relocation: in its instructions; in constants of its own (.nv.constantN.KERNEL); or in the image's bank 4
// (.nv.constant4), whose slots all kernels may read. Who reads which slot no relocation says: that is in the instructions, of 16 bytes each since
// compute capability 7.0, which have bank and offset of a constant operand at the same place whatever they do.
#include <elf.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "proto/image/cubin.hpp"
#include "proto/image/elf.hpp"
#include "proto/image/machine_code.hpp"
#include "proto/image/variable_uses.hpp"

namespace mpsshim::image {
namespace {

constexpr std::string_view kText = ".text.";
constexpr std::string_view kConstant = ".nv.constant";
constexpr std::string_view kConstants = ".nv.constant3";  // the program's own
constexpr std::string_view kAddressBank = ".nv.constant4";
constexpr std::uint8_t kSymbolIsKernel = 0x10;         // in st_other
constexpr std::string_view kDeviceLaunch = "cudaCDP";  // within the names of what kernels launch kernels by
constexpr std::size_t kSlotBytes = 8;

// Of an instruction: its first half, and its second.
constexpr std::uint64_t bank_of(std::uint64_t word) { return (word >> 54) & 0x1f; }
constexpr std::uint64_t form_of(std::uint64_t word) { return word & 0xfff; }  // the opcode, and of what kind its operands are
constexpr std::uint64_t result_register_of(std::uint64_t word) { return (word >> 16) & 0xff; }
constexpr std::uint64_t index_register_of(std::uint64_t word) { return (word >> 24) & 0xff; }
constexpr std::uint64_t immediate_of(std::uint64_t word) { return word >> 32; }
constexpr bool has_condition(std::uint64_t word) { return (word & 0xf000) != 0x7000; }
constexpr std::uint64_t offset_of(std::uint64_t word) { return (word >> 38) & 0xfffc; }
constexpr std::uint64_t offset_of_uniform_load(std::uint64_t word) { return (word >> 37) & 0x1fffc; }
constexpr std::uint64_t width_of_load(std::uint64_t second) { return (second >> 9) & 7; }
constexpr std::uint64_t kNoRegister = 0xff;
constexpr std::uint64_t kEightBytes = 5;              // the next one is 16; below are 4 and less
constexpr std::uint64_t kLoadConstant = 0x182;        // LDC
constexpr std::uint64_t kLoadUniform = 0x0b9;         // ULDC, which has no index
constexpr std::uint64_t kLoadUniformIndexed = 0x1ac;  // LDCU, since 10.0
constexpr std::uint64_t kMostSlotsOfLoad = 4;
constexpr std::uint64_t kWithoutResult[] = {0x186, 0x187, 0x188, 0x00c};     // stores to global, local and shared memory; ISETP
constexpr std::uint64_t kLoadsOfImmediate[] = {0x802, 0x424, 0x431, 0x435};  // MOV, and what stands for it: IMAD, HFMA2

enum class Target : std::uint8_t { nothing, variable, all_variables, function };

struct Reference {
  Target target = Target::nothing;
  std::string_view name;
  std::uint16_t section = 0;
};

class CubinReader {
 public:
  explicit CubinReader(const ElfFile& elf) : elf_(elf) {}

  VariableUses read() {
    VariableUses uses;
    if (elf_.symbols().empty()) return uses;
    for (const ElfSymbol& symbol : elf_.symbols()) {
      const bool is_object = symbol.type == STT_OBJECT && symbol.section < elf_.sections().size();
      if (is_object && elf_.sections()[symbol.section].name == kConstants) uses.constants.emplace(symbol.name);
    }
    for (const ElfSection& section : elf_.sections()) {
      if (section.type == SHT_REL || section.type == SHT_RELA) read_relocations(section);
    }
    for (std::size_t i = 0; i < elf_.sections().size(); ++i) read_code(elf_.sections()[i], static_cast<std::uint16_t>(i));
    if (is_doubtful_) return uses;
    for (const auto& [section, use] : by_section_) {
      if (!kernel_sections_.contains(section)) shared_.add(use);
    }
    for (const auto& [section, name] : kernel_sections_) {
      VariableUse use = by_section_[section];
      use.add(shared_);
      if (!use.variables.empty()) uses.kernels.emplace(name, std::move(use));
    }
    uses.kernel_count = static_cast<std::uint32_t>(kernel_sections_.size());
    uses.are_known = true;
    return uses;
  }

  // Kernels by the section that has their code. False: not one each.
  bool find_kernels() {
    for (const ElfSymbol& symbol : elf_.symbols()) {
      if (symbol.name.find(kDeviceLaunch) != std::string_view::npos) return false;
      if ((symbol.other & kSymbolIsKernel) == 0 || symbol.type != STT_FUNC || symbol.section == SHN_UNDEF) continue;
      if (symbol.section >= elf_.sections().size()) return false;
      const std::string_view section = elf_.sections()[symbol.section].name;
      if (!section.starts_with(kText) || section.substr(kText.size()) != symbol.name) return false;
      if (!kernel_sections_.emplace(symbol.section, symbol.name).second) return false;
    }
    return true;
  }

 private:
  [[nodiscard]] Reference reference_of(std::uint64_t number) const {
    if (number >= elf_.symbols().size()) return {Target::all_variables, {}, 0};
    const ElfSymbol& symbol = elf_.symbols()[number];
    if (symbol.section == SHN_UNDEF && symbol.type == STT_FUNC) return {Target::function, symbol.name, SHN_UNDEF};
    if (symbol.section == SHN_UNDEF || symbol.section >= elf_.sections().size()) return {};
    const std::string_view section = elf_.sections()[symbol.section].name;
    if (section.starts_with(kText) || symbol.type == STT_FUNC) return {Target::function, symbol.name, symbol.section};
    if (section != ".nv.global" && section != ".nv.global.init") return {};
    if (symbol.type != STT_OBJECT) return {Target::all_variables, {}, symbol.section};
    return is_compiler_text(symbol.name) ? Reference{} : Reference{Target::variable, symbol.name, symbol.section};
  }

  void read_relocations(const ElfSection& relocations) {
    const std::string_view name =
        relocations.name.substr(relocations.name.starts_with(".rela") ? 5 : std::min<std::size_t>(relocations.name.size(), 4));
    const bool is_code = name.starts_with(kText);
    const bool is_constant = name.starts_with(kConstant);
    if (!is_code && !is_constant && !name.starts_with(".nv.global")) return;  // for debuggers
    const std::size_t step = relocations.type == SHT_RELA ? sizeof(Elf64_Rela) : sizeof(Elf64_Rel);
    for (std::size_t at = 0; at + step <= relocations.content.size(); at += step) {
      Elf64_Rel entry{};
      std::memcpy(&entry, relocations.content.data() + at, sizeof entry);
      const Reference reference = reference_of(ELF64_R_SYM(entry.r_info));
      if (name == kAddressBank) {
        note_slot(entry.r_offset, reference);
      } else if (reference.target == Target::nothing || reference.section == SHN_UNDEF) {
        continue;  // what the compiler has made, or the driver has
      } else if (is_code) {
        note_in_code(name, reference);
      } else if (const std::size_t dot = name.find('.', kConstant.size()); is_constant && dot != std::string_view::npos) {
        note_in_code(std::string(kText) + std::string(name.substr(dot + 1)), reference);
      } else {
        is_doubtful_ = true;  // a variable, or a constant that every kernel may read, holds the address
      }
    }
  }

  // Functions beside kernels count for every kernel, so whose address code has is of no matter, but a kernel's.
  void note_in_code(std::string_view section_name, const Reference& reference) {
    const auto found = std::ranges::find(elf_.sections(), section_name, &ElfSection::name);
    if (found == elf_.sections().end() || reference.target == Target::all_variables) return void(is_doubtful_ = true);
    const auto section = static_cast<std::uint16_t>(found - elf_.sections().begin());
    if (reference.target == Target::function) {
      is_doubtful_ |= kernel_sections_.contains(reference.section) && reference.section != section;
      return;
    }
    note(section, reference.name);
  }

  void note(std::uint16_t section, std::string_view variable) {
    VariableUse& use = by_section_[section];
    use.variables.emplace(variable);
    use.leaves_addresses = true;
  }

  void note_slot(std::uint64_t offset, const Reference& reference) {
    if (offset % kSlotBytes != 0 || reference.target == Target::all_variables) return void(is_doubtful_ = true);
    is_doubtful_ |= reference.target == Target::function && kernel_sections_.contains(reference.section);
    slots_[offset] = reference;
  }

  void read_code(const ElfSection& section, std::uint16_t number) {
    if (!section.name.starts_with(kText) || slots_.empty()) return;
    is_doubtful_ |= section.content.size() % kInstructionBytes != 0;
    for (std::size_t at = 0; at + kInstructionBytes <= section.content.size(); at += kInstructionBytes) {
      std::uint64_t halves[2] = {};
      std::memcpy(halves, section.content.data() + at, sizeof halves);
      if (bank_of(halves[0]) == 4) read_operand(number, section.content.first(at), halves[0], halves[1]);
    }
  }

  // What is no constant operand may look like one, and its slot is then noted in vain.
  void read_operand(std::uint16_t section, std::span<const std::byte> before, std::uint64_t word, std::uint64_t second) {
    const std::uint64_t opcode = opcode_of(word);
    const bool may_have_index = opcode == kLoadConstant || opcode == kLoadUniformIndexed;
    if (may_have_index && index_register_of(word) != kNoRegister) {
      if (opcode == kLoadConstant && offset_of(word) == 0 && loads_function(before, index_register_of(word))) return;
      for (auto& [offset, slot] : slots_) read_slot(section, offset);
      return;
    }
    const std::uint64_t offset = opcode == kLoadUniformIndexed ? offset_of_uniform_load(word) : offset_of(word);
    const bool is_wide = (may_have_index || opcode == kLoadUniform) && width_of_load(second) > kEightBytes;
    for (std::uint64_t i = 0; i < (is_wide ? kMostSlotsOfLoad : 1); ++i) read_slot(section, (offset / kSlotBytes + i) * kSlotBytes);
  }

  // Calls of the driver's functions (printf, assertions) load their address by a register that has just been given the slot's offset.
  [[nodiscard]] bool loads_function(std::span<const std::byte> before, std::uint64_t index_register) const {
    for (std::size_t at = before.size(); at >= kInstructionBytes; at -= kInstructionBytes) {
      std::uint64_t word = 0;
      std::memcpy(&word, before.data() + at - kInstructionBytes, sizeof word);
      const bool has_result = std::ranges::find(kWithoutResult, opcode_of(word)) == std::end(kWithoutResult);  // true in doubt
      if (!has_result || result_register_of(word) != index_register) continue;
      if (has_condition(word) || std::ranges::find(kLoadsOfImmediate, form_of(word)) == std::end(kLoadsOfImmediate)) return false;
      const auto slot = slots_.find(immediate_of(word));
      return slot != slots_.end() && slot->second.target == Target::function;
    }
    return false;
  }

  void read_slot(std::uint16_t section, std::uint64_t offset) {
    const auto slot = slots_.find(offset);
    if (slot == slots_.end() || slot->second.target != Target::variable) return;
    note(section, slot->second.name);
  }

  const ElfFile& elf_;
  std::map<std::uint16_t, std::string_view> kernel_sections_;
  std::map<std::uint64_t, Reference> slots_;  // of the bank of addresses, by offset
  std::map<std::uint16_t, VariableUse> by_section_;
  VariableUse shared_;  // of functions that any kernel may call
  bool is_doubtful_ = false;
};

}  // namespace

void VariableUse::add(const VariableUse& other) {
  variables.insert(other.variables.begin(), other.variables.end());
  leaves_addresses |= other.leaves_addresses;
}

void VariableUses::add(const VariableUses& other) {
  std::erase_if(constants, [&](const std::string& name) { return !other.constants.contains(name); });
  are_known = are_known && other.are_known && kernel_count == other.kernel_count;
  if (!are_known) return kernels.clear();
  for (const auto& [name, use] : other.kernels) kernels[name].add(use);
}

VariableUses variable_uses_of_cubin(std::span<const std::byte> cubin) {
  const auto elf = ElfFile::read(cubin);
  if (!elf || !has_known_instructions(architecture_of(cubin))) return {};
  CubinReader reader(*elf);
  return reader.find_kernels() ? reader.read() : VariableUses{};
}

}  // namespace mpsshim::image
