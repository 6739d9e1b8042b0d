// SPDX-License-Identifier: Apache-2.0
// Images with one thing wrong each. A load call takes a bare pointer and believes the image's own lengths, so each image lies in a buffer
// that is as long as it claims to be: what is missing reads as zeros.
#include "tests/process/programs/images.hpp"

#include <elf.h>

#include <cstring>
#include <functional>
#include <map>
#include <utility>

#include "tests/process/programs/driver.hpp"

namespace mpsshim::test {

namespace {

using Bytes = std::vector<unsigned char>;

constexpr std::size_t kSlackBytes = 64 * 1024;  // zeros behind every image

Bytes text(const std::string& ptx) { return {ptx.c_str(), ptx.c_str() + ptx.size() + 1}; }

std::string replaced(const std::string& what, const std::string& by) {
  std::string ptx = kPlainPtx;
  ptx.replace(ptx.find(what), what.size(), by);
  return ptx;
}

template <typename T>
void append(Bytes& bytes, T value) {
  const std::size_t at = bytes.size();
  bytes.resize(at + sizeof value);
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

// A fat binary with one PTX text, stored as it is (layout: proto/image/fatbin.cpp).
Bytes fatbin() {
  Bytes body = text(kPlainPtx);
  body.resize((body.size() + 7) / 8 * 8);
  constexpr std::uint32_t kEntryBytes = 64;
  Bytes bytes;
  append<std::uint32_t>(bytes, 0xba55ed50);
  append<std::uint16_t>(bytes, 1);
  append<std::uint16_t>(bytes, 16);
  append<std::uint64_t>(bytes, kEntryBytes + body.size());
  append<std::uint16_t>(bytes, 1);  // PTX
  append<std::uint16_t>(bytes, 0x101);
  append<std::uint32_t>(bytes, kEntryBytes);
  append<std::uint64_t>(bytes, body.size());
  append<std::uint64_t>(bytes, 0);            // not compressed, no options
  append<std::uint32_t>(bytes, 6 << 16 | 4);  // PTX 6.4
  append<std::uint32_t>(bytes, 75);
  append<std::uint64_t>(bytes, 0);     // no name
  append<std::uint64_t>(bytes, 0x11);  // 64 bits, Linux
  bytes.resize(16 + kEntryBytes);
  bytes.insert(bytes.end(), body.begin(), body.end());
  return bytes;
}

// The header of a cubin that says where its tables are; they are not there.
Bytes cubin_header() {
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_ident[EI_VERSION] = EV_CURRENT;
  header.e_ident[EI_OSABI] = 0x33;
  header.e_type = ET_EXEC;
  header.e_machine = 190;  // EM_CUDA
  header.e_version = 0x7c;
  header.e_shoff = 0x1000;
  header.e_flags = 75 << 16 | 75;
  header.e_ehsize = sizeof header;
  header.e_shentsize = sizeof(Elf64_Shdr);
  header.e_shnum = 12;
  header.e_shstrndx = 1;
  Bytes bytes;
  append(bytes, header);
  return bytes;
}

Bytes with_byte(Bytes bytes, std::size_t at, unsigned char value) {
  bytes.at(at) = value;
  return bytes;
}

Bytes cut(Bytes bytes, std::size_t length) {
  bytes.resize(length);
  return bytes;
}

Bytes garbage() {
  Bytes bytes(4096);
  unsigned state = 12345;
  for (unsigned char& byte : bytes) byte = static_cast<unsigned char>((state = state * 1664525u + 1013904223u) >> 24 | 1u);
  return bytes;
}

Bytes image_named(const std::string& name) {
  static const std::map<std::string, std::function<Bytes()>> kImages = {
      {"good_ptx", [] { return text(kPlainPtx); }},
      {"good_fatbin", [] { return fatbin(); }},
      {"other_ptx", [] { return text(std::string("// the same under another content\n") + kPlainPtx); }},
      {"empty", [] { return Bytes{0}; }},
      {"garbage", [] { return garbage(); }},
      {"words", [] { return text("this is no image at all"); }},
      {"ptx_cut", [] { return text(std::string(kPlainPtx).substr(0, std::strlen(kPlainPtx) / 2)); }},
      {"ptx_syntax", [] { return text(replaced("ld.param.u64 %rd1, [data];", "ld.param.u64 %rd1 [data;")); }},
      {"ptx_opcode", [] { return text(replaced("add.u32 %r7", "conjure.u32 %r7")); }},
      {"ptx_register", [] { return text(replaced("add.u32 %r7", "add.u32 %nosuch")); }},
      {"ptx_version", [] { return text(replaced(".version 6.4", ".version 99.0")); }},
      {"fatbin_header_alone", [] { return cut(fatbin(), 16); }},
      {"fatbin_cut", [] { return cut(fatbin(), 300); }},
      {"fatbin_entry_too_long", [] { return with_byte(fatbin(), 16 + 8 + 3, 0x7f); }},
      {"fatbin_lz4_without", [] { return with_byte(fatbin(), 16 + 40 + 1, 0x20); }},
      {"cubin_header_alone", [] { return cubin_header(); }},
      {"cubin_other_machine", [] { return with_byte(cubin_header(), 18, EM_X86_64); }},
  };
  // "ptx_of_X": a text like no other's.
  if (name.starts_with("ptx_of_")) return text("// " + name.substr(7) + "\n" + kPlainPtx);
  const auto found = kImages.find(name);
  require(found != kImages.end(), "no image " + name);
  return found->second();
}

}  // namespace

std::string load_image(const std::string& name) {
  Bytes image = image_named(name);
  image.resize(image.size() + kSlackBytes);
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  CU(cuModuleLoadData(&module, image.data()));
  CU(cuModuleGetFunction(&function, module, "add"));
  CU(cuModuleUnload(module));
  return "ok";
}

}  // namespace mpsshim::test
