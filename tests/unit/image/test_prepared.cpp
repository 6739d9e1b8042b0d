// SPDX-License-Identifier: Apache-2.0
// What the compiler process makes of images, and the file by which it says so, which its reader must not believe.
#include <cstring>
#include <random>

#include <elf.h>
#include <unistd.h>

#include "broker/compiler/prepared_file.hpp"
#include "image_files.hpp"
#include "prepared_images.hpp"
#include "proto/image/check.hpp"
#include "proto/image/image.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim;
using namespace mpsshim::broker;
using namespace mpsshim::test;

namespace {

ImageBytes text_of(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text.c_str(), text.size() + 1));
  return ImageBytes(Image(bytes.begin(), bytes.end()));
}

// The same file, sealed anew, with other content.
proto::FileDescriptor file_of(std::span<const std::byte> content) {
  proto::FileDescriptor file = proto::create_memory_file("test-prepared", content.size());
  REQUIRE(pwrite(file.get(), content.data(), content.size(), 0) == static_cast<ssize_t>(content.size()));
  REQUIRE(proto::seal(file, proto::Seal::content));
  return file;
}

}  // namespace

TEST_CASE("nothing is wrong with what compilers make") {
  for (const char* name : {"kernels.cubin", "variables.cubin", "managed.cubin", "managed_80.cubin", "managed_debug.cubin", "pointers.cubin",
                           "pointers_75.cubin", "pointers_parts.cubin", "tables.cubin", "heap.cubin", "references.cubin", "references_75.cubin"}) {
    if (!image_exists(name)) continue;
    INFO(name);
    CHECK(image::what_is_wrong_with_elf(load_image(name)).empty());
  }
  for (const char* name : {"managed.ptx", "pointers.ptx", "tables.ptx", "heap.ptx", "kernels.ptx", "variables.ptx"}) {
    INFO(name);
    CHECK(image::what_is_wrong_with_ptx(as_text(load_image(name))).empty());
  }
  for (const char* name : {"default.fatbin", "variables.fatbin", "several.fatbin", "cubin_only.fatbin", "relocatable.fatbin", "uncompressed.fatbin",
                           "speed.fatbin", "size.fatbin"}) {
    if (!image_exists(name)) continue;
    INFO(name);
    const Preparation made = prepared_of(bytes_of(load_image(name)), 80);
    INFO(made.log);
    CHECK((made.status == CUDA_SUCCESS || made.log.find("not_built_in") != std::string::npos));
  }
}

TEST_CASE("machine code whose tables lead outside is refused") {
  Image image = load_image("kernels.cubin");
  Elf64_Ehdr header;
  std::memcpy(&header, image.data(), sizeof header);
  const auto section = [&](std::size_t number) { return reinterpret_cast<Elf64_Shdr*>(image.data() + header.e_shoff) + number; };
  const auto of_type = [&](std::uint32_t type) {
    for (std::size_t i = 0; i < header.e_shnum; ++i) {
      if (section(i)->sh_type == type) return section(i);
    }
    return section(0);
  };
  Elf64_Shdr* const symbols = of_type(SHT_SYMTAB);
  const auto first_symbol = reinterpret_cast<Elf64_Sym*>(image.data() + symbols->sh_offset) + 1;
  std::string wrong;
  SECTION("a section beyond the end") {
    symbols->sh_size = image.size();
    wrong = "lies outside the file";
  }
  SECTION("a section whose end overflows") {
    symbols->sh_size = ~std::uint64_t{0} - 8;
    wrong = "lies outside the file";
  }
  SECTION("a table of names that does not exist") {
    symbols->sh_link = header.e_shnum;
    wrong = "belongs to one that does not exist";
  }
  SECTION("a name beyond its table") {
    first_symbol->st_name = 0x7fffffff;
    wrong = "has a symbol whose name lies outside";
  }
  SECTION("a symbol of no section") {
    first_symbol->st_shndx = static_cast<std::uint16_t>(header.e_shnum + 1);
    wrong = "has a symbol in a section that does not exist";
  }
  SECTION("headers beyond the end") {
    header.e_shoff = image.size();
    std::memcpy(image.data(), &header, sizeof header);
    wrong = "its ELF tables are cut off";
  }
  CHECK(image::what_is_wrong_with_elf(image).find(wrong) != std::string::npos);
  const Preparation made = prepared_of(bytes_of(image));
  CHECK(made.status == CUDA_ERROR_INVALID_IMAGE);
  CHECK(made.log.find(wrong) != std::string::npos);
}

