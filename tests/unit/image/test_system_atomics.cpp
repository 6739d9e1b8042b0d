// SPDX-License-Identifier: Apache-2.0
// Which of the kernels in system_atomics.cu have atomic operations that exclude the host's: each by itself, the others' code is blanked.
#include <elf.h>
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <map>
#include <string>

#include "broker/compiler/image_contents.hpp"
#include "image_files.hpp"
#include "proto/image/cubin.hpp"
#include "proto/image/elf.hpp"
#include "proto/image/ptx_text.hpp"
#include "tests/support/catch.hpp"

namespace mpsshim::image {
namespace {

using test::Image;

// By the kernels' names.
std::map<std::string, Image> kernels_alone(const Image& cubin) {
  constexpr std::string_view kText = ".text.";
  const auto elf = ElfFile::read(cubin);
  REQUIRE(elf);
  std::map<std::string, Image> alone;
  for (const ElfSection& kept : elf->sections()) {
    if (!kept.name.starts_with(kText)) continue;
    Image& image = alone[std::string(kept.name.substr(kText.size()))];
    image = cubin;
    for (const ElfSection& section : elf->sections()) {
      if (&section == &kept || !section.name.starts_with(kText)) continue;
      std::fill_n(image.begin() + (section.content.data() - cubin.data()), section.content.size(), std::byte{0});
    }
  }
  return alone;
}

bool is_for_system(const std::string& kernel) { return kernel.starts_with("system_"); }

bool adds_for_system(const Image& cubin) {
  const auto info = read_cubin(cubin);
  REQUIRE(info);
  return info->adds_for_system;
}

}  // namespace

TEST_CASE("machine code: atomic operations that exclude the host's are known in all their forms, optimized or not") {
  const std::string code = GENERATE("75", "80", "86", "89", "90", "100", "103", "110", "120");
  const std::string kind = GENERATE("", "debug_");
  const std::string file = "atomics_" + kind + code + ".cubin";
  if (!test::image_exists(file)) MPSSHIM_SKIP("this nvcc cannot make " + file);
  INFO(file);
  const Image image = test::load_image(file);
  CHECK(adds_for_system(image));
  const auto alone = kernels_alone(image);
  CHECK(std::ranges::count_if(alone, [](const auto& one) { return is_for_system(one.first); }) >= 9);
  for (const auto& [kernel, cubin] : alone) {
    INFO(kernel);
    CHECK(adds_for_system(cubin) == is_for_system(kernel));
  }
}

TEST_CASE("machine code of an architecture that is not known may have such operations") {
  Image image = kernels_alone(test::load_image("atomics_90.cubin")).at("plain_orders");
  CHECK(!adds_for_system(image));
  Elf64_Ehdr header;
  std::memcpy(&header, image.data(), sizeof header);
  header.e_flags = 0;
  std::memcpy(image.data(), &header, sizeof header);
  CHECK(adds_for_system(image));
}

TEST_CASE("images without atomic operations that exclude the host's") {
  for (const char* file : {"kernels.cubin", "variables.cubin", "heap.cubin", "managed.cubin", "uses_75.cubin", "uses_80.cubin", "uses_90.cubin"}) {
    INFO(file);
    CHECK(!adds_for_system(test::load_image(file)));
  }
  for (const char* file : {"kernels.ptx", "variables.ptx", "heap.ptx", "uses.ptx"}) {
    INFO(file);
    CHECK(!ptx_adds_for_system(test::as_text(test::load_image(file))));
  }
}

TEST_CASE("texts: atomic operations that exclude the host's") {
  constexpr std::string_view kEntry = ".entry ";
  const Image image = test::load_image("atomics.ptx");
  const std::string_view text = test::as_text(image);
  CHECK(ptx_adds_for_system(text));
  int kernels = 0;
  for (std::size_t at = text.find(kEntry); at != std::string_view::npos; ++kernels) {
    const std::size_t next = text.find(kEntry, at + 1);
    const std::string_view entry = text.substr(at, next - at);
    const std::string name(entry.substr(kEntry.size(), entry.find('(') - kEntry.size()));
    INFO(name);
    CHECK(ptx_adds_for_system(entry) == is_for_system(name));
    at = next;
  }
  CHECK(kernels >= 30);
  const auto adds = [](const std::string& instructions) { return ptx_adds_for_system(".version 9.0 .entry k() { " + instructions + " ret; }"); };
  CHECK(adds("atom.global.sys.add.u32 %r1, [%rd1], 1;"));
  CHECK(adds("atom.add.acquire.sys.s32 %r1, [%rd1], %r2;"));
  CHECK(adds("@!%p1 red.relaxed.sys.global.add.u32 [%rd1], %r2;"));
  CHECK(adds("red.async.mmio.release.sys.global.add.u32 [%rd1], %r2;"));
  CHECK(adds("atom.global.sys.v2.f32.add {%f1, %f2}, [%rd1], {%f3, %f4};"));
  CHECK(adds("again:red /* all */ .sys\n.add.u32 [%rd1], 1;"));
  CHECK(!adds("atom.global.add.u32 %r1, [%rd1], 1; fence.sc.sys; membar.sys;"));
  CHECK(!adds("red.global.gpu.add.u32 [%rd1], 1; ld.acquire.sys.u32 %r1, [%rd1]; st.relaxed.sys.u32 [%rd1], %r1;"));
  CHECK(!adds("st.relaxed.sys.u32 [red], %r1; // atom.sys"));
  CHECK(!adds("atom.shared::cta.sys.add.u32 %r1, [%r2], 1;"));
  CHECK(!ptx_adds_for_system(".entry k(.param .u64 red) { ld.acquire.sys.u32 %r1, [%rd1]; }"));
  CHECK(!ptx_adds_for_system("red"));
  CHECK(!ptx_adds_for_system(""));
}

TEST_CASE("one variant of several with such operations is enough") {
  broker::PreparedImage prepared;
  broker::PreparedImage other;
  broker::note_contents_of_cubin(test::load_image("kernels.cubin"), prepared);
  broker::note_contents_of_cubin(test::load_image("kernels.cubin"), other);
  broker::add_contents_of_variant(other, prepared);
  CHECK(!prepared.adds_for_system);
  broker::note_contents_of_cubin(test::load_image("atomics_90.cubin"), other);
  broker::add_contents_of_variant(other, prepared);
  CHECK(prepared.adds_for_system);
}

}  // namespace mpsshim::image
