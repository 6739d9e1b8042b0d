// SPDX-License-Identifier: Apache-2.0
// Which of a container's entries the driver gets: machine code rather than texts, and of variants for one architecture those that run.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "image_files.hpp"
#include "prepared_images.hpp"
#include "proto/image/fatbin.hpp"
#include "proto/image/image.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim;
using namespace mpsshim::broker;
using namespace mpsshim::test;

namespace {

// Containers in which one entry's architecture, or its flags, are others than nvcc wrote.
constexpr std::size_t kArchitectureAt = 28;
constexpr std::size_t kFlagsAt = 40;
constexpr std::uint64_t kSpecific = 0x100000;
constexpr std::uint64_t kOfFamily = 0x200000;

std::vector<image::FatbinEntry> entries_of(const ImageBytes& container) {
  std::vector<image::FatbinEntry> entries;
  REQUIRE(image::read_fatbin(container.bytes(), entries));
  return entries;
}
const image::FatbinEntry& entry_of(const std::vector<image::FatbinEntry>& entries, image::EntryKind kind, std::uint32_t architecture) {
  const auto found = std::ranges::find_if(entries, [&](const image::FatbinEntry& one) { return one.is(kind) && one.architecture == architecture; });
  REQUIRE(found != entries.end());
  return *found;
}
Image unpacked(const image::FatbinEntry& entry) {
  Image bytes;
  REQUIRE(image::unpack(entry, std::size_t{64} << 20, bytes) == image::UnpackError::none);
  return bytes;
}
Image marked(const image::FatbinEntry& entry, std::uint32_t architecture, std::uint64_t flag) {
  Image bytes(entry.whole.begin(), entry.whole.end());
  std::memcpy(bytes.data() + kArchitectureAt, &architecture, sizeof architecture);
  const std::uint64_t flags = entry.flags | flag;
  std::memcpy(bytes.data() + kFlagsAt, &flags, sizeof flags);
  return bytes;
}
ImageBytes container_of(std::vector<Image> entries) {
  std::vector<image::FatbinEntry> all(entries.size());
  for (std::size_t i = 0; i < entries.size(); ++i) all[i].whole = entries[i];
  return bytes_of(image::container_of(all));
}
bool is_same(const ImageBytes& bytes, std::span<const std::byte> other) { return std::ranges::equal(bytes.bytes(), other); }

}  // namespace

TEST_CASE("of a container with texts the driver gets the machine code that was read, and no text") {
  const ImageBytes several = bytes_of(load_image("several.fatbin"));
  const auto entries = entries_of(several);
  for (const unsigned compute : {75u, 90u}) {
    const Preparation made = prepared_of(several, compute);
    REQUIRE(made.status == CUDA_SUCCESS);
    CHECK(is_same(made.image.content, unpacked(entry_of(entries, image::EntryKind::elf, compute))));
    CHECK(made.image.inputs.empty());
  }
  // The CPU driver takes its text from the whole.
  CHECK(is_same(prepared_of(several, 90, true).image.content, several.bytes()));
  // None for that device: compiled where texts are.
  const Preparation compiled = prepared_of(several, 80);
  REQUIRE(compiled.image.inputs.size() == 1);
  CHECK(compiled.image.inputs.front().type == CU_JIT_INPUT_PTX);
  const ImageBytes plain = bytes_of(load_image("uncompressed.fatbin"));
  const Preparation in_place = prepared_of(plain, 80);
  CHECK(lies_in(in_place.image.content, plain));  // not copied
  CHECK(image::form_of(in_place.image.content.bytes()) == image::Form::elf);
}

TEST_CASE("of variants for the device's own architecture the driver chooses, among them alone, and what is said holds of each") {
  const auto with = [](const char* name) { return bytes_of(load_image(name)); };
  const ImageBytes bare = with("default.fatbin");
  const ImageBytes variables = with("variables.fatbin");
  const image::FatbinEntry first = entry_of(entries_of(bare), image::EntryKind::elf, 80);
  const image::FatbinEntry second = entry_of(entries_of(variables), image::EntryKind::elf, 80);
  const image::FatbinEntry text = entry_of(entries_of(bare), image::EntryKind::ptx, 80);
  const Image plain = marked(first, 80, 0);
  const Image specific = marked(second, 80, kSpecific);
  const Preparation made = prepared_of(container_of({marked(text, 80, 0), plain, specific}), 80);
  INFO(made.log);
  REQUIRE(made.status == CUDA_SUCCESS);
  CHECK(is_same(made.image.content, container_of({plain, specific}).bytes()));
  CHECK(ends_within(made.image.content));
  REQUIRE_FALSE(prepared_of(bare, 80).image.has_writable_globals);
  CHECK(made.image.has_writable_globals);         // the one that is not in front has some
  CHECK_FALSE(made.image.variables.has_value());  // and which there are depends
  // The same in both: their names are known, their places are the driver's to tell.
  const Preparation twice = prepared_of(container_of({marked(second, 80, 0), specific}), 80);
  REQUIRE(twice.image.variables.has_value());
  const Preparation once = prepared_of(variables, 80);
  REQUIRE(once.image.variables.has_value());
  REQUIRE(twice.image.variables->size() == once.image.variables->size());
  for (const image::Variable& variable : *twice.image.variables) CHECK(variable.section == 0);
}

TEST_CASE("variants of older architectures are left out where they do not run") {
  const ImageBytes bare = bytes_of(load_image("default.fatbin"));
  const image::FatbinEntry code = entry_of(entries_of(bare), image::EntryKind::elf, 80);
  const image::FatbinEntry text = entry_of(entries_of(bare), image::EntryKind::ptx, 80);
  const auto is_code = [](const Preparation& made) {
    return made.status == CUDA_SUCCESS && image::form_of(made.image.content.bytes()) == image::Form::elf && made.image.inputs.empty();
  };
  CHECK(is_code(prepared_of(container_of({marked(code, 80, 0)}), 86)));
  CHECK(is_code(prepared_of(container_of({marked(code, 80, kOfFamily)}), 86)));
  CHECK(is_code(prepared_of(container_of({marked(code, 80, kSpecific)}), 80)));
  CHECK(prepared_of(container_of({marked(code, 80, kSpecific)}), 86).status == CUDA_ERROR_NO_BINARY_FOR_GPU);
  // A text that serves is compiled in its place; one of a variant serves as little.
  const Preparation compiled = prepared_of(container_of({marked(code, 80, kSpecific), marked(text, 75, 0), marked(text, 80, kSpecific)}), 86);
  REQUIRE(compiled.image.inputs.size() == 1);
  CHECK(compiled.image.inputs.front().type == CU_JIT_INPUT_PTX);
  CHECK(prepared_of(container_of({marked(text, 80, kSpecific)}), 86).status == CUDA_ERROR_NO_BINARY_FOR_GPU);
  CHECK(prepared_of(container_of({marked(text, 80, kOfFamily)}), 90).status == CUDA_ERROR_NO_BINARY_FOR_GPU);
  CHECK(prepared_of(container_of({marked(text, 80, kOfFamily)}), 86).image.inputs.size() == 1);
}

TEST_CASE("an object in a container is linked before it is loaded, elsewhere") {
  const ImageBytes relocatable = bytes_of(load_image("relocatable.fatbin"));
  const Preparation made = prepared_of(relocatable, 80);
  REQUIRE(made.status == CUDA_SUCCESS);
  CHECK(made.image.content.empty());
  REQUIRE(made.image.inputs.size() == 1);
  CHECK(made.image.inputs.front().type == CU_JIT_INPUT_CUBIN);
}
