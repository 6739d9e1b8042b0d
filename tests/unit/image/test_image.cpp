// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "image_files.hpp"
#include "proto/image/cubin.hpp"
#include "proto/image/elf.hpp"
#include "proto/image/fatbin.hpp"
#include "proto/image/image.hpp"
#include "proto/image/managed.hpp"
#include "proto/image/ptx_text.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::image;
using namespace mpsshim::test;

namespace {

constexpr std::size_t kLimit = 64u << 20;

std::vector<FatbinEntry> entries_of(const Image& image) {
  std::vector<FatbinEntry> entries;
  REQUIRE(read_fatbin(image, entries));
  return entries;
}

const FatbinEntry& first(const std::vector<FatbinEntry>& entries, EntryKind kind) {
  const auto found = std::find_if(entries.begin(), entries.end(), [kind](const auto& entry) { return entry.is(kind); });
  REQUIRE(found != entries.end());
  return *found;
}

Image unpacked(const FatbinEntry& entry) {
  Image bytes;
  REQUIRE(unpack(entry, kLimit, bytes) == UnpackError::none);
  return bytes;
}

void check_layouts(const CubinInfo& info) {
  const auto kernel = [&info](const char* name) {
    const auto found = std::find_if(info.kernels.begin(), info.kernels.end(), [&](const auto& k) { return k.name == name; });
    REQUIRE(found != info.kernels.end());
    return *found;
  };
  CHECK(kernel("no_parameters").parameters.empty());
  const KernelLayout mixed = kernel("mixed_parameters");
  const std::vector<std::pair<unsigned, unsigned>> expected{{0, 8}, {8, 24}, {32, 1}, {36, 12}, {48, 2}, {56, 8}};
  REQUIRE(mixed.parameters.size() == expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CHECK(mixed.parameters[i].offset == expected[i].first);
    CHECK(mixed.parameters[i].size == expected[i].second);
  }
  CHECK(mixed.parameter_bytes == 64);
  const KernelLayout large = kernel("large_parameter");
  REQUIRE(large.parameters.size() == 2);
  CHECK(large.parameters[1].offset == 8);
  CHECK(large.parameters[1].size == 20001);
  CHECK(large.static_shared_bytes >= 132);
  CHECK(large.max_threads[0] == 128);
}

}  // namespace

TEST_CASE("the version of a PTX text") {
  CHECK(ptx_version(".version 9.0\n.target sm_75") == 90);
  CHECK(ptx_version("// of CUDA 4\n\t.version 1.4\n") == 14);
  CHECK(ptx_version("/* */ .version  8.7") == 87);
  CHECK(ptx_version(".version") == 0);
  CHECK(ptx_version(".version 99999999999999999999.1") >= kOldestLinkedPtx);
  CHECK(ptx_version(".target sm_75") == 0);
  CHECK(ptx_version("") == 0);
}

TEST_CASE("every form is recognised, with its length") {
  const struct {
    const char* file;
    Form form;
  } cases[] = {{"default.fatbin", Form::fatbin}, {"kernels.cubin", Form::elf}, {"kernels.ptx", Form::ptx}};
  for (const auto& c : cases) {
    INFO(c.file);
    Image image = load_image(c.file);
    const std::size_t size = image.size();
    CHECK(form_of(image) == c.form);
    CHECK(length_of(image) == size);
    image.push_back(std::byte{0});  // ends a text; must not count for the others
    const Extent extent = extent_of(image.data());
    CHECK(extent.form == c.form);
    CHECK(extent.bytes == size + (c.form == Form::ptx ? 1 : 0));
  }
  CHECK(extent_of("!<arch>\nmore").form == Form::archive);
  CHECK(extent_of("").form == Form::unknown);
  CHECK(extent_of("a").form == Form::unknown);
  CHECK(extent_of("// comment\n/* another */\n  .version 9.0").form == Form::ptx);
  CHECK(extent_of(nullptr).form == Form::unknown);
}

TEST_CASE("wrappers lead to their containers") {
  const Image linked = load_image("cubin_only.fatbin");
  const Image object = load_image("relocatable.fatbin");
  const void* const others[] = {object.data(), object.data(), nullptr};
  FatbinWrapper wrapper;
  wrapper.data = linked.data();
  CHECK(extent_of(&wrapper).form == Form::fatbin_wrapper);
  REQUIRE(containers_of(&wrapper).size() == 1);
  CHECK(containers_of(&wrapper)[0].size() == linked.size());
  wrapper.version = FatbinWrapper::kLinked;
  wrapper.others = others;
  REQUIRE(containers_of(&wrapper).size() == 3);
  CHECK(containers_of(&wrapper)[2].data() == object.data());
  CHECK(containers_of(linked.data()).empty());
}

