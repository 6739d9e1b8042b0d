// SPDX-License-Identifier: Apache-2.0
#include "proto/image/contents.hpp"

#include <optional>
#include <set>
#include <vector>

#include "proto/image/cubin.hpp"

namespace mpsshim::image {
namespace {

constexpr std::size_t kMaxUnpackedBytes = std::size_t{64} << 20;
constexpr std::size_t kMaxNameLength = 120;  // templates' names fill a screen

std::string list_of(std::span<const FatbinEntry> entries, EntryKind kind, const char* prefix) {
  std::set<std::uint32_t> architectures;
  for (const FatbinEntry& entry : entries) {
    if (entry.is(kind)) architectures.insert(entry.architecture);
  }
  std::string list;
  for (const std::uint32_t architecture : architectures) list += (list.empty() ? "" : ", ") + std::string(prefix) + std::to_string(architecture);
  return list;
}

std::string kernels_of(std::span<const std::byte> cubin) {
  const std::optional<CubinInfo> info = read_cubin(cubin);
  if (!info || info->kernels.empty()) return {};
  std::string name = info->kernels.front().name.substr(0, kMaxNameLength);
  if (name.size() < info->kernels.front().name.size()) name += "...";
  const std::string count = std::to_string(info->kernels.size()) + (info->kernels.size() == 1 ? " kernel: '" : " kernels, such as '");
  return " (" + count + name + "')";
}

std::string kernels_of(std::span<const FatbinEntry> entries) {
  for (const FatbinEntry& entry : entries) {
    std::vector<std::byte> cubin;
    if (entry.is(EntryKind::elf) && unpack(entry, kMaxUnpackedBytes, cubin) == UnpackError::none)
      return kernels_of(std::span<const std::byte>(cubin));
  }
  return {};
}

}  // namespace

std::string contents_in_words(std::span<const FatbinEntry> entries) {
  const std::string machine_code = list_of(entries, EntryKind::elf, "sm_");
  const std::string texts = list_of(entries, EntryKind::ptx, "compute_");
  std::string words;
  if (!machine_code.empty()) words = "machine code for " + machine_code + kernels_of(entries);
  if (!texts.empty()) words += (words.empty() ? "PTX for " : ", PTX for ") + texts;
  return words.empty() ? "nothing" : words;
}

std::string contents_in_words(std::span<const std::byte> cubin) { return "machine code" + kernels_of(cubin); }

}  // namespace mpsshim::image
