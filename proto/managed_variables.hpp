// SPDX-License-Identifier: Apache-2.0
// Images with __managed__ variables. The driver would place such variables where no client sees them; so the client gives each a place in
// managed memory of its own, and what is loaded is the image with these places: a *placed image*, uploaded like any other, under an id and a
// digest of its own.
//   1. ModuleLoad with ModuleOffer::places_managed of an image that has such variables loads nothing: the reply says need_places, and the variables
//      follow it, a ManagedEntry each (`value`: size in bytes).
//   2. The client uploads PlacedImageHeader, a ManagedEntry each (`value`: address), the image as it was, and loads that.
// An entry: this structure, the name, padding to 8. Readers check that it all lies within what they were given; addresses are values to the
// executor, as kernels' arguments are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace mpsshim::proto {

struct ManagedEntry {
  std::uint64_t value = 0;
  std::uint32_t name_bytes = 0;  // without terminator
  std::uint32_t starts_as_zeroes = 0;
};
static_assert(sizeof(ManagedEntry) == 16);

struct PlacedImageHeader {
  static constexpr std::uint64_t kMagic = 0x6563'616c'7050'536d;  // "mSPplace"
  std::uint64_t magic = kMagic;
  std::uint32_t variable_count = 0;
  std::uint32_t table_bytes = 0;  // of the entries; the image comes behind
};
static_assert(sizeof(PlacedImageHeader) == 16);

constexpr std::size_t managed_entry_bytes(std::size_t name_bytes) { return (sizeof(ManagedEntry) + name_bytes + 7) / 8 * 8; }

inline void append_managed_entry(std::vector<std::byte>& table, std::string_view name, std::uint64_t value, bool starts_as_zeroes) {
  const ManagedEntry entry{value, static_cast<std::uint32_t>(name.size()), starts_as_zeroes ? 1u : 0u};
  const std::size_t at = table.size();
  table.resize(at + managed_entry_bytes(name.size()));
  std::memcpy(table.data() + at, &entry, sizeof entry);
  if (!name.empty()) std::memcpy(table.data() + at + sizeof entry, name.data(), name.size());
}

// visit(name, const ManagedEntry&) for each entry. False: the table is damaged.
template <typename Visit>
[[nodiscard]] bool read_managed_entries(std::span<const std::byte> table, Visit&& visit) {
  while (!table.empty()) {
    ManagedEntry entry;
    if (table.size() < sizeof entry) return false;
    std::memcpy(&entry, table.data(), sizeof entry);
    const std::size_t bytes = managed_entry_bytes(entry.name_bytes);
    if (bytes > table.size()) return false;
    visit(std::string_view(reinterpret_cast<const char*>(table.data()) + sizeof entry, entry.name_bytes), entry);
    table = table.subspan(bytes);
  }
  return true;
}

struct PlacedImage {
  std::span<const std::byte> table;
  std::span<const std::byte> image;
};

// Empty: it is none.
[[nodiscard]] inline std::optional<PlacedImage> read_placed_image(std::span<const std::byte> content) {
  PlacedImageHeader header;
  if (content.size() < sizeof header) return std::nullopt;
  std::memcpy(&header, content.data(), sizeof header);
  if (header.magic != PlacedImageHeader::kMagic || header.table_bytes > content.size() - sizeof header) return std::nullopt;
  return PlacedImage{content.subspan(sizeof header, header.table_bytes), content.subspan(sizeof header + header.table_bytes)};
}

}  // namespace mpsshim::proto
