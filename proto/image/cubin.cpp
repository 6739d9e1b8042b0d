// SPDX-License-Identifier: Apache-2.0
#include "proto/image/cubin.hpp"

#include <elf.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "proto/image/elf.hpp"
#include "proto/image/machine_code.hpp"

namespace mpsshim::image {
namespace {

constexpr std::string_view kInfoPrefix = ".nv.info.";
constexpr std::string_view kSharedPrefix = ".nv.shared.";
constexpr std::uint32_t kMaxParameterBytes = 32764;    // CUDA 12.1 and newer
constexpr std::uint8_t kSymbolIsKernel = 0x10;         // in st_other
constexpr std::uint8_t kTextureSymbol = 10;            // STT_* of the toolkit's own
constexpr std::uint8_t kSurfaceSymbol = 12;
constexpr std::string_view kPrint = "vprintf";         // what printf() becomes
constexpr std::string_view kMalloc = "malloc";
constexpr std::string_view kDeviceLaunch = "cudaCDP";  // within the names of what kernels launch kernels by

// Records of .nv.info sections: { u8 format; u8 attribute; u16 value }, and for kSized `value` bytes after it.
enum Format : std::uint8_t { kNoValue = 1, kByteValue = 2, kHalfValue = 3, kSized = 4 };
enum Attribute : std::uint8_t {
  kMaxThreads = 0x05,
  kExternals = 0x0f,  // numbers of the symbols outside the image that the function or what it calls needs
  kParameter = 0x17,
  kParameterBytes = 0x19,
  kParameterV2 = 0x45,  // from parameters of some 4 KiB up
};

struct Record {
  std::uint8_t attribute = 0;
  std::uint16_t value = 0;
  std::span<const std::byte> content;
};

template <class T>
bool read_at(std::span<const std::byte> bytes, std::size_t offset, T& value) {
  if (offset > bytes.size() || sizeof(T) > bytes.size() - offset) return false;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return true;
}

// Takes one record off the front; false at the end, or where the rest makes no sense.
bool next_record(std::span<const std::byte>& rest, Record& record) {
  std::uint8_t format = 0;
  if (!read_at(rest, 0, format) || !read_at(rest, 1, record.attribute) || !read_at(rest, 2, record.value)) return false;
  if (format < kNoValue || format > kSized) return false;
  rest = rest.subspan(4);
  record.content = {};
  if (format != kSized) return true;
  if (record.value > rest.size()) return false;
  record.content = rest.first(record.value);
  rest = rest.subspan(record.value);
  return true;
}

using NumberedParameter = std::pair<std::uint16_t, KernelParameter>;  // ordinal first; they come in any order

bool read_parameter(const Record& record, NumberedParameter& numbered) {
  auto& [ordinal, parameter] = numbered;
  std::uint16_t offset = 0;
  std::uint32_t packed = 0;
  std::uint16_t size = 0;
  if (!read_at(record.content, 4, ordinal) || !read_at(record.content, 6, offset)) return false;
  parameter.offset = offset;
  if (record.attribute == kParameterV2) {
    if (!read_at(record.content, 8, size)) return false;
    parameter.size = size;
    return true;
  }
  if (!read_at(record.content, 8, packed)) return false;
  parameter.size = packed >> 18;
  return true;
}

bool names_symbol(const Record& record, const ElfFile& elf, std::string_view name) {
  std::uint32_t number = 0;
  for (std::size_t at = 0; read_at(record.content, at, number); at += sizeof number) {
    if (number < elf.symbols().size() && elf.symbols()[number].name == name) return true;
  }
  return false;
}

bool read_record(const ElfFile& elf, const Record& record, KernelLayout& kernel, std::vector<NumberedParameter>& parameters) {
  if (record.attribute == kExternals) {
    kernel.prints |= names_symbol(record, elf, kPrint);
    kernel.uses_device_heap |= names_symbol(record, elf, kMalloc);
  } else if (record.attribute == kParameterBytes) {
    kernel.parameter_bytes = record.value;
  } else if (record.attribute == kMaxThreads) {
    for (std::size_t i = 0; i < 3; ++i) {
      if (!read_at(record.content, 4 * i, kernel.max_threads[i])) return false;
    }
  } else if (record.attribute == kParameter || record.attribute == kParameterV2) {
    NumberedParameter parameter;
    if (!read_parameter(record, parameter)) return false;
    parameters.push_back(parameter);
  }
  return true;
}

bool read_kernel(const ElfFile& elf, const ElfSection& info, KernelLayout& kernel) {
  std::vector<NumberedParameter> parameters;
  std::span<const std::byte> rest = info.content;
  Record record;
  while (next_record(rest, record)) {
    if (!read_record(elf, record, kernel, parameters)) return false;
  }
  std::sort(parameters.begin(), parameters.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  // A gap in the ordinals, or an argument that sticks out of the total, is not a layout.
  for (const auto& [ordinal, parameter] : parameters) {
    const bool fits = parameter.size != 0 && parameter.offset + parameter.size <= kernel.parameter_bytes;
    if (ordinal != kernel.parameters.size() || !fits) return false;
    kernel.parameters.push_back(parameter);
  }
  return kernel.parameter_bytes <= kMaxParameterBytes;
}

bool holds_variables(const ElfSection& section) {
  // Constant bank 3 is the program's; the others hold parameters, addresses and the compiler's own constants.
  return section.size_bytes != 0 && (section.name == ".nv.global" || section.name == ".nv.global.init" || section.name == ".nv.constant3");
}

std::vector<Variable> program_variables(const ElfFile& elf) {
  const auto& sections = elf.sections();
  std::vector<Variable> variables;
  for (const ElfSymbol& symbol : elf.symbols()) {
    if (symbol.type != STT_OBJECT || symbol.section >= sections.size() || is_compiler_text(symbol.name)) continue;
    const ElfSection& section = sections[symbol.section];
    if (holds_variables(section)) {
      variables.push_back({std::string(symbol.name), section.type == SHT_NOBITS, symbol.section, symbol.value, symbol.size_bytes});
    }
  }
  return variables;
}

// Where a section has the address of a function beyond itself, as its relocations say (of either form: the addend is of no matter here).
// `sees(where)` goes on with true.
template <typename See>
void see_functions_beyond(const ElfFile& elf, const ElfSection& relocations, std::size_t target, See&& sees) {
  const std::size_t step = relocations.type == SHT_RELA ? sizeof(Elf64_Rela) : sizeof(Elf64_Rel);
  std::uint64_t where = 0, info = 0;
  for (std::size_t at = 0; read_at(relocations.content, at + offsetof(Elf64_Rel, r_info), info); at += step) {
    (void)read_at(relocations.content, at + offsetof(Elf64_Rel, r_offset), where);
    const std::size_t number = ELF64_R_SYM(info);
    const bool is_known = number < elf.symbols().size();
    const bool is_beyond = !is_known || (elf.symbols()[number].type == STT_FUNC && elf.symbols()[number].section != SHN_UNDEF &&
                                         elf.symbols()[number].section != target);
    if (is_beyond && !sees(where)) return;
  }
}

// Calls a function that it names.
bool is_call(std::span<const std::byte> code, std::uint64_t where) {
  constexpr std::uint64_t kCallAbsolute = 0x143, kCallRelative = 0x144;
  std::uint64_t first_half = 0;
  if (!read_at(code, where / kInstructionBytes * kInstructionBytes, first_half)) return false;
  return opcode_of(first_half) == kCallAbsolute || opcode_of(first_half) == kCallRelative;
}

// Compiled as a whole (nvcc's default), an image knows its functions by small numbers, which mean the same wherever it lies. Linked from parts
// (-rdc=true) it has relocations for their addresses. Debug information does not count.
void note_code_addresses(const ElfFile& elf, unsigned architecture, CubinInfo& info) {
  const auto& sections = elf.sections();
  for (const ElfSection& section : sections) {
    if (section.type != SHT_REL && section.type != SHT_RELA) continue;
    const std::string_view target = section.name.substr(section.name.starts_with(".rela") ? 5 : std::min<std::size_t>(section.name.size(), 4));
    const bool is_code = target.starts_with(".text");
    if (!is_code && !target.starts_with(".nv.constant") && !target.starts_with(".nv.global")) continue;
    const auto found = std::ranges::find(sections, target, &ElfSection::name);
    const bool are_variables = found != sections.end() && holds_variables(*found);
    const bool knows_calls = is_code && found != sections.end() && has_known_instructions(architecture);
    see_functions_beyond(elf, section, static_cast<std::size_t>(found - sections.begin()), [&](std::uint64_t where) {
      info.takes_code_addresses = true;
      info.code_takes_addresses |= !are_variables && !(knows_calls && is_call(found->content, where));
      return !info.code_takes_addresses;
    });
  }
}

}  // namespace

bool is_compiler_text(std::string_view variable_name) {
  constexpr std::string_view kPrefixes[] = {"$str", "__unnamed_", "__cudart_"};
  return std::ranges::any_of(kPrefixes, [&](std::string_view prefix) { return variable_name.starts_with(prefix); });
}

std::optional<CubinInfo> read_cubin(std::span<const std::byte> cubin) {
  const auto elf = ElfFile::read(cubin);
  if (!elf) return std::nullopt;
  std::unordered_set<std::string_view> kernels;
  for (const ElfSymbol& symbol : elf->symbols()) {
    if ((symbol.other & kSymbolIsKernel) != 0) kernels.insert(symbol.name);
  }
  std::unordered_map<std::string_view, std::uint64_t> shared_bytes;
  for (const ElfSection& section : elf->sections()) {
    if (section.name.starts_with(kSharedPrefix)) shared_bytes[section.name.substr(kSharedPrefix.size())] = section.size_bytes;
  }
  CubinInfo info;
  for (const ElfSection& section : elf->sections()) {
    if (!section.name.starts_with(kInfoPrefix)) continue;
    const std::string_view name = section.name.substr(kInfoPrefix.size());
    KernelLayout kernel;
    if (!kernels.contains(name) || !read_kernel(*elf, section, kernel)) continue;
    kernel.name = name;
    kernel.static_shared_bytes = static_cast<std::uint32_t>(std::min<std::uint64_t>(shared_bytes[name], UINT32_MAX));
    info.kernels.push_back(std::move(kernel));
  }
  // Whom a kernel launches from the device is not written down.
  const auto any_symbol = [&](auto&& is_one) { return std::ranges::any_of(elf->symbols(), is_one); };
  if (any_symbol([](const ElfSymbol& symbol) { return symbol.name == kPrint; }) &&
      any_symbol([](const ElfSymbol& symbol) { return symbol.name.find(kDeviceLaunch) != std::string_view::npos; })) {
    for (KernelLayout& kernel : info.kernels) kernel.prints = true;
  }
  const auto& sections = elf->sections();
  info.variables = program_variables(*elf);
  info.has_writable_globals = elf->symbols().empty() ? std::any_of(sections.begin(), sections.end(), holds_variables) : !info.variables.empty();
  info.uses_device_heap = std::ranges::any_of(
      elf->symbols(), [](const ElfSymbol& symbol) { return symbol.section == SHN_UNDEF && symbol.type == STT_FUNC && symbol.name == kMalloc; });
  note_code_addresses(*elf, architecture_of(cubin), info);
  info.adds_for_system = adds_for_system(*elf, architecture_of(cubin));
  // Where a kernel may call or launch what its own list does not name, or no list does.
  const bool is_somebodys = std::ranges::any_of(info.kernels, &KernelLayout::uses_device_heap);
  const bool launches = any_symbol([](const ElfSymbol& symbol) { return symbol.name.find(kDeviceLaunch) != std::string_view::npos; });
  info.all_may_use_device_heap = info.uses_device_heap && (!is_somebodys || launches || info.takes_code_addresses);
  info.has_references = any_symbol([](const ElfSymbol& symbol) { return symbol.type == kTextureSymbol || symbol.type == kSurfaceSymbol; });
  return info;
}

}  // namespace mpsshim::image