TEST_CASE("entries of every kind of compression unpack to the same text") {
  const struct {
    const char* file;
    bool may_be_missing;
  } cases[] = {{"default.fatbin", false}, {"uncompressed.fatbin", false}, {"speed.fatbin", true}, {"size.fatbin", true}};
  for (const auto& c : cases) {
    INFO(c.file);
    if (c.may_be_missing && !image_exists(c.file)) continue;
    const Image image = load_image(c.file);
    const auto entries = entries_of(image);
    REQUIRE(entries.size() == 2);
    const Image ptx = unpacked(first(entries, EntryKind::ptx));
    CHECK(form_of(ptx) == Form::ptx);
    CHECK(as_text(ptx).find("mixed_parameters") != std::string_view::npos);
    const Image cubin = unpacked(first(entries, EntryKind::elf));
    CHECK(form_of(cubin) == Form::elf);
    const auto info = read_cubin(cubin);
    REQUIRE(info);
    check_layouts(*info);
    CHECK(first(entries, EntryKind::ptx).architecture == 80);
  }
}

TEST_CASE("a container says which architectures it holds") {
  const Image image = load_image("several.fatbin");
  std::vector<unsigned> ptx;
  std::vector<unsigned> elf;
  for (const auto& entry : entries_of(image)) (entry.is(EntryKind::ptx) ? ptx : elf).push_back(entry.architecture);
  std::sort(ptx.begin(), ptx.end());
  std::sort(elf.begin(), elf.end());
  CHECK(ptx == std::vector<unsigned>{75, 90});
  CHECK(elf == std::vector<unsigned>{75, 90});
  const Image bare = load_image("cubin_only.fatbin");
  for (const auto& entry : entries_of(bare)) CHECK(entry.is(EntryKind::elf));
  const Image relocatable = load_image("relocatable.fatbin");
  CHECK(first(entries_of(relocatable), EntryKind::ptx).options.find("compile-only") != std::string_view::npos);
}

TEST_CASE("layouts of a cubin and whether it has variables") {
  const auto plain = read_cubin(load_image("kernels.cubin"));
  REQUIRE(plain);
  check_layouts(*plain);
  CHECK(!plain->has_writable_globals);  // texts for printf and assert only
  const auto variables = read_cubin(load_image("variables.cubin"));
  REQUIRE(variables);
  CHECK(variables->has_writable_globals);
}

TEST_CASE("tables of mathematical functions are nobody's variables") {
  const Image text = load_image("tables.ptx");
  REQUIRE(as_text(text).find("__cudart_") != std::string_view::npos);
  CHECK(!read_cubin(load_image("tables.cubin"))->has_writable_globals);
  CHECK(!ptx_has_writable_globals(as_text(text)));
}

TEST_CASE("which kernels of an image use the device's heap") {
  const auto info = read_cubin(load_image("heap.cubin"));
  REQUIRE(info->kernels.size() > 1);
  CHECK(!info->all_may_use_device_heap);
  for (const KernelLayout& kernel : info->kernels) CHECK(kernel.uses_device_heap == (kernel.name == "allocates"));
  CHECK(ptx_heap_kernels(as_text(load_image("heap.ptx"))) == std::vector<std::string>{"allocates"});
  CHECK(ptx_heap_kernels(as_text(load_image("variables.ptx"))).empty());
  constexpr char kPlain[] = ".extern .func malloc(); .func f() { call malloc, (); } .entry a() { call f, (); } .entry b() { ret; }";
  CHECK(ptx_heap_kernels(kPlain) == std::vector<std::string>{"a"});
  constexpr char kByPointer[] = ".extern .func malloc(); .func f() { call malloc, (); } .entry a() { call %rd1, (), p; } .entry b() { ret; }";
  CHECK(ptx_heap_kernels(kByPointer) == std::vector<std::string>{"a"});
}

TEST_CASE("whether an image uses the device's heap") {
  CHECK(!read_cubin(load_image("variables.cubin"))->uses_device_heap);
  CHECK(read_cubin(load_image("heap.cubin"))->uses_device_heap);
  CHECK(!ptx_uses_device_heap(as_text(load_image("variables.ptx"))));
  CHECK(ptx_uses_device_heap(as_text(load_image("heap.ptx"))));
  CHECK(!ptx_uses_device_heap(".version 9.0 .extern .func f; .entry malloc() { ret; } // .extern malloc"));
  CHECK(ptx_uses_device_heap(".version 9.0 .extern .func (.param .b32 r) __cudaCDP2Malloc(.param .b64 p, .param .b64 n);"));
}

