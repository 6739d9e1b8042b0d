// SPDX-License-Identifier: Apache-2.0
//
// Images whose assertions are opened, of every generation of machine code that the nvcc at hand makes.
#include <elf.h>

#include <algorithm>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include "proto/image/assertion_record.hpp"
#include "proto/image/assertions.hpp"
#include "proto/image/check.hpp"
#include "proto/image/cubin.hpp"
#include "proto/image/elf.hpp"
#include "tests/support/catch.hpp"
#include "tests/unit/image/image_files.hpp"

using namespace mpsshim;
using namespace mpsshim::test;
using image::AssertionSite;
using Form = AssertionSite::Form;

namespace {

constexpr std::uint64_t kAddress = 0x7f65'4321'8980;

std::vector<unsigned> codes() {
  std::vector<unsigned> all;
  std::istringstream list(MPSSHIM_ASSERTING_CODES);
  for (std::string code; std::getline(list, code, ',');) all.push_back(static_cast<unsigned>(std::stoul(code)));
  return all;
}

// Of what a driver loads, against __assertfail.
std::size_t relocations_against_it(const Image& cubin) {
  const auto elf = image::ElfFile::read(cubin);
  std::size_t count = 0;
  for (const image::ElfSection& section : elf->sections()) {
    const bool has_addends = section.type == SHT_RELA;
    if ((!has_addends && section.type != SHT_REL) || section.name.find("debug") != std::string_view::npos) continue;
    for (std::size_t at = 0; at + 16 <= section.content.size(); at += has_addends ? 24 : 16) {
      std::uint64_t info = 0;
      std::memcpy(&info, section.content.data() + at + 8, 8);
      count += elf->symbols().at(ELF64_R_SYM(info)).name == "__assertfail" ? 1 : 0;
    }
  }
  return count;
}

template <class T>
T value_at(const Image& image, std::uint64_t offset) {
  T value{};
  std::memcpy(&value, image.data() + offset, sizeof value);
  return value;
}

void check_filled(const Image& filled, const AssertionSite& site) {
  const auto low = value_at<std::uint64_t>(filled, site.offset);
  const auto high = [&] { return value_at<std::uint64_t>(filled, site.offset + 8) & 0x1ffff; };
  switch (site.form) {
    case Form::address: CHECK(low == kAddress); break;
    case Form::low_half: CHECK(value_at<std::uint32_t>(filled, site.offset) == static_cast<std::uint32_t>(kAddress)); break;
    case Form::upper_half: CHECK(value_at<std::uint32_t>(filled, site.offset) == kAddress >> 32); break;
    case Form::call_47: CHECK((low >> 34 | high() << 30) == kAddress >> 2); break;
    case Form::call_55: CHECK(((low >> 16 & 0xff) | low >> 34 << 8 | high() << 38) == kAddress >> 2); break;
    case Form::digits: FAIL("machine code has no digits"); break;
  }
}

}  // namespace

TEST_CASE("machine code of every generation is opened, and nothing but its references to __assertfail changes") {
  const std::vector<unsigned> all = codes();
  REQUIRE(std::ranges::find(all, 90u) != all.end());
  for (const unsigned code : all) {
    for (const char* kind : {"asserting_", "asserting_debug_", "asserting_linked_"}) {
      const Image original = load_image(kind + std::to_string(code) + ".cubin");
      INFO(kind << code);
      REQUIRE(image::cubin_may_assert(original));
      const std::size_t references = relocations_against_it(original);
      REQUIRE(references != 0);
      Image opened = original;
      std::vector<AssertionSite> sites;
      std::string why;
      REQUIRE(image::open_assertions(opened, sites, why));
      CHECK(sites.size() == references);
      CHECK(relocations_against_it(opened) == 0);
      CHECK(image::what_is_wrong_with_elf(opened).empty());
      const auto before = image::read_cubin(original);
      const auto after = image::read_cubin(opened);
      REQUIRE(after);
      CHECK(after->kernels.size() == before->kernels.size());
      CHECK(after->variables.size() == before->variables.size());

      Image filled = opened;
      REQUIRE(image::fill_assertions(filled, sites, kAddress));
      for (const AssertionSite& site : sites) check_filled(filled, site);
      std::size_t changed = 0;
      for (std::size_t i = 0; i < filled.size(); ++i) changed += filled[i] != opened[i] ? 1 : 0;
      CHECK(changed <= 8 * sites.size());
      CHECK_FALSE(image::fill_assertions(filled, sites, kAddress));  // filled once
    }
  }
}

