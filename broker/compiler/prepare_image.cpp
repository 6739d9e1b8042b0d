// SPDX-License-Identifier: Apache-2.0
// Longer than other sources: the steps of one class, each of which may end it with a sentence.
#include "broker/compiler/prepare_image.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "broker/compiler/fatbin_choice.hpp"
#include "broker/compiler/image_contents.hpp"
#include "proto/image/assertions.hpp"
#include "proto/image/check.hpp"
#include "proto/image/contents.hpp"
#include "proto/image/elf.hpp"
#include "proto/image/fatbin.hpp"
#include "proto/image/image.hpp"
#include "proto/image/ptx_text.hpp"
#include "proto/managed_variables.hpp"

namespace mpsshim::broker {

namespace {

using Bytes = std::span<const std::byte>;
using Placements = std::vector<image::Placement>;

constexpr const char* kDamaged = "the fat binary is damaged or cut off";
constexpr const char* kNotUnpacked = "an entry of the fat binary could not be unpacked: ";
constexpr const char* kRefused = "the image is refused: ";

std::string_view as_text(Bytes bytes) {
  std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return text.substr(0, text.find('\0'));
}

// With the NUL that whoever reads the text goes by; the same bytes where they have one.
ImageBytes with_end(const ImageBytes& bytes) {
  const std::string_view text = as_text(bytes.bytes());
  if (text.size() < bytes.size()) return bytes.part(bytes.bytes().first(text.size() + 1));
  std::vector<std::byte> copy;
  copy.reserve(bytes.size() + 1);
  copy.assign(bytes.bytes().begin(), bytes.bytes().end());
  copy.push_back(std::byte{0});
  return ImageBytes(std::move(copy));
}

class Preparer {
 public:
  Preparer(const ImageBytes& image, const ImageTarget& target, PreparedImage& prepared, std::string& log)
      : target_(target),
        prepared_(prepared),
        log_(log),
        left_to_unpack_(std::min(kMaxUnpackedBytes, std::max(kAnyGrowthBytes, image.size() * kMostGrowth))) {}

  CUresult run(const ImageBytes& whole) {
    const ImageBytes image = take_placements(whole);
    switch (image::form_of(image.bytes())) {
      case image::Form::fatbin: return prepare_container(image);
      case image::Form::ptx: return prepare_ptx(image);
      case image::Form::elf: return prepare_cubin(image);
      case image::Form::fatbin_wrapper:
      case image::Form::archive:
      case image::Form::unknown: break;
    }
    log_ = "the image is neither a fat binary, nor a cubin, nor PTX";
    return CUDA_ERROR_INVALID_IMAGE;
  }

  CUresult check_input(const ImageBytes& input, CUjitInputType type) {
    const image::Form form = image::form_of(input.bytes());
    if (form == image::Form::ptx) return check_ptx(as_text(input.bytes()));
    const bool may_hold_containers = type == CU_JIT_INPUT_OBJECT || type == CU_JIT_INPUT_LIBRARY || type == CU_JIT_INPUT_FATBINARY;
    if (form == image::Form::elf) {
      if (const CUresult result = check_cubin(input.bytes()); result != CUDA_SUCCESS) return result;
    }
    return may_hold_containers || form == image::Form::fatbin ? check_containers(input) : CUDA_SUCCESS;
  }

 private:
  // Wherever they lie: in an object of the host's, or in an archive of such.
  CUresult check_containers(const ImageBytes& input) {
    constexpr std::uint32_t kMagic = image::kFatbinMagic;
    for (Bytes rest = input.bytes(); rest.size() >= image::kFatbinHeaderBytes;) {
      const void* const found = memmem(rest.data(), rest.size(), &kMagic, sizeof kMagic);
      if (found == nullptr) break;
      rest = rest.subspan(static_cast<std::size_t>(static_cast<const std::byte*>(found) - rest.data()));
      std::vector<image::FatbinEntry> entries;
      const std::size_t length = image::fatbin_bytes(rest);
      const bool is_container = length != 0 && length <= rest.size() && image::read_fatbin(rest.first(length), entries);
      for (const image::FatbinEntry& entry : entries) {
        if (!is_container || (!entry.is(image::EntryKind::ptx) && !entry.is(image::EntryKind::elf))) continue;
        ImageBytes unpacked;
        if (const CUresult result = unpack(input, entry, unpacked); result != CUDA_SUCCESS) return result;
      }
      rest = rest.subspan(is_container ? length : sizeof kMagic);
    }
    return CUDA_SUCCESS;
  }

