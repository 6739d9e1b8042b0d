// SPDX-License-Identifier: Apache-2.0
#include "proto/image/image.hpp"

#include <algorithm>
#include <cstring>

#include "proto/image/elf.hpp"
#include "proto/image/fatbin.hpp"
#include "proto/image/ptx_text.hpp"

namespace mpsshim::image {
namespace {

constexpr char kArchiveMagic[] = "!<arch>\n";
constexpr std::size_t kArchiveMagicBytes = sizeof kArchiveMagic - 1;

const char* text(std::span<const std::byte> bytes) { return reinterpret_cast<const char*>(bytes.data()); }

// The header of whatever lies there. The first byte tells how many more may be read, so that a short text at the end
// of a page is not read past.
std::span<const std::byte> peek(const void* image) {
  const auto* bytes = static_cast<const std::byte*>(image);
  std::uint32_t magic = 0;
  for (std::size_t i = 0; i < sizeof magic; ++i) {
    if (bytes[i] == std::byte{0}) return {bytes, i};
  }
  std::memcpy(&magic, bytes, sizeof magic);
  if (magic == FatbinWrapper::kMagic) return {bytes, sizeof(FatbinWrapper)};
  if (magic == kFatbinMagic) return {bytes, kFatbinHeaderBytes};
  if (is_elf({bytes, sizeof magic})) return {bytes, kElfHeaderBytes};
  return {bytes, strnlen(static_cast<const char*>(image), kArchiveMagicBytes)};
}

}  // namespace

Form form_of(std::span<const std::byte> image) {
  std::uint32_t magic = 0;
  if (image.size() >= sizeof magic) std::memcpy(&magic, image.data(), sizeof magic);
  if (magic == FatbinWrapper::kMagic) return Form::fatbin_wrapper;
  if (magic == kFatbinMagic) return Form::fatbin;
  if (is_elf(image)) return Form::elf;
  if (image.size() >= kArchiveMagicBytes && std::memcmp(image.data(), kArchiveMagic, kArchiveMagicBytes) == 0) {
    return Form::archive;
  }
  return looks_like_ptx({text(image), image.size()}) ? Form::ptx : Form::unknown;
}

Extent extent_of(const void* trusted_image) {
  if (trusted_image == nullptr) return {};
  const std::span<const std::byte> head = peek(trusted_image);
  const auto* chars = static_cast<const char*>(trusted_image);
  switch (form_of(head)) {
    case Form::fatbin_wrapper:
      return {Form::fatbin_wrapper, 0};
    case Form::archive:
      return {Form::archive, 0};
    case Form::fatbin:
      return {Form::fatbin, fatbin_bytes(head)};
    case Form::elf: {
      // The tables may lie anywhere in the file, which ends where they or the last section do.
      const auto* bytes = static_cast<const std::byte*>(trusted_image);
      const std::size_t tables = elf_table_bytes(head);
      return {Form::elf, tables == 0 ? 0 : elf_bytes({bytes, tables})};
    }
    case Form::ptx:
    case Form::unknown:
      break;
  }
  const std::size_t length = std::strlen(chars);
  if (looks_like_ptx({chars, length})) return {Form::ptx, length + 1};
  return {};
}

std::vector<std::span<const std::byte>> containers_of(const void* trusted_wrapper) {
  std::vector<std::span<const std::byte>> containers;
  FatbinWrapper wrapper;
  if (trusted_wrapper == nullptr) return containers;
  std::memcpy(&wrapper, trusted_wrapper, sizeof wrapper);
  if (wrapper.magic != FatbinWrapper::kMagic) return containers;
  const auto add = [&containers](const void* data) {
    const Extent extent = extent_of(data);
    if (extent.form == Form::fatbin && extent.bytes != 0) {
      containers.emplace_back(static_cast<const std::byte*>(data), extent.bytes);
    }
  };
  add(wrapper.data);
  if (wrapper.version != FatbinWrapper::kLinked || wrapper.others == nullptr) return containers;
  for (const auto* other = static_cast<const void* const*>(wrapper.others); *other != nullptr; ++other) add(*other);
  return containers;
}

std::size_t length_of(std::span<const std::byte> image) {
  const auto within = [&image](std::size_t bytes) { return bytes <= image.size() ? bytes : 0; };
  switch (form_of(image)) {
    case Form::fatbin:
      return within(fatbin_bytes(image));
    case Form::elf:
      return within(elf_bytes(image));
    case Form::ptx: {
      const auto nul = std::find(image.begin(), image.end(), std::byte{0});
      return static_cast<std::size_t>(nul - image.begin()) + (nul == image.end() ? 0 : 1);
    }
    case Form::unknown:
    case Form::fatbin_wrapper:
    case Form::archive:
      break;
  }
  return 0;
}

}  // namespace mpsshim::image
