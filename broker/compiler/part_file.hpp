// SPDX-License-Identifier: Apache-2.0
// Memory files of sealed content that a process which deals with strangers' images is given, or answers with: a description (numbers and names, one
// behind the other), and behind it the parts that the description names, aligned. A part that lies in bytes which the reader has anyway is not
// copied: the file says where.
// The reader trusts nothing. What it says is well-formed lies within the file; what it means is for who asked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "broker/compiler/image_bytes.hpp"
#include "proto/segment.hpp"

namespace mpsshim::broker {

inline constexpr std::size_t kMaxDescriptionBytes = std::size_t{64} << 20;  // of names, in an executor's memory

class PartWriter {
 public:
  // `known`: what the reader has anyway.
  explicit PartWriter(std::span<const std::byte> known = {}) : known_(known) {}

  void number(std::uint64_t value);
  void text(std::string_view text);
  void bytes(std::span<const std::byte> bytes) { text({reinterpret_cast<const char*>(bytes.data()), bytes.size()}); }
  // A part. The bytes stay where they are until the file is written.
  void place(std::span<const std::byte> bytes);

  // Invalid: there is no memory for it, or the description is too long (errno).
  [[nodiscard]] proto::FileDescriptor write(std::uint64_t magic, const char* name) const;

 private:
  const std::span<const std::byte> known_;
  std::vector<std::byte> description_;
  std::vector<std::span<const std::byte>> parts_;
  std::size_t parts_bytes_ = 0;
};

// Once something is not as it has to be nothing is read any more: numbers are 0, texts and parts empty.
class PartReader {
 public:
  PartReader(std::uint64_t magic, ImageBytes file, ImageBytes known = {});

  [[nodiscard]] bool ok() const { return ok_; }
  [[nodiscard]] std::uint64_t number();
  [[nodiscard]] bool flag() { return number() != 0; }
  [[nodiscard]] std::span<const std::byte> bytes() { return take(number()); }
  [[nodiscard]] std::string text();
  // Of things of which each takes a number at least.
  [[nodiscard]] std::uint64_t count();
  [[nodiscard]] ImageBytes place();

 private:
  [[nodiscard]] std::span<const std::byte> take(std::uint64_t size);
  [[nodiscard]] ImageBytes part(const ImageBytes& whole, std::size_t from, std::uint64_t offset, std::uint64_t size);

  const ImageBytes file_;
  const ImageBytes known_;
  std::span<const std::byte> rest_;
  std::size_t parts_at_ = 0;
  bool ok_ = false;
};

// The whole file, which has to be sealed (proto::Seal::given_content); empty: it is not, or cannot be mapped.
[[nodiscard]] ImageBytes map_sealed(const proto::FileDescriptor& file);

}  // namespace mpsshim::broker
