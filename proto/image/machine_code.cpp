// SPDX-License-Identifier: Apache-2.0
#include "proto/image/machine_code.hpp"

#include <elf.h>

#include <algorithm>
#include <cstring>

namespace mpsshim::image {
namespace {

constexpr unsigned kArchitectures[] = {70, 72, 75, 80, 86, 87, 88, 89, 90, 100, 101, 103, 110, 120, 121};

// On global memory, or any that an address may lead to. Shared memory has others. multimem.red is the same instruction as red.
constexpr bool is_atomic(std::uint64_t opcode) {
  switch (opcode) {
    case 0x18a:  // ATOM
    case 0x18b:  // ATOM.CAS
    case 0x18e:  // RED
    case 0x1a8:  // ATOMG
    case 0x1a9:  // ATOMG.CAS
    case 0x1a2:  // since 9.0 ATOM, ATOMG and RED of floating point numbers and vectors
    case 0x1a3:
    case 0x1a6:
    case 0x178:  // red.async, since 10.0
      return true;
    default: return false;
  }
}

// Four bits of an instruction's second half: scope and order. What is the device's scope before 8.0 is the system's since then.
constexpr bool is_for_system(std::uint64_t second_half, unsigned architecture) {
  const std::uint64_t scope = (second_half >> 13) & 0xf;
  if (architecture < 80) return scope == 0xb;
  return scope == 0xa || scope == 0xc;  // the second is .mmio
}

}  // namespace

unsigned architecture_of(std::span<const std::byte> cubin) {
  Elf64_Ehdr header{};
  if (cubin.size() < sizeof header) return 0;
  std::memcpy(&header, cubin.data(), sizeof header);
  // Toolkits since 13.0 have it in the second byte, and say so by a newer form of the interface; earlier ones in the first.
  return header.e_ident[EI_ABIVERSION] >= 8 ? (header.e_flags >> 8) & 0xff : header.e_flags & 0xff;
}

bool has_known_instructions(unsigned architecture) { return std::ranges::find(kArchitectures, architecture) != std::end(kArchitectures); }

bool adds_for_system(const ElfFile& elf, unsigned architecture) {
  const bool is_known = has_known_instructions(architecture);
  for (const ElfSection& section : elf.sections()) {
    if (!section.name.starts_with(".text.") || section.content.empty()) continue;
    if (!is_known) return true;
    for (std::size_t at = 0; at + kInstructionBytes <= section.content.size(); at += kInstructionBytes) {
      std::uint64_t halves[2] = {};
      std::memcpy(halves, section.content.data() + at, sizeof halves);
      if (is_atomic(opcode_of(halves[0])) && is_for_system(halves[1], architecture)) return true;
    }
  }
  return false;
}

}  // namespace mpsshim::image