TEST_CASE("whether kernels may have left addresses of an image's functions in memory") {
  CHECK(!read_cubin(load_image("kernels.cubin"))->takes_code_addresses);
  CHECK(!read_cubin(load_image("variables.cubin"))->takes_code_addresses);
  CHECK(!read_cubin(load_image("pointers.cubin"))->takes_code_addresses);  // small numbers
  CHECK(!read_cubin(load_image("pointers_75.cubin"))->takes_code_addresses);
  CHECK(read_cubin(load_image("pointers_parts.cubin"))->takes_code_addresses);
  CHECK(read_cubin(load_image("pointers_parts.cubin"))->code_takes_addresses);
  for (const char* image : {"function_table_75.cubin", "function_table_80.cubin", "function_table_90.cubin"}) {
    INFO(image);
    CHECK(read_cubin(load_image(image))->takes_code_addresses);
    CHECK(!read_cubin(load_image(image))->code_takes_addresses);  // its code calls: by name, and by what the table holds
  }
  CHECK(!ptx_takes_code_addresses(".version 9.0 .entry func() { ret; } // .func"));
  CHECK(ptx_takes_code_addresses(as_text(load_image("pointers.ptx"))));
  CHECK(ptx_code_takes_addresses(as_text(load_image("pointers.ptx"))));
  CHECK(!ptx_code_takes_addresses(as_text(load_image("function_table.ptx"))));
  constexpr std::string_view kTable = ".version 9.0 .func f() { ret; } .global .u64 t[1] = {f}; .entry k() { call.uni f; mov.u64 %r, t; ret; } // f";
  CHECK(!ptx_code_takes_addresses(kTable));
  CHECK(ptx_code_takes_addresses(".version 9.0 .func f() { ret; } .entry k() { mov.u64 %r, f; ret; }"));
  CHECK(ptx_code_takes_addresses(".version 9.0 .entry one() { ret; } .entry two() { call f; mov.u64 %r, one; ret; }"));
}

TEST_CASE("managed variables of a cubin are given addresses") {
  const char* const file = GENERATE("managed.cubin", "managed_80.cubin", "managed_debug.cubin");
  Image cubin = load_image(file);
  const auto variables = managed_of_cubin(cubin);
  REQUIRE(variables.size() == 2);
  const auto is_counter = [](const ManagedVariable& one) { return one.name == "shared_counter"; };
  const auto counter = std::find_if(variables.begin(), variables.end(), is_counter);
  const auto table = std::find_if_not(variables.begin(), variables.end(), is_counter);
  REQUIRE(counter != variables.end());
  CHECK((counter->size_bytes == 4 && !counter->starts_as_zeroes));
  CHECK((table->name == "shared_table" && table->size_bytes == 800 && table->starts_as_zeroes));

  const std::uint64_t counter_at = 0x2345'6780'1230, table_at = 0x2345'9abc'de00;
  std::string why;
  Image refused = cubin;
  CHECK(!place_in_cubin(refused, std::vector<Placement>{{"shared_counter", counter_at}}, why));
  CHECK(why.find("shared_table has no place") != std::string::npos);
  REQUIRE(place_in_cubin(cubin, std::vector<Placement>{{"shared_counter", counter_at}, {"shared_table", table_at}}, why));
  CHECK(managed_of_cubin(cubin).empty());
  CHECK(read_cubin(cubin)->variables.size() == 2);  // ordinary ones now
  const auto elf = ElfFile::read(cubin);
  REQUIRE(elf);
  // The addresses stand in the code or in the bank of addresses, whole or in halves.
  const auto holds = [&](const auto& value) {
    const auto bytes = std::as_bytes(std::span(&value, 1));
    return std::any_of(elf->sections().begin(), elf->sections().end(), [&](const ElfSection& section) {
      return (section.name.starts_with(".text") || section.name == ".nv.constant4") &&
             std::search(section.content.begin(), section.content.end(), bytes.begin(), bytes.end()) != section.content.end();
    });
  };
  for (const std::uint64_t address : {counter_at, table_at}) {
    const auto low = static_cast<std::uint32_t>(address), high = static_cast<std::uint32_t>(address >> 32);
    CHECK((holds(address) || (holds(low) && holds(high))));
  }
}

TEST_CASE("managed variables of a text are given addresses") {
  const Image file = load_image("managed.ptx");
  const auto variables = managed_of_ptx(as_text(file));
  REQUIRE(variables.size() == 2);
  CHECK((variables[0].name == "shared_counter" && variables[0].size_bytes == 4 && !variables[0].starts_as_zeroes));
  CHECK((variables[1].name == "shared_table" && variables[1].size_bytes == 800 && variables[1].starts_as_zeroes));
  const char text[] =
      ".version 9.0\n.global .attribute( .managed ) .align 8 .v2 .u64 a[3][2] = {1}; // a\n.global .u32 ab;\n"
      ".entry k() { mov.u64 %rd1, a; ld.global.u32 %r1, [a+4]; st.global.u32 [ab], %r1; }";
  const auto found = managed_of_ptx(text);
  REQUIRE(found.size() == 1);
  CHECK(found[0].size_bytes == 96);
  const std::string placed = place_in_ptx(text, std::vector<Placement>{{"a", 35184372088832}});
  CHECK(managed_of_ptx(placed).empty());
  CHECK(placed.find(".align 8 .v2 .u64 a[3][2] = {1}; // a\n") != std::string::npos);
  CHECK(placed.find("mov.u64 %rd1, 35184372088832; ld.global.u32 %r1, [35184372088836]; st.global.u32 [ab], %r1;") != std::string::npos);
}