TEST_CASE("whole programs have it in a bank of constants, linked ones in their calls") {
  const auto forms_of = [](const std::string& name) {
    Image cubin = load_image(name);
    std::vector<AssertionSite> sites;
    std::string why;
    REQUIRE(image::open_assertions(cubin, sites, why));
    std::vector<Form> forms;
    for (const AssertionSite& site : sites) forms.push_back(site.form);
    return forms;
  };
  CHECK(forms_of("asserting_75.cubin") == std::vector{Form::address});
  CHECK(forms_of("asserting_90.cubin") == std::vector{Form::address});
  CHECK(forms_of("asserting_linked_80.cubin") == std::vector{Form::call_47});
  CHECK(forms_of("asserting_linked_90.cubin") == std::vector{Form::call_55});
}

TEST_CASE("code that has none, or of another form, is not opened") {
  CHECK_FALSE(image::cubin_may_assert(load_image("references.cubin")));
  Image cubin = load_image("asserting_90.cubin");
  // A kind of relocation that nobody knows.
  const auto elf = image::ElfFile::read(cubin);
  bool is_changed = false;
  for (const image::ElfSection& section : elf->sections()) {
    if (section.name != ".rela.nv.constant4") continue;
    for (std::size_t at = 0; at + 24 <= section.content.size(); at += 24) {
      const auto offset = static_cast<std::size_t>(section.content.data() - cubin.data()) + at + 8;
      auto info = value_at<std::uint64_t>(cubin, offset);
      if (elf->symbols().at(ELF64_R_SYM(info)).name != "__assertfail") continue;
      info = ELF64_R_INFO(ELF64_R_SYM(info), 0x77u);
      std::memcpy(cubin.data() + offset, &info, sizeof info);
      is_changed = true;
    }
  }
  REQUIRE(is_changed);
  std::vector<AssertionSite> sites;
  std::string why;
  CHECK_FALSE(image::open_assertions(cubin, sites, why));
  CHECK(why == "it has a relocation of kind 119 against __assertfail");
}

TEST_CASE("sites that are not the image's own are not filled") {
  Image bytes(64, std::byte{0});
  for (const Form form : {Form::address, Form::low_half, Form::upper_half, Form::call_47, Form::call_55}) {
    Image copy = bytes;
    CHECK(image::fill_assertions(copy, std::vector{AssertionSite{form, 48}}, kAddress));
    CHECK_FALSE(image::fill_assertions(bytes, std::vector{AssertionSite{form, 61}}, kAddress));
    CHECK_FALSE(image::fill_assertions(bytes, std::vector{AssertionSite{form, ~std::uint64_t{0} - 3}}, kAddress));
  }
  CHECK_FALSE(image::fill_assertions(bytes, std::vector{AssertionSite{Form::digits, 0}}, kAddress));
}

TEST_CASE("a text gets a function of that name in place of the declaration") {
  const Image ptx = load_image("kernels.ptx");
  REQUIRE(image::ptx_may_assert(as_text(ptx)));
  std::vector<AssertionSite> sites;
  std::string why;
  const std::string opened = image::open_assertions(as_text(ptx), sites, why);
  REQUIRE_FALSE(opened.empty());
  REQUIRE(sites.size() == 1);
  CHECK(sites[0].form == Form::digits);
  CHECK(opened.find(".func __assertfail(.param") != std::string::npos);
  CHECK(opened.find("@ENTRY@") == std::string::npos);
  Image filled(opened.size());
  std::memcpy(filled.data(), opened.data(), opened.size());
  REQUIRE(image::fill_assertions(filled, sites, kAddress));
  CHECK(as_text(filled).substr(sites[0].offset - 2, 18) == "0x00007f6543218980");

  CHECK(image::open_assertions(opened, sites, why).empty());  // declared no more
  const std::string twice = std::string(as_text(ptx)) + "\n.extern .func __assertfail;\n";
  CHECK(image::open_assertions(twice, sites, why).empty());
}