TEST_CASE("texts of a shape that no compiler makes are refused") {
  const std::string begin = ".version 7.0\n.target sm_50\n.address_size 64\n";
  const auto status_of = [&](const std::string& rest) { return prepared_of(text_of(begin + rest)).status; };
  CHECK(status_of(std::string(image::kMaxPtxDepth, '{')) == CUDA_SUCCESS);
  CHECK(status_of(std::string(image::kMaxPtxDepth + 1, '{')) == CUDA_ERROR_INVALID_PTX);
  CHECK(status_of(std::string(image::kMaxPtxDepth + 1, '(')) == CUDA_ERROR_INVALID_PTX);
  CHECK(status_of(std::string(image::kMaxPtxWordBytes, 'a')) == CUDA_SUCCESS);
  CHECK(status_of(std::string(image::kMaxPtxWordBytes + 1, 'a')) == CUDA_ERROR_INVALID_PTX);
  CHECK(status_of("//" + std::string(2 * image::kMaxPtxWordBytes, 'a')) == CUDA_SUCCESS);
}

TEST_CASE("what is prepared arrives as it was") {
  const auto [name, compute] = GENERATE(table<std::string, unsigned>({{"default.fatbin", 80},
                                                                      {"default.fatbin", 90},
                                                                      {"variables.fatbin", 80},
                                                                      {"kernels.cubin", 90},
                                                                      {"variables.cubin", 90},
                                                                      {"managed.cubin", 90},
                                                                      {"managed.ptx", 90},
                                                                      {"atomics_90.cubin", 90},
                                                                      {"atomics.ptx", 90},
                                                                      {"variables.ptx", 90}}));
  INFO(name << " for " << compute);
  const Image content = load_image(name);
  const ImageBytes image = bytes_of(content);
  const Preparation made = prepared_of(image, compute);
  INFO(made.log);
  REQUIRE(made.status == CUDA_SUCCESS);
  const proto::FileDescriptor file = write_prepared(made, image);
  REQUIRE(file.valid());
  Preparation read;
  const ImageBytes elsewhere = bytes_of(content);  // the executor's own mapping
  REQUIRE(read_prepared(file, elsewhere, read));
  CHECK(read.status == CUDA_SUCCESS);
  CHECK(std::ranges::equal(read.image.content.bytes(), made.image.content.bytes()));
  CHECK(lies_in(read.image.content, elsewhere) == lies_in(made.image.content, image));
  REQUIRE(read.image.inputs.size() == made.image.inputs.size());
  for (std::size_t i = 0; i < read.image.inputs.size(); ++i) {
    CHECK(read.image.inputs[i].type == made.image.inputs[i].type);
    CHECK(std::ranges::equal(read.image.inputs[i].bytes.bytes(), made.image.inputs[i].bytes.bytes()));
  }
  CHECK(read.image.has_writable_globals == made.image.has_writable_globals);
  CHECK(read.image.takes_code_addresses == made.image.takes_code_addresses);
  CHECK(read.image.code_takes_addresses == made.image.code_takes_addresses);
  CHECK(read.image.adds_for_system == made.image.adds_for_system);
  CHECK(read.image.adds_for_system == name.starts_with("atomics"));
  CHECK(read.image.printing_kernels == made.image.printing_kernels);
  REQUIRE(read.image.variables.has_value() == made.image.variables.has_value());
  if (read.image.variables) {
    REQUIRE(read.image.variables->size() == made.image.variables->size());
    for (std::size_t i = 0; i < read.image.variables->size(); ++i) {
      CHECK(read.image.variables->at(i).name == made.image.variables->at(i).name);
      CHECK(read.image.variables->at(i).offset_bytes == made.image.variables->at(i).offset_bytes);
      CHECK(read.image.variables->at(i).starts_as_zeroes == made.image.variables->at(i).starts_as_zeroes);
    }
  }
  REQUIRE(read.image.managed.size() == made.image.managed.size());
  for (std::size_t i = 0; i < read.image.managed.size(); ++i) CHECK(read.image.managed[i].name == made.image.managed[i].name);
}

