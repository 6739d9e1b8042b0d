// SPDX-License-Identifier: Apache-2.0
#include "proto/image/assertions.hpp"

#include <elf.h>
#include <algorithm>
#include <cstring>

#include "proto/image/assertion_record.hpp"
#include "proto/image/elf.hpp"
#include "proto/image/ptx_tokens.hpp"
#include "proto/image/relocations.hpp"

namespace mpsshim::image {
namespace {

constexpr std::string_view kAssertFail = "__assertfail";
constexpr std::string_view kEntryMark = "@ENTRY@";
constexpr std::size_t kDigits = 16;

bool is_assert_fail(const ElfSymbol& symbol) { return symbol.name == kAssertFail && symbol.section == SHN_UNDEF; }

// An instruction of 16 bytes with the opcode of a call to a place that is not relative.
bool is_call(std::span<const std::byte> section, std::uint64_t offset) {
  constexpr std::uint64_t kOpcode = 0x943;
  std::uint64_t low = 0;
  return offset % 16 == 0 && load_value(section, offset, low) && (low & 0xfff) == kOpcode;
}

// What a site is before it is filled.
bool holds_zeroes(std::span<const std::byte> bytes, const AssertionSite& site) {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  std::uint32_t half = 0;
  switch (site.form) {
    case AssertionSite::Form::address: return load_value(bytes, site.offset, low) && low == 0;
    case AssertionSite::Form::low_half:
    case AssertionSite::Form::upper_half: return load_value(bytes, site.offset, half) && half == 0;
    case AssertionSite::Form::call_47:
      return load_value(bytes, site.offset, low) && load_value(bytes, site.offset + 8, high) && low >> 34 == 0 && (high & 0x1ffff) == 0;
    case AssertionSite::Form::call_55:
      return load_value(bytes, site.offset, low) && load_value(bytes, site.offset + 8, high) && low >> 34 == 0 && (low >> 16 & 0xff) == 0 &&
             (high & 0x1ffff) == 0;
    case AssertionSite::Form::digits:
      return site.offset <= bytes.size() && kDigits <= bytes.size() - site.offset &&
             std::ranges::all_of(bytes.subspan(site.offset, kDigits), [](std::byte digit) { return digit == std::byte{'0'}; });
  }
  return false;
}

std::string kind_in_words(std::uint32_t kind) {
  return "it has a relocation of kind " + std::to_string(kind) + " against " + std::string(kAssertFail);
}

bool site_of(const Relocation& one, AssertionSite& site, std::string& why) {
  using Form = AssertionSite::Form;
  site.offset = one.place;
  switch (one.kind) {
    case kRelocateAddress: site.form = Form::address; break;
    case kRelocateLowHalf: site = {Form::low_half, one.place + 4}; break;
    case kRelocateUpperHalf: site = {Form::upper_half, one.place + 4}; break;
    case kRelocateCall47: site.form = Form::call_47; break;
    case kRelocateCall55: site.form = Form::call_55; break;
    default: why = kind_in_words(one.kind); return false;
  }
  const bool is_one = one.kind == kRelocateCall47 || one.kind == kRelocateCall55 ? is_call(one.section, one.offset) : true;
  const std::uint64_t in_section = one.offset + (site.offset - one.place);
  if (!is_one || one.addend.value_or(0) != 0 || !holds_zeroes(one.section, {site.form, in_section})) {
    why = kind_in_words(one.kind) + " that is more than its address";
    return false;
  }
  return true;
}

// The declaration in the text, from ".extern" to its semicolon. Empty: there is not exactly one.
std::string_view find_declaration(std::string_view text) {
  std::string_view found;
  const char* begin = nullptr;  // of a declaration that is being read
  bool is_it = false;
  for (std::string_view token = next_ptx_token(text); !token.empty(); token = next_ptx_token(text)) {
    if (token == ".extern") {
      begin = token.data();
      is_it = false;
    } else if (token == "{" || token == "}") {
      begin = nullptr;
    } else if (token == kAssertFail && begin != nullptr) {
      is_it = true;
    } else if (token == ";" && begin != nullptr) {
      if (is_it && !found.empty()) return {};
      if (is_it) found = {begin, static_cast<std::size_t>(token.data() + token.size() - begin)};
      begin = nullptr;
    }
  }
  return found;
}

}  // namespace

bool cubin_may_assert(std::span<const std::byte> cubin) {
  const auto elf = ElfFile::read(cubin);
  return elf && std::ranges::any_of(elf->symbols(), is_assert_fail);
}

bool ptx_may_assert(std::string_view text) {
  for (std::string_view token = next_ptx_token(text); !token.empty(); token = next_ptx_token(text)) {
    if (token == kAssertFail) return true;
  }
  return false;
}

bool open_assertions(std::span<std::byte> cubin, std::vector<AssertionSite>& sites, std::string& why) {
  sites.clear();
  auto relocations = CubinRelocations::read(cubin, why);
  if (!relocations) return false;
  const std::vector<ElfSymbol> symbols = relocations->elf().symbols();
  const auto is_wanted = [&](std::uint64_t symbol) { return symbol < symbols.size() && is_assert_fail(symbols[symbol]); };
  const auto note = [&](const Relocation& one) {
    AssertionSite site;
    if (!site_of(one, site, why)) return false;
    sites.push_back(site);
    if (sites.size() <= kMaxAssertionSites) return true;
    why = "it has too many relocations against " + std::string(kAssertFail);
    return false;
  };
  if (!relocations->take_out(is_wanted, note, why)) return false;
  if (sites.empty()) why = "it names " + std::string(kAssertFail) + " and has no relocation against it";
  return !sites.empty();
}

std::string open_assertions(std::string_view text, std::vector<AssertionSite>& sites, std::string& why) {
  sites.clear();
  const std::string_view declaration = find_declaration(text);
  if (declaration.empty()) {
    why = "it does not declare " + std::string(kAssertFail) + " once";
    return {};
  }
  std::string opened(text.data(), declaration.data());
  opened.append(".func ").append(kAssertFail).append(kAssertionParameters).append("\n{");
  const std::size_t mark = kAssertionBody.find(kEntryMark);
  opened.append(kAssertionBody.substr(0, mark)).append("0x");
  sites.push_back({AssertionSite::Form::digits, opened.size()});
  opened.append(kDigits, '0').append(kAssertionBody.substr(mark + kEntryMark.size())).append("}\n");
  return opened.append(declaration.data() + declaration.size(), text.data() + text.size());
}

bool fill_assertions(std::span<std::byte> content, std::span<const AssertionSite> sites, std::uint64_t address) {
  for (const AssertionSite& site : sites) {
    if (!holds_zeroes(content, site)) return false;
    std::byte* const at = content.data() + site.offset;
    const auto add = [&](std::size_t offset, std::uint64_t bits) {
      std::uint64_t value = 0;
      std::memcpy(&value, at + offset, sizeof value);
      value |= bits;
      std::memcpy(at + offset, &value, sizeof value);
    };
    const auto half = static_cast<std::uint32_t>(site.form == AssertionSite::Form::low_half ? address : address >> 32);
    const std::uint64_t target = address >> 2;
    switch (site.form) {
      case AssertionSite::Form::address: std::memcpy(at, &address, sizeof address); break;
      case AssertionSite::Form::low_half:
      case AssertionSite::Form::upper_half: std::memcpy(at, &half, sizeof half); break;
      case AssertionSite::Form::call_47:
        add(0, target << 34);
        add(8, target >> 30 & 0x1ffff);
        break;
      case AssertionSite::Form::call_55:
        add(0, (target & 0xff) << 16 | target >> 8 << 34);
        add(8, target >> 38 & 0x1ffff);
        break;
      case AssertionSite::Form::digits:
        for (std::size_t i = 0; i < kDigits; ++i)
          at[i] = std::byte(static_cast<unsigned char>("0123456789abcdef"[address >> (4 * (kDigits - 1 - i)) & 0xf]));
        break;
    }
  }
  return true;
}

}  // namespace mpsshim::image
