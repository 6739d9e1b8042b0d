// SPDX-License-Identifier: Apache-2.0
// Makes machine code that no GPU knows.
#pragma once

#include <elf.h>

#include <cstddef>
#include <cstring>
#include <string>

namespace mpsshim::test {

// The machine code of `kernel` in a cubin becomes an operation that no GPU has; predicates and scheduling stay as they are. False: the cubin has no
// such kernel.
[[nodiscard]] inline bool break_code(std::string& cubin, const std::string& kernel) {
  constexpr std::size_t kInstructionBytes = 16;
  Elf64_Ehdr header;
  if (cubin.size() < sizeof header) return false;
  std::memcpy(&header, cubin.data(), sizeof header);
  const auto section = [&](unsigned index) {
    Elf64_Shdr found;
    std::memcpy(&found, cubin.data() + header.e_shoff + index * sizeof found, sizeof found);
    return found;
  };
  const Elf64_Shdr names = section(header.e_shstrndx);
  for (unsigned i = 0; i < header.e_shnum; ++i) {
    const Elf64_Shdr code = section(i);
    if (cubin.c_str() + names.sh_offset + code.sh_name != ".text." + kernel) continue;
    for (std::size_t at = code.sh_offset; at + kInstructionBytes <= code.sh_offset + code.sh_size; at += kInstructionBytes) {
      cubin[at] = static_cast<char>(0xff);
      cubin[at + 1] = static_cast<char>(cubin[at + 1] | 0x0f);
    }
    return true;
  }
  return false;
}

}  // namespace mpsshim::test