TEST_CASE("where assertions were opened arrives as it was, and only if it was asked for") {
  const auto [name, runs_texts] = GENERATE(table<const char*, bool>({{"asserting_90.cubin", false}, {"kernels.ptx", true}}));
  INFO(name);
  const ImageBytes image = bytes_of(load_image(name));
  CHECK(prepared_of(image, 90, runs_texts).image.assertion_sites.empty());
  Preparation made = prepared_of(image, 90, runs_texts, true);
  INFO(made.log << made.image.why_assertions_fault);
  REQUIRE(made.status == CUDA_SUCCESS);
  REQUIRE(!made.image.assertion_sites.empty());
  made.image.why_assertions_fault = "a part of it\nstays";
  Preparation read;
  REQUIRE(read_prepared(write_prepared(made, image), image, read));
  CHECK(std::ranges::equal(read.image.content.bytes(), made.image.content.bytes()));
  CHECK(read.image.why_assertions_fault == "a part of it stays");
  REQUIRE(read.image.assertion_sites.size() == made.image.assertion_sites.size());
  for (std::size_t i = 0; i < read.image.assertion_sites.size(); ++i) {
    CHECK(read.image.assertion_sites[i].form == made.image.assertion_sites[i].form);
    CHECK(read.image.assertion_sites[i].offset == made.image.assertion_sites[i].offset);
  }
}

TEST_CASE("why an image is refused arrives in one line") {
  Preparation made;
  made.status = CUDA_ERROR_INVALID_IMAGE;
  made.log = "kernel 'a\n[2026-01-01 Control 1] forged\x7f\x1b[2J'";
  Preparation read;
  REQUIRE(read_prepared(write_prepared(made, {}), {}, read));
  CHECK(read.status == CUDA_ERROR_INVALID_IMAGE);
  CHECK(read.log == "kernel 'a [2026-01-01 Control 1] forged  [2J'");
}

TEST_CASE("a file that lies is refused, or leads nowhere but into itself and its image") {
  const ImageBytes image = bytes_of(load_image(GENERATE("variables.fatbin", "managed.ptx", "variables.cubin")));
  const proto::FileDescriptor good = write_prepared(prepared_of(image), image);
  const ImageBytes whole = map_sealed(good);
  REQUIRE(!whole.empty());
  const Image content(whole.bytes().begin(), whole.bytes().end());
  std::mt19937_64 random(1);
  int refused = 0;
  for (int i = 0; i < 3'000; ++i) {
    Image changed = content;
    const std::size_t changes = 1 + random() % 4;
    for (std::size_t change = 0; change < changes; ++change) {
      // The description is at the beginning.
      const std::size_t at = random() % std::min<std::size_t>(changed.size(), 400);
      changed[at] = static_cast<std::byte>(random() % 3 == 0 ? 0xff : random());
    }
    const proto::FileDescriptor file = file_of(changed);
    const ImageBytes bytes = map_sealed(file);
    Preparation read;
    if (!read_prepared(file, image, read)) {
      ++refused;
      continue;
    }
    std::size_t sum = 0;
    for (const std::byte byte : read.image.content.bytes()) sum += static_cast<std::size_t>(byte);
    for (const LinkInput& input : read.image.inputs) {
      for (const std::byte byte : input.bytes.bytes()) sum += static_cast<std::size_t>(byte);
    }
    if (read.status == CUDA_SUCCESS && !read.image.content.empty()) REQUIRE(ends_within(read.image.content));
  }
  CHECK(refused > 100);
  for (std::size_t size = 0; size < std::min<std::size_t>(content.size(), 300); size += 7) {
    Image cut(content.begin(), content.begin() + static_cast<std::ptrdiff_t>(size));
    Preparation read;
    if (!cut.empty()) (void)read_prepared(file_of(cut), image, read);
  }
}

TEST_CASE("a file that could still change is not read") {
  const ImageBytes image = bytes_of(load_image("kernels.cubin"));
  const ImageBytes whole = map_sealed(write_prepared(prepared_of(image), image));
  proto::FileDescriptor file = proto::create_memory_file("test-prepared", whole.size());
  REQUIRE(pwrite(file.get(), whole.data(), whole.size(), 0) == static_cast<ssize_t>(whole.size()));
  Preparation read;
  CHECK(!read_prepared(file, image, read));
  REQUIRE(proto::seal(file, proto::Seal::size));
  CHECK(!read_prepared(file, image, read));
}
