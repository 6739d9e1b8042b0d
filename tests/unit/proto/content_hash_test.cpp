// SPDX-License-Identifier: Apache-2.0
#include "proto/content_hash.hpp"

#include <algorithm>
#include <cstdio>
#include <span>
#include <string>

#include "tests/support/catch.hpp"

using namespace mpsshim::proto;

namespace {

std::string hex(const ContentDigest& digest) {
  std::string text;
  for (const std::byte byte : std::as_bytes(std::span(digest))) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned>(byte));
    text += digits;
  }
  return text;
}

std::string digest_in_parts(const std::string& content, std::size_t part) {
  ContentHash hash;
  const auto bytes = std::as_bytes(std::span(content));
  for (std::size_t at = 0; at < bytes.size(); at += part) hash.add(bytes.subspan(at, std::min(part, bytes.size() - at)));
  return hex(hash.finish());
}

}  // namespace

// Reference values: `b2sum -l 256`, which is BLAKE2b of RFC 7693 with a digest of 32 bytes.
TEST_CASE("digests are BLAKE2b's") {
  const struct {
    std::string content;
    const char* digest;
  } known[] = {
      {"", "0e5751c026e543b2e8ab2eb06099daa1d1e5df47778f7787faab45cdf12fe3a8"},
      {"abc", "bddd813c634239723171ef3fee98579b94964e3bb1cb3e427262c8c068d52319"},
      {std::string(128, 'a'), "ae2aa48507885c4c950fb809b2076f959cde9f8ea6da260d9a3587df33dac450"},
      {std::string(1000, 'b'), "ec5667aebbfd7b0fb97d2e71d3d77383f218363431ff7468927df83ffaa56dc5"},
  };
  for (const auto& [content, digest] : known) CHECK(hex(digest_of(std::as_bytes(std::span(content)))) == digest);
}

TEST_CASE("the parts that content comes in make no difference") {
  const std::string content(1000, 'b');
  for (const std::size_t part : {1, 7, 127, 128, 129, 256, 999, 1000}) CHECK(digest_in_parts(content, part) == digest_in_parts(content, 1000));
  CHECK(digest_in_parts(std::string(999, 'b'), 100) != digest_in_parts(content, 100));
}
