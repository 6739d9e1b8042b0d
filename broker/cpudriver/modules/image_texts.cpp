// SPDX-License-Identifier: Apache-2.0
#include "broker/cpudriver/modules/image_texts.hpp"

#include <cstdint>
#include <cstring>

#include "broker/cpudriver/config.hpp"
#include "proto/image/contents.hpp"
#include "proto/image/fatbin.hpp"
#include "proto/image/image.hpp"
#include "proto/image/ptx_text.hpp"

namespace mpsshim::cpudriver {
namespace {

using image::EntryKind;
using image::FatbinEntry;
using image::Form;

constexpr std::size_t kMaxTextBytes = std::size_t{256} << 20;  // the largest text of NVIDIA's libraries has 80 MiB
constexpr std::uint32_t kDefaultArchitecture = 75;

std::string no_ptx(const std::string& contents, std::uint32_t architecture) {
  const std::string wanted = "arch=compute_" + std::to_string(architecture) + ",code=compute_" + std::to_string(architecture);
  return "The image holds " + contents + ", and no PTX, which is all that the CPU driver runs. Of an own program: compile with -gencode " + wanted +
         ".";
}

// The newest text that the reported compute capability may run, as a GPU would choose; else the oldest, since the
// engine takes texts of any target.
const FatbinEntry* best_text(std::span<const FatbinEntry> entries) {
  const auto capability = static_cast<unsigned>(Config::get().capability_major * 10 + Config::get().capability_minor);
  const FatbinEntry* newest_that_fits = nullptr;
  const FatbinEntry* oldest = nullptr;
  for (const FatbinEntry& entry : entries) {
    if (!entry.is(EntryKind::ptx)) continue;
    if (oldest == nullptr || entry.architecture < oldest->architecture) oldest = &entry;
    if (entry.architecture > capability) continue;
    if (newest_that_fits == nullptr || entry.architecture > newest_that_fits->architecture) newest_that_fits = &entry;
  }
  return newest_that_fits != nullptr ? newest_that_fits : oldest;
}

CUresult add_text(const FatbinEntry& entry, std::vector<std::string>& texts, std::string& why) {
  std::vector<std::byte> bytes;
  const image::UnpackError error = image::unpack(entry, kMaxTextBytes, bytes);
  if (error != image::UnpackError::none) {
    why = "The PTX of the image (" + std::to_string(entry.unpacked_bytes) + " bytes) cannot be unpacked: " +
          image::to_text(error) + ".";
    return CUDA_ERROR_INVALID_IMAGE;
  }
  const auto* chars = reinterpret_cast<const char*>(bytes.data());
  texts.emplace_back(chars, strnlen(chars, bytes.size()));
  return CUDA_SUCCESS;
}

CUresult add_container(std::span<const std::byte> container, std::vector<std::string>& texts, std::string& why) {
  std::vector<FatbinEntry> entries;
  if (!image::read_fatbin(container, entries)) {
    why = "The fat binary (" + std::to_string(container.size()) + " bytes) is broken.";
    return CUDA_ERROR_INVALID_IMAGE;
  }
  bool is_linked = false;
  for (const FatbinEntry& entry : entries) {
    if (!image::is_linked_text(entry)) continue;
    is_linked = true;
    const CUresult result = add_text(entry, texts, why);
    if (result != CUDA_SUCCESS) return result;
  }
  if (is_linked) return CUDA_SUCCESS;
  if (const FatbinEntry* best = best_text(entries)) return add_text(*best, texts, why);
  why = no_ptx(image::contents_in_words(entries), entries.empty() ? kDefaultArchitecture : entries.back().architecture);
  return CUDA_ERROR_NO_BINARY_FOR_GPU;
}

// Of a linked wrapper the first container holds machine code made from the others, which hold the texts.
CUresult add_wrapper(const void* wrapper, std::vector<std::string>& texts, std::string& why) {
  CUresult last = CUDA_ERROR_INVALID_IMAGE;
  why = "The fat binary wrapper leads to no fat binary.";
  for (const auto& container : image::containers_of(wrapper)) {
    last = add_container(container, texts, why);
    if (last != CUDA_SUCCESS && last != CUDA_ERROR_NO_BINARY_FOR_GPU) return last;
  }
  return texts.empty() ? last : CUDA_SUCCESS;
}

template <class T>
void append(std::vector<std::byte>& bytes, const T& value) {
  const auto raw = std::as_bytes(std::span(&value, 1));
  bytes.insert(bytes.end(), raw.begin(), raw.end());
}

}  // namespace

CUresult read_image_texts(const void* image, std::vector<std::string>& texts, std::string& why) {
  const image::Extent extent = image::extent_of(image);
  switch (extent.form) {
    case Form::ptx:
      texts.emplace_back(static_cast<const char*>(image));
      return CUDA_SUCCESS;
    case Form::fatbin:
      return add_container({static_cast<const std::byte*>(image), extent.bytes}, texts, why);
    case Form::fatbin_wrapper:
      return add_wrapper(image, texts, why);
    case Form::elf:
      why = no_ptx(image::contents_in_words({static_cast<const std::byte*>(image), extent.bytes}), kDefaultArchitecture);
      return CUDA_ERROR_NO_BINARY_FOR_GPU;
    case Form::archive:
    case Form::unknown:
      break;
  }
  why = "The image is neither PTX, a cubin, nor a fat binary.";
  return CUDA_ERROR_INVALID_IMAGE;
}

CUresult read_object_texts(std::span<const std::byte> object, std::vector<std::string>& texts, std::string& why) {
  constexpr std::uint32_t kMagic = image::kFatbinMagic;
  why = "The object (" + std::to_string(object.size()) + " bytes) holds no fat binary.";
  CUresult last = CUDA_ERROR_INVALID_IMAGE;
  for (auto rest = object; rest.size() >= image::kFatbinHeaderBytes;) {
    const void* found = memmem(rest.data(), rest.size(), &kMagic, sizeof kMagic);
    if (found == nullptr) break;
    rest = rest.subspan(static_cast<std::size_t>(static_cast<const std::byte*>(found) - rest.data()));
    const std::size_t bytes = image::fatbin_bytes(rest);
    std::vector<FatbinEntry> entries;
    const bool is_container = bytes != 0 && bytes <= rest.size() && image::read_fatbin(rest.first(bytes), entries) && !entries.empty();
    if (is_container) last = add_container(rest.first(bytes), texts, why);
    if (is_container && last != CUDA_SUCCESS) return last;
    rest = rest.subspan(is_container ? bytes : sizeof kMagic);
  }
  return last;
}

void leave_out_device_runtime(std::vector<std::string>& texts) {
  if (texts.size() > 1) std::erase_if(texts, [](const std::string& text) { return image::ptx_is_device_runtime(text); });
}

std::vector<std::byte> write_linked_image(std::span<const std::string> texts) {
  constexpr std::uint32_t kOptionsAt = 64;
  constexpr std::uint32_t kHeaderBytes = 96;  // 64, the place of the option text (8), the text itself (16), padding
  static_assert(kOptionsAt + 8 + image::kLinkedOption.size() <= kHeaderBytes);
  std::vector<std::byte> body;
  for (const std::string& text : texts) {
    const std::uint64_t stored = (text.size() + 1 + 7) / 8 * 8;
    const std::size_t entry = body.size();
    append(body, std::uint16_t{static_cast<std::uint16_t>(EntryKind::ptx)});
    append(body, std::uint16_t{0x101});
    append(body, kHeaderBytes);
    append(body, stored);
    append(body, std::uint32_t{0});  // not compressed
    append(body, kOptionsAt);
    append(body, std::uint16_t{0});
    append(body, std::uint16_t{9});
    append(body, std::uint32_t{75});
    append(body, std::uint64_t{0});     // name
    append(body, std::uint64_t{0x11});  // 64 bits, Linux
    append(body, std::uint64_t{0});
    append(body, std::uint64_t{0});
    append(body, std::uint32_t{kOptionsAt + 8});
    append(body, static_cast<std::uint32_t>(image::kLinkedOption.size()));
    const auto option = std::as_bytes(std::span(image::kLinkedOption));
    body.insert(body.end(), option.begin(), option.end());
    body.resize(entry + kHeaderBytes);
    const auto chars = std::as_bytes(std::span(text));
    body.insert(body.end(), chars.begin(), chars.end());
    body.resize(entry + kHeaderBytes + stored);
  }
  std::vector<std::byte> container;
  append(container, image::kFatbinMagic);
  append(container, std::uint16_t{1});
  append(container, static_cast<std::uint16_t>(image::kFatbinHeaderBytes));
  append(container, std::uint64_t{body.size()});
  container.insert(container.end(), body.begin(), body.end());
  return container;
}

}  // namespace mpsshim::cpudriver