  // A placed image becomes the image it was made of.
  ImageBytes take_placements(const ImageBytes& image) {
    const auto placed = proto::read_placed_image(image.bytes());
    if (!placed) return image;
    const auto add = [&](std::string_view name, const proto::ManagedEntry& entry) {
      placements_.push_back({std::string(name), entry.value, entry.starts_as_zeroes != 0});
    };
    if (!proto::read_managed_entries(placed->table, add)) {
      placements_.clear();
      return image;
    }
    const Bytes prefix = image.bytes().first(image.size() - placed->image.size());
    prefix_.assign(prefix.begin(), prefix.end());
    return image.part(placed->image);
  }

  CUresult refuse(CUresult error, std::string_view why, std::string_view wrong) {
    log_ = std::string(why).append(wrong);
    return error;
  }
  CUresult check_cubin(Bytes cubin) {
    const std::string wrong = image::what_is_wrong_with_elf(cubin);
    return wrong.empty() ? CUDA_SUCCESS : refuse(CUDA_ERROR_INVALID_IMAGE, kRefused, wrong);
  }
  CUresult check_ptx(std::string_view text) {
    const std::string wrong = image::what_is_wrong_with_ptx(text);
    return wrong.empty() ? CUDA_SUCCESS : refuse(CUDA_ERROR_INVALID_PTX, kRefused, wrong);
  }

  // Unpacked, and checked as what it says it is.
  CUresult unpack(const ImageBytes& container, const image::FatbinEntry& entry, ImageBytes& bytes) {
    if (entry.compression == image::Compression::none) {
      bytes = container.part(entry.payload);
    } else {
      std::vector<std::byte> unpacked;
      const image::UnpackError error = image::unpack(entry, left_to_unpack_, unpacked);
      if (error == image::UnpackError::too_large) {
        return refuse(CUDA_ERROR_INVALID_IMAGE, kNotUnpacked,
                      std::to_string(entry.unpacked_bytes) + " bytes of it are more than the " + std::to_string(left_to_unpack_) +
                          " that are left of what an image of its size may become");
      }
      if (error != image::UnpackError::none) return refuse(CUDA_ERROR_INVALID_IMAGE, kNotUnpacked, image::to_text(error));
      left_to_unpack_ -= unpacked.size();
      bytes = ImageBytes(std::move(unpacked));
    }
    return entry.is(image::EntryKind::ptx) ? check_ptx(as_text(bytes.bytes())) : check_cubin(bytes.bytes());
  }

  CUresult prepare_container(const ImageBytes& image) {
    std::vector<image::FatbinEntry> entries;
    const Bytes content = image.bytes();
    const std::size_t length = image::length_of(content);
    if (length == 0 || !image::read_fatbin(content, entries)) return refuse(CUDA_ERROR_INVALID_IMAGE, kDamaged, {});
    if (target_.runs_texts && std::ranges::any_of(entries, image::is_linked_text)) return prepare_linked(image.part(content.first(length)), entries);
    const FatbinChoice choice = choose_entries(entries, target_);
    const Bytes objects = content.subspan(length);
    const bool are_here = image::form_of(objects) == image::Form::fatbin;
    if (target_.has_objects || are_here) {
      const bool is_enough = choice.ptx != nullptr || (!choice.cubins.empty() && !target_.runs_texts);
      if (!is_enough && !are_here) return CUDA_ERROR_NO_BINARY_FOR_GPU;
      if (!is_enough) return prepare_objects(image.part(objects));
    }
    const ImageBytes container = image.part(content.first(length));
    const bool is_text_placed = !placements_.empty() && choice.ptx != nullptr && target_.runs_texts;
    if (!choice.cubins.empty() && !is_text_placed) return prepare_code(container, entries, choice.cubins);
    const image::FatbinEntry* const text = choice.ptx != nullptr ? choice.ptx : choice.newer_ptx;
    if (text == nullptr) {
      return refuse(CUDA_ERROR_NO_BINARY_FOR_GPU, "the image holds ", image::contents_in_words(entries) + ", and no code for this device");
    }
    ImageBytes unpacked;
    if (const CUresult result = unpack(image, *text, unpacked); result != CUDA_SUCCESS) return result;
    if (text == choice.ptx || !placements_.empty()) return prepare_ptx(unpacked);
    note_contents_of_ptx(as_text(unpacked.bytes()), prepared_);
    prepared_.is_compiled_by_loading = true;
    prepared_.content = container;
    return check_others(container, entries, *text);
  }

