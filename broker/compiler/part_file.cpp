// SPDX-License-Identifier: Apache-2.0
#include "broker/compiler/part_file.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>

#include <unistd.h>

#include "proto/file_size_limit.hpp"

namespace mpsshim::broker {

namespace {

using Bytes = std::span<const std::byte>;

constexpr std::size_t kAlignment = 64;  // of what drivers read

enum class Source : std::uint64_t { none, known, file };

struct Header {
  std::uint64_t magic = 0;
  std::uint64_t description_bytes = 0;  // behind the header
};

std::size_t aligned(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

bool lies_in(Bytes part, Bytes whole) {
  const std::less_equal<> is_before;
  return is_before(whole.data(), part.data()) && is_before(part.data() + part.size(), whole.data() + whole.size());
}

bool put(const proto::FileDescriptor& file, std::size_t offset, Bytes bytes) {
  const proto::NoFileSizeSignal hold;
  while (!bytes.empty()) {
    const ssize_t written = pwrite(file.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    offset += static_cast<std::size_t>(written);
  }
  return true;
}

}  // namespace

void PartWriter::number(std::uint64_t value) {
  const auto raw = std::as_bytes(std::span(&value, 1));
  description_.insert(description_.end(), raw.begin(), raw.end());
}

void PartWriter::text(std::string_view text) {
  number(text.size());
  const auto raw = std::as_bytes(std::span(text.data(), text.size()));
  description_.insert(description_.end(), raw.begin(), raw.end());
}

// The parts of the file are counted from behind the description.
void PartWriter::place(Bytes bytes) {
  const bool is_known = !bytes.empty() && lies_in(bytes, known_);
  const Source source = bytes.empty() ? Source::none : is_known ? Source::known : Source::file;
  number(static_cast<std::uint64_t>(source));
  number(is_known ? static_cast<std::uint64_t>(bytes.data() - known_.data()) : parts_bytes_);
  number(bytes.size());
  if (source != Source::file) return;
  parts_.push_back(bytes);
  parts_bytes_ += aligned(bytes.size());
}

proto::FileDescriptor PartWriter::write(std::uint64_t magic, const char* name) const {
  const Header header{magic, description_.size()};
  if (description_.size() > kMaxDescriptionBytes) return errno = EFBIG, proto::FileDescriptor();
  std::size_t at = aligned(sizeof header + description_.size());
  proto::FileDescriptor file = proto::create_memory_file(name, at + parts_bytes_);
  bool is_written = file.valid() && put(file, 0, std::as_bytes(std::span(&header, 1))) && put(file, sizeof header, description_);
  for (const Bytes part : parts_) {
    is_written = is_written && put(file, at, part);
    at += aligned(part.size());
  }
  if (!is_written || !proto::seal(file, proto::Seal::content)) file.reset();
  return file;
}

PartReader::PartReader(std::uint64_t magic, ImageBytes file, ImageBytes known) : file_(std::move(file)), known_(std::move(known)) {
  Header header;
  if (file_.size() < sizeof header) return;
  std::memcpy(&header, file_.data(), sizeof header);
  const std::size_t room = file_.size() - sizeof header;
  if (header.magic != magic || header.description_bytes > std::min(room, kMaxDescriptionBytes)) return;
  rest_ = file_.bytes().subspan(sizeof header, header.description_bytes);
  parts_at_ = aligned(sizeof header + header.description_bytes);
  ok_ = true;
}

std::uint64_t PartReader::number() {
  std::uint64_t value = 0;
  const Bytes raw = take(sizeof value);
  if (ok_) std::memcpy(&value, raw.data(), sizeof value);
  return value;
}

std::string PartReader::text() {
  const Bytes raw = bytes();
  return {reinterpret_cast<const char*>(raw.data()), raw.size()};
}

std::uint64_t PartReader::count() {
  const std::uint64_t count = number();
  if (count > rest_.size() / sizeof(std::uint64_t)) ok_ = false;
  return ok_ ? count : 0;
}

ImageBytes PartReader::place() {
  const std::uint64_t source = number();
  const std::uint64_t offset = number();
  const std::uint64_t size = number();
  switch (static_cast<Source>(source)) {
    case Source::none: return {};
    case Source::known: return part(known_, 0, offset, size);
    case Source::file: return part(file_, parts_at_, offset, size);
  }
  ok_ = false;
  return {};
}

Bytes PartReader::take(std::uint64_t size) {
  if (!ok_ || size > rest_.size()) {
    ok_ = false;
    return {};
  }
  const Bytes taken = rest_.first(size);
  rest_ = rest_.subspan(size);
  return taken;
}

ImageBytes PartReader::part(const ImageBytes& whole, std::size_t from, std::uint64_t offset, std::uint64_t size) {
  const Bytes bytes = whole.bytes().subspan(std::min(from, whole.size()));
  if (!ok_ || offset > bytes.size() || size > bytes.size() - offset || size == 0) {
    ok_ = false;
    return {};
  }
  return whole.part(bytes.subspan(offset, size));
}

ImageBytes map_sealed(const proto::FileDescriptor& file) {
  const auto size = proto::sealed_size(file);
  if (!size || *size == 0 || !proto::is_sealed(file, proto::Seal::given_content)) return {};
  auto mapping = std::make_shared<proto::Mapping>(proto::Mapping::map(file, 0, *size, proto::Access::read_only));
  if (!*mapping) return {};
  const Bytes bytes(mapping->data(), *size);
  return {bytes, std::move(mapping)};
}

}  // namespace mpsshim::broker
