// SPDX-License-Identifier: Apache-2.0
#include "proto/image/check.hpp"

#include <elf.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

#include "proto/image/elf.hpp"

namespace mpsshim::image {
namespace {

using Bytes = std::span<const std::byte>;

template <class T>
bool load(Bytes bytes, std::uint64_t offset, T& value) {
  if (offset > bytes.size() || sizeof(T) > bytes.size() - offset) return false;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return true;
}

bool lies_within(Bytes bytes, std::uint64_t offset, std::uint64_t size) { return offset <= bytes.size() && size <= bytes.size() - offset; }

// is_ptx_word() for each byte.
constexpr std::array<bool, 256> kIsWord = [] {
  std::array<bool, 256> table{};
  for (int c = 0; c < 256; ++c) {
    table[static_cast<std::size_t>(c)] =
        (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '$' || c == '%';
  }
  return table;
}();

bool has_content(const Elf64_Shdr& section) { return section.sh_type != SHT_NOBITS && section.sh_type != SHT_NULL && section.sh_size != 0; }

class ElfCheck {
 public:
  explicit ElfCheck(Bytes file) : file_(file) {}

  std::string run() {
    if (elf_table_bytes(file_) == 0 || !load(file_, 0, header_)) return "it has no ELF header of 64 bits, little-endian";
    if (elf_table_bytes(file_) > file_.size()) return "its ELF tables are cut off";
    if (std::string wrong = read_sections(); !wrong.empty()) return wrong;
    for (std::size_t i = 0; i < sections_.size(); ++i) {
      if (std::string wrong = check_section(i); !wrong.empty()) return wrong;
    }
    return check_segments();
  }

 private:
  static std::string of_section(std::size_t number, const char* what) { return "its section " + std::to_string(number) + " " + what; }

  std::string read_sections() {
    sections_.resize(header_.e_shnum);
    for (std::size_t i = 0; i < sections_.size(); ++i) {
      if (!load(file_, header_.e_shoff + i * sizeof(Elf64_Shdr), sections_[i])) return "its section headers are cut off";
      if (has_content(sections_[i]) && !lies_within(file_, sections_[i].sh_offset, sections_[i].sh_size)) {
        return of_section(i, "lies outside the file");
      }
    }
    if (!sections_.empty() && header_.e_shstrndx >= sections_.size()) return "its sections have no names";
    return {};
  }

  [[nodiscard]] Bytes content(const Elf64_Shdr& section) const {
    return has_content(section) ? file_.subspan(section.sh_offset, section.sh_size) : Bytes{};
  }

  std::string check_section(std::size_t number) {
    const Elf64_Shdr& section = sections_[number];
    const bool has_table = section.sh_type == SHT_SYMTAB || section.sh_type == SHT_REL || section.sh_type == SHT_RELA;
    if (has_table && section.sh_link >= sections_.size()) return of_section(number, "belongs to one that does not exist");
    if (section.sh_type == SHT_STRTAB && has_content(section) && content(section).back() != std::byte{0}) {
      return of_section(number, "has names without an end");
    }
    if (section.sh_type == SHT_SYMTAB) return check_symbols(number);
    if (section.sh_type == SHT_REL || section.sh_type == SHT_RELA) return check_relocations(number);
    return {};
  }

  std::string check_symbols(std::size_t number) {
    const Elf64_Shdr& section = sections_[number];
    if (section.sh_entsize != sizeof(Elf64_Sym)) return of_section(number, "has symbols of another size");
    const std::size_t names = content(sections_[section.sh_link]).size();
    Elf64_Sym symbol{};
    for (std::uint64_t at = 0; load(content(section), at, symbol); at += sizeof symbol) {
      if (symbol.st_name != 0 && symbol.st_name >= names) return of_section(number, "has a symbol whose name lies outside");
      if (symbol.st_shndx < SHN_LORESERVE && symbol.st_shndx >= sections_.size()) {
        return of_section(number, "has a symbol in a section that does not exist");
      }
    }
    return {};
  }

  std::string check_relocations(std::size_t number) {
    const Elf64_Shdr& section = sections_[number];
    const std::size_t entry_bytes = section.sh_type == SHT_RELA ? sizeof(Elf64_Rela) : sizeof(Elf64_Rel);
    if (section.sh_entsize != entry_bytes) return of_section(number, "has relocations of another size");
    if (section.sh_info >= sections_.size()) return of_section(number, "relocates one that does not exist");
    const Elf64_Shdr& table = sections_[section.sh_link];
    const std::uint64_t symbols = table.sh_type == SHT_SYMTAB ? content(table).size() / sizeof(Elf64_Sym) : 0;
    const std::uint64_t target_bytes = sections_[section.sh_info].sh_size;
    Elf64_Rel entry{};
    for (std::uint64_t at = 0; load(content(section), at, entry); at += entry_bytes) {
      if (symbols != 0 && ELF64_R_SYM(entry.r_info) >= symbols) return of_section(number, "relocates to a symbol that does not exist");
      if (section.sh_info != 0 && entry.r_offset >= target_bytes) return of_section(number, "relocates outside its section");
    }
    return {};
  }

  std::string check_segments() {
    Elf64_Phdr segment{};
    for (std::uint64_t i = 0; i < header_.e_phnum; ++i) {
      if (!load(file_, header_.e_phoff + i * sizeof segment, segment)) return "its program headers are cut off";
      if (segment.p_filesz != 0 && !lies_within(file_, segment.p_offset, segment.p_filesz)) {
        return "its segment " + std::to_string(i) + " lies outside the file";
      }
    }
    return {};
  }

  const Bytes file_;
  Elf64_Ehdr header_{};
  std::vector<Elf64_Shdr> sections_;
};

}  // namespace

std::string what_is_wrong_with_elf(Bytes file) { return ElfCheck(file).run(); }

std::string what_is_wrong_with_ptx(std::string_view text) {
  if (text.size() > kMaxPtxBytes) {
    return "its PTX has " + std::to_string(text.size() >> 20) + " MiB, and " + std::to_string(kMaxPtxBytes >> 20) + " are the most";
  }
  // By bytes: the text may be long, and others look at its words after this.
  std::size_t depth = 0;
  std::size_t word_bytes = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (kIsWord[static_cast<unsigned char>(c)]) {
      if (++word_bytes > kMaxPtxWordBytes) return "its PTX has a word of more than " + std::to_string(kMaxPtxWordBytes) + " bytes";
      continue;
    }
    word_bytes = 0;
    if (c == '{' || c == '(' || c == '[') ++depth;
    if ((c == '}' || c == ')' || c == ']') && depth > 0) --depth;
    if (depth > kMaxPtxDepth) return "its PTX nests braces, brackets or parentheses deeper than " + std::to_string(kMaxPtxDepth);
    if (c == '"') at = std::min(text.find('"', at + 1), text.size());
    if (c != '/' || at + 1 == text.size()) continue;
    if (text[at + 1] == '/') at = std::min(text.find('\n', at), text.size());
    if (text.substr(at).starts_with("/*")) at = std::min(text.find("*/", at + 2), text.size() - 1) + 1;
  }
  return {};
}

}  // namespace mpsshim::image