  CUresult prepare_code(const ImageBytes& container, std::span<const image::FatbinEntry> entries, std::span<const image::FatbinEntry> cubins) {
    ImageBytes unpacked;
    if (const CUresult result = unpack(container, cubins.front(), unpacked); result != CUDA_SUCCESS) return result;
    if (!placements_.empty()) return place(unpacked);
    note_contents_of_cubin(unpacked.bytes(), prepared_);
    if (target_.runs_texts) {  // the CPU driver takes its entry from the whole container
      prepared_.content = container;
      return check_others(container, entries, cubins.front());
    }
    if (cubins.size() == 1 && image::is_relocatable(unpacked.bytes())) {
      prepared_ = {};  // what is linked tells about itself
      prepared_.inputs.push_back({CU_JIT_INPUT_CUBIN, unpacked});
      return CUDA_SUCCESS;
    }
    prepared_.content = unpacked;
    if (cubins.size() == 1) {
      open_cubin();
      return CUDA_SUCCESS;
    }
    if (image::cubin_may_assert(unpacked.bytes())) prepared_.why_assertions_fault = "it holds several variants of its code for this device";
    for (const image::FatbinEntry& variant : cubins.subspan(1)) {
      if (const CUresult result = unpack(container, variant, unpacked); result != CUDA_SUCCESS) return result;
      PreparedImage other;
      note_contents_of_cubin(unpacked.bytes(), other);
      add_contents_of_variant(other, prepared_);
    }
    prepared_.content = ImageBytes(image::container_of(cubins));
    return CUDA_SUCCESS;
  }

  // The driver has reasons of its own to take another entry than the one that was looked at: it finds none that has not been unpacked here.
  CUresult check_others(const ImageBytes& container, std::span<const image::FatbinEntry> entries, const image::FatbinEntry& known) {
    for (const image::FatbinEntry& entry : entries) {
      if (entry.whole.data() == known.whole.data() || (!entry.is(image::EntryKind::ptx) && !is_code_for(entry, target_))) continue;
      ImageBytes unpacked;
      if (const CUresult result = unpack(container, entry, unpacked); result != CUDA_SUCCESS) return result;
    }
    return CUDA_SUCCESS;
  }

  CUresult prepare_cubin(const ImageBytes& cubin) {
    if (const CUresult result = check_cubin(cubin.bytes()); result != CUDA_SUCCESS) return result;
    if (!placements_.empty()) return place(cubin);
    note_contents_of_cubin(cubin.bytes(), prepared_);
    prepared_.content = cubin;
    open_cubin();
    return CUDA_SUCCESS;
  }

  CUresult place(const ImageBytes& given) {
    std::vector<std::byte> cubin(given.bytes().begin(), given.bytes().end());
    if (!image::place_in_cubin(cubin, placements_, log_)) return CUDA_ERROR_NOT_SUPPORTED;
    note_contents_of_cubin(cubin, prepared_);
    set_placed_apart(placements_, prepared_);
    prepared_.content = ImageBytes(std::move(cubin));
    open_cubin();
    return CUDA_SUCCESS;
  }

  // Failed assertions of machine code become the executor's affair where they can; a client is not refused over it.
  void open_cubin() {
    if (!target_.opens_assertions || target_.runs_texts || !image::cubin_may_assert(prepared_.content.bytes())) return;
    std::vector<std::byte> opened(prepared_.content.bytes().begin(), prepared_.content.bytes().end());
    if (image::open_assertions(opened, prepared_.assertion_sites, prepared_.why_assertions_fault)) {
      prepared_.content = ImageBytes(std::move(opened));
      prepared_.why_assertions_fault.clear();
    } else {
      prepared_.assertion_sites.clear();
    }
  }

  // The same of a text that is run as it is.
  void open_text() {
    const std::string_view text = as_text(prepared_.content.bytes());
    if (!target_.opens_assertions || !target_.runs_texts || prepared_.is_compiled_by_loading || !image::ptx_may_assert(text)) return;
    const std::string opened = image::open_assertions(text, prepared_.assertion_sites, prepared_.why_assertions_fault);
    if (opened.empty()) return prepared_.assertion_sites.clear();
    prepared_.content = bytes_of(opened);
    prepared_.why_assertions_fault.clear();
  }

  static ImageBytes bytes_of(const std::string& text) {
    const auto bytes = std::as_bytes(std::span(text.c_str(), text.size() + 1));
    return ImageBytes(std::vector<std::byte>(bytes.begin(), bytes.end()));
  }
  ImageBytes placed_text(std::string_view text) const { return bytes_of(image::place_in_ptx(text, placements_)); }
  ImageBytes empty_text() const {
    return bytes_of(std::string(".version 6.4\n.target ") + (target_.compute < 75 ? "sm_50" : "sm_75") + "\n.address_size 64\n");
  }

  // Machine code is changed where it has an address, a text where it has a name: whoever compiles while it loads (the CPU driver) takes that.
  CUresult prepare_ptx(const ImageBytes& given) {
    const std::string_view text = as_text(given.bytes());
    if (const CUresult result = check_ptx(text); result != CUDA_SUCCESS) return result;
    // No linker takes it, the loader does. Such a text has no __managed__ variables either (they came with version 4.0).
    const bool is_old = image::ptx_version(text) < image::kOldestLinkedPtx && placements_.empty();
    const ImageBytes ended = with_end(given);
    if (!is_old) prepared_.inputs.push_back({CU_JIT_INPUT_PTX, ended});
    prepared_.is_compiled_by_loading = is_old;
    prepared_.prefix = prefix_;
    prepared_.content = placements_.empty() ? ended : placed_text(text);
    note_contents_of_ptx(as_text(prepared_.content.bytes()), prepared_);
    set_placed_apart(placements_, prepared_);
    open_text();
    return CUDA_SUCCESS;
  }

