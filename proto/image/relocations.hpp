// SPDX-License-Identifier: Apache-2.0
//
// Relocations of a cubin, for whoever applies some of them itself and takes them out. The bytes are not trusted: what does not lie within them is
// refused with the end of a sentence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <elf.h>

#include "proto/image/elf.hpp"

namespace mpsshim::image {

// As nvcc's tools emit them for compute capability 7.0 and newer, where a variable's or a function's address is meant.
enum RelocationKind : std::uint32_t {
  kRelocateAddress = 2,       // R_CUDA_64: eight bytes, as in the bank of constants that holds addresses
  kRelocateLowHalf = 0x38,    // R_CUDA_ABS32_LO_32: the lower half, in bits 32 to 63 of an instruction
  kRelocateUpperHalf = 0x39,  // R_CUDA_ABS32_HI_32
  kRelocateCall47 = 0x3a,     // R_CUDA_ABS47_34: without its lowest two bits, from bit 34 of an instruction on (to compute capability 8.9)
  kRelocateCall55 = 0x4b,     // R_CUDA_ABS55_16_34: the next eight bits from bit 16 on, 47 more from bit 34 on (from 9.0 on)
};

struct Relocation {
  std::uint64_t symbol = 0;
  std::uint32_t kind = 0;
  std::uint64_t place = 0;   // in the file: where the relocated bytes, or their instruction, begin
  std::uint64_t offset = 0;  // the same within `section`
  std::span<std::byte> section;
  std::optional<std::uint64_t> addend;  // otherwise it stands in place
};

class CubinRelocations {
 public:
  // `why` says what is wrong where it gives nothing.
  [[nodiscard]] static std::optional<CubinRelocations> read(std::span<std::byte> cubin, std::string& why);

  [[nodiscard]] const ElfFile& elf() const { return elf_; }
  // Where a symbol's entry begins in the file.
  [[nodiscard]] std::uint64_t entry_of_symbol(std::size_t symbol) const;

  // Those of code and data that a driver loads, against symbols for which `is_wanted`: each is handed to `apply` and taken out. False: `apply` said
  // so, or `why` says what is broken; the bytes are of no use any more.
  [[nodiscard]] bool take_out(const std::function<bool(std::uint64_t symbol)>& is_wanted, const std::function<bool(const Relocation&)>& apply,
                              std::string& why);

 private:
  CubinRelocations(std::span<std::byte> cubin, ElfFile elf) : cubin_(cubin), elf_(std::move(elf)) {}
  [[nodiscard]] bool take_out_of(std::size_t index, const std::function<bool(std::uint64_t)>& is_wanted,
                                 const std::function<bool(const Relocation&)>& apply, std::string& why);

  std::span<std::byte> cubin_;
  ElfFile elf_;
  Elf64_Ehdr header_{};
  std::vector<Elf64_Shdr> sections_;
  std::size_t symbol_table_ = 0;
};

// Of values at any offset; false: they do not lie within the bytes.
template <class T>
[[nodiscard]] bool load_value(std::span<const std::byte> bytes, std::uint64_t offset, T& value) {
  if (offset > bytes.size() || sizeof(T) > bytes.size() - offset) return false;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return true;
}
template <class T>
[[nodiscard]] bool store_value(std::span<std::byte> bytes, std::uint64_t offset, const T& value) {
  if (offset > bytes.size() || sizeof(T) > bytes.size() - offset) return false;
  std::memcpy(bytes.data() + offset, &value, sizeof(T));
  return true;
}

}  // namespace mpsshim::image
