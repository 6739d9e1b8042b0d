// SPDX-License-Identifier: Apache-2.0
#include "proto/image/fatbin.hpp"

#include <cstring>

namespace mpsshim::image {
namespace {

constexpr std::uint64_t kFlagLz4 = 0x2000;
constexpr std::uint64_t kFlagZstd = 0x8000;

struct ContainerHeader {
  std::uint32_t magic;
  std::uint16_t version;
  std::uint16_t header_bytes;
  std::uint64_t body_bytes;
};
static_assert(sizeof(ContainerHeader) == kFatbinHeaderBytes);

struct EntryHeader {
  std::uint16_t kind;
  std::uint16_t version;
  std::uint32_t header_bytes;
  std::uint64_t stored_bytes;  // with padding
  std::uint32_t compressed_bytes;
  std::uint32_t options_offset;
  std::uint16_t minor;
  std::uint16_t major;
  std::uint32_t architecture;
  std::uint32_t name_offset;
  std::uint32_t name_bytes;
  std::uint64_t flags;
  std::uint64_t reserved;
  std::uint64_t unpacked_bytes;  // 0 if stored
};
static_assert(sizeof(EntryHeader) == 64);

template <class T>
bool read_at(std::span<const std::byte> bytes, std::size_t offset, T& value) {
  if (offset > bytes.size() || sizeof(T) > bytes.size() - offset) return false;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return true;
}

bool read_header(std::span<const std::byte> container, ContainerHeader& header) {
  return read_at(container, 0, header) && header.magic == kFatbinMagic && header.header_bytes >= kFatbinHeaderBytes &&
         header.body_bytes <= SIZE_MAX - header.header_bytes;
}

Compression compression_of(std::uint64_t flags) {
  if ((flags & kFlagZstd) != 0) return Compression::zstd;
  return (flags & kFlagLz4) != 0 ? Compression::lz4 : Compression::none;
}

std::string_view options_of(std::span<const std::byte> entry, const EntryHeader& header) {
  struct Text {
    std::uint32_t offset;
    std::uint32_t bytes;
  } where{};
  if (header.options_offset == 0 || !read_at(entry.first(header.header_bytes), header.options_offset, where)) return {};
  if (where.offset > header.header_bytes || where.bytes > header.header_bytes - where.offset) return {};
  return {reinterpret_cast<const char*>(entry.data()) + where.offset, where.bytes};
}

// `rest` begins with the entry and ends with the container.
bool read_entry(std::span<const std::byte> rest, FatbinEntry& entry, std::size_t& total_bytes) {
  EntryHeader header{};
  if (!read_at(rest, 0, header)) return false;
  if (header.header_bytes < sizeof header || header.header_bytes > rest.size()) return false;
  if (header.stored_bytes > rest.size() - header.header_bytes) return false;
  entry.kind = header.kind;
  entry.architecture = header.architecture;
  entry.flags = header.flags;
  entry.compression = compression_of(header.flags);
  entry.payload = rest.subspan(header.header_bytes, header.stored_bytes);
  entry.unpacked_bytes = header.stored_bytes;
  if (entry.compression != Compression::none) {
    if (header.compressed_bytes > header.stored_bytes) return false;
    entry.payload = entry.payload.first(header.compressed_bytes);
    entry.unpacked_bytes = header.unpacked_bytes;
  }
  entry.options = options_of(rest, header);
  total_bytes = header.header_bytes + header.stored_bytes;
  entry.whole = rest.first(total_bytes);
  return true;
}

}  // namespace

std::size_t fatbin_bytes(std::span<const std::byte> container) {
  ContainerHeader header{};
  return read_header(container, header) ? header.header_bytes + header.body_bytes : 0;
}

bool read_fatbin(std::span<const std::byte> container, std::vector<FatbinEntry>& entries) {
  ContainerHeader header{};
  if (!read_header(container, header)) return false;
  if (header.header_bytes > container.size() || header.body_bytes > container.size() - header.header_bytes) return false;
  std::span<const std::byte> rest = container.subspan(header.header_bytes, header.body_bytes);
  while (!rest.empty()) {
    FatbinEntry entry;
    std::size_t bytes = 0;
    if (!read_entry(rest, entry, bytes)) return false;
    entries.push_back(entry);
    rest = rest.subspan(bytes);
  }
  return true;
}

std::vector<std::byte> container_of(std::span<const FatbinEntry> entries) {
  ContainerHeader header{kFatbinMagic, 1, kFatbinHeaderBytes, 0};
  for (const FatbinEntry& entry : entries) header.body_bytes += entry.whole.size();
  const auto bytes = std::as_bytes(std::span(&header, 1));
  std::vector<std::byte> container(bytes.begin(), bytes.end());
  container.reserve(bytes.size() + header.body_bytes);
  for (const FatbinEntry& entry : entries) container.insert(container.end(), entry.whole.begin(), entry.whole.end());
  return container;
}

}  // namespace mpsshim::image