  // What the CPU driver's linker has given out: the texts of all its inputs, which belong together.
  CUresult prepare_linked(const ImageBytes& container, std::span<const image::FatbinEntry> entries) {
    for (const image::FatbinEntry& entry : entries) {
      if (!image::is_linked_text(entry)) continue;
      ImageBytes text;
      if (const CUresult result = unpack(container, entry, text); result != CUDA_SUCCESS) return result;
      if (const CUresult result = check_ptx(as_text(text.bytes())); result != CUDA_SUCCESS) return result;
      prepared_.inputs.push_back({CU_JIT_INPUT_PTX, with_end(text)});
    }
    note_inputs();
    return CUDA_SUCCESS;
  }

  CUresult read_object(const ImageBytes& object) {
    std::vector<image::FatbinEntry> entries;
    if (!image::read_fatbin(object.bytes(), entries)) return refuse(CUDA_ERROR_INVALID_IMAGE, kDamaged, {});
    if (entries.empty()) return CUDA_SUCCESS;  // of a file without code for the device
    const FatbinChoice choice = choose_entries(entries, target_);
    const image::FatbinEntry* wanted = choice.ptx;
    if (!choice.cubins.empty() && !target_.runs_texts) wanted = &choice.cubins.front();
    if (wanted == nullptr && target_.runs_texts) wanted = choice.newer_ptx;
    if (wanted == nullptr) {
      return refuse(CUDA_ERROR_NO_BINARY_FOR_GPU, "an object of the linked fat binary holds ",
                    image::contents_in_words(entries) + ", and no code for this device");
    }
    LinkInput input{wanted->is(image::EntryKind::ptx) ? CU_JIT_INPUT_PTX : CU_JIT_INPUT_CUBIN, {}};
    if (const CUresult result = unpack(object, *wanted, input.bytes); result != CUDA_SUCCESS) return result;
    if (input.type == CU_JIT_INPUT_PTX) input.bytes = with_end(input.bytes);
    prepared_.inputs.push_back(std::move(input));
    return CUDA_SUCCESS;
  }

  // Containers of relocatable code, one behind the other. What the linker made ahead is for other devices, so it is made again (as NVIDIA's
  // driver does it).
  CUresult prepare_objects(const ImageBytes& image) {
    Bytes objects = image.bytes();
    while (image::form_of(objects) == image::Form::fatbin) {  // files are as long as whole pages
      const std::size_t length = image::length_of(objects);
      if (length == 0) return refuse(CUDA_ERROR_INVALID_IMAGE, kDamaged, {});
      if (const CUresult result = read_object(image.part(objects.first(length))); result != CUDA_SUCCESS) return result;
      objects = objects.subspan(length);
    }
    if (prepared_.inputs.empty()) prepared_.inputs.push_back({CU_JIT_INPUT_PTX, empty_text()});  // a program without code for the device
    note_inputs();
    return CUDA_SUCCESS;
  }

  void note_inputs() {
    prepared_.prefix = prefix_;
    if (!target_.runs_texts) return;  // what is linked tells about itself
    std::string texts;
    for (LinkInput& input : prepared_.inputs) {
      const bool is_left_out = prepared_.inputs.size() > 1 && image::ptx_is_device_runtime(as_text(input.bytes.bytes()));
      if (is_left_out) continue;  // when it is linked
      if (!placements_.empty()) input.bytes = placed_text(as_text(input.bytes.bytes()));
      texts.append(as_text(input.bytes.bytes())).append("\n");
    }
    note_contents_of_ptx(texts, prepared_);
    set_placed_apart(placements_, prepared_);
    if (image::ptx_may_assert(texts)) prepared_.why_assertions_fault = "it is linked of texts";
  }

  const ImageTarget target_;
  PreparedImage& prepared_;
  std::string& log_;
  std::size_t left_to_unpack_;
  Placements placements_;
  std::vector<std::byte> prefix_;
};

}  // namespace

CUresult prepare_image(const ImageBytes& image, const ImageTarget& target, PreparedImage& prepared, std::string& log) {
  prepared = {};
  if (image.size() > kMaxUnpackedBytes) {
    log = "an image may have 1 GiB";
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  return Preparer(image, target, prepared, log).run(image);
}

CUresult check_link_input(const ImageBytes& input, CUjitInputType type, std::string& log) {
  PreparedImage nothing;
  return Preparer(input, {}, nothing, log).check_input(input, type);
}

}  // namespace mpsshim::broker