TEST_CASE("which kernels print") {
  const auto printing = [](const CubinInfo& info) {
    std::vector<std::string> names;
    for (const KernelLayout& kernel : info.kernels) {
      if (kernel.prints) names.push_back(kernel.name);
    }
    std::sort(names.begin(), names.end());
    return names;
  };
  const std::vector<std::string> expected = {"prints_deep", "texts_only"};
  CHECK(printing(read_cubin(load_image("kernels.cubin")).value()) == expected);
  CHECK(ptx_printing_kernels(as_text(load_image("kernels.ptx"))) == expected);
  CHECK(ptx_printing_kernels(".version 9.0 .extern .func (.param .b32 r) vprintf(.param .b64 a); .entry silent() { ret; }").empty());
  CHECK(ptx_printing_kernels(".version 9.0 .extern .func (.param .b32 r) vprintf(.param .b64 a); .entry any() { call (r), %rd1, (p), proto; }") ==
        std::vector<std::string>{"any"});
  CHECK(ptx_printing_kernels(".version 9.0 .entry cut_off() { call vpr").empty());
  // By a grid that it launches.
  CHECK(ptx_printing_kernels(".version 9.0 .extern .func vprintf(); .entry child() { call vprintf; ret; } .entry parent() { call "
                             "(r), __cudaCDP2LaunchDeviceV2, (p, s); ret; } .entry other() { ret; }") == std::vector<std::string>{"child", "parent"});
}

TEST_CASE("NVIDIA's device runtime is known by what it defines") {
  CHECK(ptx_is_device_runtime(".version 9.0\n\n.visible .func (.param .b32 r) __cudaCDP2GetLastError()\n{ ret; }\n"));
  CHECK(!ptx_is_device_runtime(".version 9.0\n.extern .func (.param .b32 r) __cudaCDP2GetLastError\n()\n;\n.visible .func own() { ret; }\n"));
  CHECK(!ptx_is_device_runtime(""));
  CHECK(!ptx_is_device_runtime("\n.visible .func"));
}

TEST_CASE("whether a PTX text has variables") {
  CHECK(!ptx_has_writable_globals(as_text(load_image("kernels.ptx"))));
  CHECK(ptx_has_writable_globals(as_text(load_image("variables.ptx"))));
  CHECK(ptx_has_writable_globals(".version 9.0 .global .align 4 .u32 a = 3;"));
  CHECK(ptx_has_writable_globals(".version 9.0 .global .attribute(.managed) .align 4 .u32 man;"));
  CHECK(ptx_has_writable_globals(".version 9.0 .visible .const .align 4 .b8 t[16];"));
  CHECK(!ptx_has_writable_globals(".version 9.0 // .global .u32 a;\n.extern .global .u32 b; .global .b8 $str[4] = {1};"));
  CHECK(!ptx_has_writable_globals(".entry k() { ld.global.u32 %r1, [%rd1]; .shared .u32 s; }"));
}

TEST_CASE("images with texture or surface references are known, as machine code and as text") {
  for (const char* name : {"references.cubin", "references_75.cubin"}) {
    INFO(name);
    const auto info = read_cubin(load_image(name));
    REQUIRE(info);
    CHECK(info->has_references);
    CHECK_FALSE(info->has_writable_globals);
  }
  const auto others = read_cubin(load_image("variables.cubin"));
  REQUIRE(others);
  CHECK_FALSE(others->has_references);
  CHECK(ptx_has_references(".version 7.0\n.target sm_75\n.global .texref image;\n"));
  CHECK(ptx_has_references(".version 7.0\n.target sm_75\n.visible .global .surfref canvas;\n"));
  CHECK(ptx_has_references(".version 7.0\n.target sm_75\n.tex .u64 image;\n"));
  // An argument is an object, and inside a function the word is part of an instruction.
  CHECK_FALSE(ptx_has_references(".version 7.0\n.target sm_75\n.entry k(.param .texref image) { ret; }\n"));
  CHECK_FALSE(ptx_has_references(".version 7.0\n.target sm_75\n.entry k() { istypep.texref %p0, %rd0; ret; }\n"));
}
