// SPDX-License-Identifier: Apache-2.0
// MD2 against the vectors of RFC 1319, HMAC over it by its definition, and the layout of the runtime's self-test.
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "interposer/local/integrity.hpp"
#include "interposer/local/md2.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::interposer;

namespace {

std::string hex(const Md2Digest& digest) {
  std::string text;
  for (const std::uint8_t byte : digest) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 0xf];
  }
  return text;
}

std::vector<std::uint8_t> bytes_of(std::string_view text) { return {text.begin(), text.end()}; }

std::string md2(std::string_view text) {
  Md2 digest;
  digest.update(bytes_of(text));
  return hex(digest.finish());
}

template <typename T>
void append(std::vector<std::uint8_t>& message, T value) {
  for (std::size_t i = 0; i < sizeof value; ++i) message.push_back(static_cast<std::uint8_t>(static_cast<std::uint64_t>(value) >> (8 * i)));
}

}  // namespace

TEST_CASE("MD2 gives the digests of RFC 1319, appendix A.5") {
  CHECK(md2("") == "8350e5a3e24c153df2275c9f80692773");
  CHECK(md2("a") == "32ec01ec4a6dac72c0ab96fb34c0b5d1");
  CHECK(md2("abc") == "da853b0d3f88d99b30283a69e6ded6bb");
  CHECK(md2("message digest") == "ab4f496bfb2a530b219ff33031fe06b0");
  CHECK(md2("abcdefghijklmnopqrstuvwxyz") == "4e8ddff3650292ab5a4108c3aa47940b");
  CHECK(md2("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789") == "da33def2a42df13975352846c30338cd");
  CHECK(md2("12345678901234567890123456789012345678901234567890123456789012345678901234567890") == "d5976f79d83d3a0dc9806c3c66f3efd8");
}

TEST_CASE("MD2 does not depend on how the text is cut") {
  const auto text = bytes_of("12345678901234567890123456789012345678901234567890");
  Md2 whole;
  whole.update(text);
  const Md2Digest expected = whole.finish();
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    Md2 parts;
    parts.update(std::span(text).first(cut));
    parts.update(std::span(text).subspan(cut));
    REQUIRE(parts.finish() == expected);
  }
}

TEST_CASE("HMAC-MD2 is RFC 2104 with a block of 16 bytes") {
  Md2Digest key;
  for (std::size_t i = 0; i < key.size(); ++i) key[i] = static_cast<std::uint8_t>(i * 7);
  const auto message = bytes_of("what do ya want for nothing?");
  std::vector<std::uint8_t> inner(key.begin(), key.end());
  for (auto& byte : inner) byte ^= 0x36;
  inner.insert(inner.end(), message.begin(), message.end());
  Md2 first;
  first.update(inner);
  const Md2Digest middle = first.finish();
  std::vector<std::uint8_t> outer(key.begin(), key.end());
  for (auto& byte : outer) byte ^= 0x5c;
  outer.insert(outer.end(), middle.begin(), middle.end());
  Md2 second;
  second.update(outer);
  CHECK(hmac_md2(key, message) == second.finish());
}

TEST_CASE("the self-test's message is little-endian and without holes") {
  const IntegrityQuestion question{13000, 13002, 4711, 0x89abcdef, 0x7f0011223344, 0x7f0011223355, 0x7f0011223366, 1'700'000'000};
  IntegrityDevice device{};
  for (std::size_t i = 0; i < sizeof device.uuid; ++i) device.uuid[i] = static_cast<std::uint8_t>(0x10 + i);
  device.pci_bus = 0x19;
  std::vector<std::uint8_t> message;
  append(message, std::uint32_t{13000});
  append(message, std::uint32_t{13002});
  append(message, std::uint32_t{4711});
  append(message, std::uint32_t{0x89abcdef});
  append(message, std::uint64_t{0x7f0011223344});
  append(message, std::uint64_t{0x7f0011223355});
  append(message, std::uint64_t{0x7f0011223366});
  append(message, std::uint64_t{1'700'000'000});
  message.insert(message.end(), device.uuid, device.uuid + sizeof device.uuid);
  append(message, std::int32_t{0});
  append(message, std::int32_t{0x19});
  append(message, std::int32_t{0});
  REQUIRE(message.size() == 48 + 28);
  const Md2Digest key = {0x14, 0x6a, 0xdd, 0xae, 0x53, 0xa9, 0xa7, 0x52, 0xaa, 0x08, 0x41, 0x36, 0x0b, 0xf5, 0x5a, 0x9f};
  CHECK(integrity_answer(question, std::span(&device, 1)) == hmac_md2(key, message));
}

TEST_CASE("versions that end in 0 and 1 get constants") {
  IntegrityQuestion question{};
  question.version = 13000;
  CHECK(hex(integrity_answer(question, {})) == "5c67cb031c184133e8d14c1faa83d38e");
  question.version = 13001;
  CHECK(hex(integrity_answer(question, {})) == "5c67cb031c184118e8d14c1faa83d38e");
}
