// SPDX-License-Identifier: Apache-2.0
// Images that somebody made to hurt: cut short, with bytes changed, with sizes that lie. Under the sanitizers each read
// outside is found; here the process must merely live and allocate nothing absurd.
#include <cstdlib>
#include <cstring>
#include <random>

#include "image_files.hpp"
#include "proto/image/cubin.hpp"
#include "proto/image/fatbin.hpp"
#include "proto/image/image.hpp"
#include "proto/image/managed.hpp"
#include "proto/image/ptx_text.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::image;
using namespace mpsshim::test;

namespace {

constexpr std::size_t kLimit = 4u << 20;

// A copy whose last byte is the last byte of the allocation, so that reading past it is seen.
void look_at_everything(const Image& image) {
  const Image exact(image.begin(), image.end());
  const std::size_t length = length_of(exact);
  REQUIRE(length <= exact.size());
  std::vector<FatbinEntry> entries;
  (void)read_fatbin(exact, entries);
  for (const FatbinEntry& entry : entries) {
    std::vector<std::byte> bytes;
    if (unpack(entry, kLimit, bytes) == UnpackError::none) REQUIRE(bytes.size() <= kLimit);
  }
  (void)read_cubin(exact);
  (void)ptx_has_writable_globals(as_text(exact));
  (void)ptx_uses_device_heap(as_text(exact));
  (void)ptx_adds_for_system(as_text(exact));
  std::vector<Placement> placements;
  for (const ManagedVariable& variable : managed_of_cubin(exact)) placements.push_back({variable.name, 0x2000'0000'1000});
  Image placed = exact;
  std::string why;
  (void)place_in_cubin(placed, placements, why);
  (void)managed_of_ptx(as_text(exact));
  (void)ptx_printing_kernels(as_text(exact));
  (void)ptx_is_device_runtime(as_text(exact));
}

}  // namespace

TEST_CASE("images cut anywhere") {
  for (const char* file : {"default.fatbin", "kernels.cubin", "kernels.ptx", "managed.cubin", "managed.ptx"}) {
    const Image image = load_image(file);
    const std::size_t step = std::max<std::size_t>(1, image.size() / 200);
    for (std::size_t size = 0; size < image.size(); size += size < 300 ? 1 : step) {
      look_at_everything({image.begin(), image.begin() + static_cast<std::ptrdiff_t>(size)});
    }
  }
}

TEST_CASE("images with bytes changed") {
  std::mt19937 random(4711);  // the same images every time
  for (const char* file : {"default.fatbin", "uncompressed.fatbin", "variables.cubin", "variables.ptx", "managed.cubin", "managed_debug.cubin"}) {
    const Image image = load_image(file);
    for (int round = 0; round < 300; ++round) {
      Image changed = image;
      // Headers and tables decide most, and stand at the beginning and at the end.
      for (int i = 0; i < 4; ++i) {
        const std::size_t range = round % 2 == 0 ? std::min<std::size_t>(changed.size(), 256) : changed.size();
        const std::size_t place = round % 3 == 0 ? changed.size() - 1 - random() % range : random() % range;
        changed[place] = static_cast<std::byte>(random());
      }
      look_at_everything(changed);
    }
  }
}

TEST_CASE("sizes that lie") {
  Image image = load_image("default.fatbin");
  std::vector<FatbinEntry> entries;
  const auto put = [&image](std::size_t offset, auto value) { std::memcpy(image.data() + offset, &value, sizeof value); };
  SECTION("a body longer than the image") {
    put(8, std::uint64_t{1} << 40);
    CHECK(length_of(image) == 0);
    CHECK(!read_fatbin(image, entries));
  }
  SECTION("a length that wraps") {
    put(8, ~std::uint64_t{0});
    CHECK(length_of(image) == 0);
    CHECK(!read_fatbin(image, entries));
  }
  SECTION("an entry longer than the container") {
    put(16 + 8, ~std::uint64_t{7});
    CHECK(!read_fatbin(image, entries));
    CHECK(entries.empty());
  }
  SECTION("an entry header shorter than its fields") {
    put(16 + 4, std::uint32_t{8});
    CHECK(!read_fatbin(image, entries));
  }
}

TEST_CASE("an unpacked size that lies is refused before it is allocated") {
  const Image image = load_image("default.fatbin");
  std::vector<FatbinEntry> entries;
  REQUIRE(read_fatbin(image, entries));
  for (FatbinEntry entry : entries) {
    if (entry.compression == Compression::none) continue;
    std::vector<std::byte> bytes;
    const std::size_t honest = entry.unpacked_bytes;
    entry.unpacked_bytes = std::size_t{1} << 45;
    CHECK(unpack(entry, std::size_t{1} << 46, bytes) == UnpackError::corrupt);
    CHECK(bytes.capacity() == 0);
    CHECK(unpack(entry, kLimit, bytes) == UnpackError::too_large);
    entry.unpacked_bytes = honest - 1;
    CHECK(unpack(entry, kLimit, bytes) == UnpackError::corrupt);
  }
}

TEST_CASE("much from little is refused before it is allocated") {
  const std::vector<std::byte> payload(std::size_t{600} << 10);
  FatbinEntry entry;
  entry.compression = Compression::lz4;
  entry.payload = payload;
  entry.unpacked_bytes = std::size_t{128} << 20;  // which LZ4 could do
  std::vector<std::byte> bytes;
  CHECK(unpack(entry, std::size_t{1} << 30, bytes) == UnpackError::corrupt);
  CHECK(bytes.capacity() == 0);
}
