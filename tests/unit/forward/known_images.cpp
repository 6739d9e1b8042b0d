// SPDX-License-Identifier: Apache-2.0
#include "interposer/channel/known_images.hpp"

#include <string>

#include "tests/support/catch.hpp"

using mpsshim::interposer::KnownImages;

namespace {

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }
mpsshim::proto::ContentDigest digest_of(const std::string& text) { return mpsshim::proto::digest_of(bytes_of(text)); }

}  // namespace

TEST_CASE("an image is known by its bytes where they lay the last time, anywhere by its digest") {
  KnownImages images;
  const std::string first = "an image";
  const std::string again = "an image";
  CHECK_FALSE(images.find(bytes_of(first)));
  CHECK_FALSE(images.find(bytes_of(first), digest_of(first)));
  images.add(bytes_of(first), digest_of(first), 7);
  CHECK_FALSE(images.find(bytes_of(first)));  // loaded once
  CHECK(images.find(bytes_of(first), digest_of(first)) == 7);
  CHECK(images.find(bytes_of(first)) == 7);
  CHECK_FALSE(images.find(bytes_of(again)));
  CHECK(images.find(bytes_of(again), digest_of(again)) == 7);
  CHECK(images.find(bytes_of(again)) == 7);
}

TEST_CASE("other bytes at a known place are another image") {
  KnownImages images;
  std::string text = "an image";
  images.add(bytes_of(text), digest_of(text), 7);
  REQUIRE(images.find(bytes_of(text), digest_of(text)) == 7);
  text[3] = 'x';
  CHECK_FALSE(images.find(bytes_of(text)));
  CHECK_FALSE(images.find(bytes_of(text), digest_of(text)));
  images.add(bytes_of(text), digest_of(text), 8);
  REQUIRE(images.find(bytes_of(text), digest_of(text)) == 8);
  CHECK(images.find(bytes_of(text)) == 8);
  CHECK_FALSE(images.find(bytes_of(text).first(4)));
}

TEST_CASE("what is kept for comparing is bounded") {
  KnownImages images;
  const std::string large(KnownImages::kMostBytes + 1, 'x');
  images.add(bytes_of(large), digest_of(large), 1);
  CHECK(images.find(bytes_of(large), digest_of(large)) == 1);
  CHECK_FALSE(images.find(bytes_of(large)));
  std::vector<std::string> many(KnownImages::kMostBytesInAll / KnownImages::kMostBytes + 1, std::string(KnownImages::kMostBytes, 'y'));
  for (const std::string& text : many) {
    images.add(bytes_of(text), digest_of(text), 2);
    REQUIRE(images.find(bytes_of(text), digest_of(text)) == 2);
    REQUIRE(images.find(bytes_of(text)) == 2);
  }
  CHECK_FALSE(images.find(bytes_of(many.front())));  // it began anew
  CHECK(images.find(bytes_of(many.front()), digest_of(many.front())) == 2);
}
