// SPDX-License-Identifier: Apache-2.0
#include "broker/compiler/prepare_image.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "proto/image/check.hpp"
#include "proto/image/contents.hpp"
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

void note_contents_of_cubin(Bytes cubin, PreparedImage& prepared) {
  std::optional<image::CubinInfo> info = image::read_cubin(cubin);
  prepared.has_writable_globals = !info || info->has_writable_globals;
  prepared.uses_device_heap = info && info->uses_device_heap;
  prepared.all_may_use_device_heap = info && info->all_may_use_device_heap;
  prepared.heap_kernels.clear();
  prepared.takes_code_addresses = !info || info->takes_code_addresses;
  prepared.has_references = info && info->has_references;
  prepared.all_may_print = !info;
  prepared.printing_kernels.clear();
  if (info) {
    for (const image::KernelLayout& kernel : info->kernels) {
      if (kernel.uses_device_heap) prepared.heap_kernels.insert(kernel.name);
      if (kernel.prints) prepared.printing_kernels.insert(kernel.name);
    }
  }
  prepared.variables.reset();
  if (info && info->variables.empty() != info->has_writable_globals) prepared.variables = std::move(info->variables);
  prepared.managed = image::managed_of_cubin(cubin);
}

void note_contents_of_ptx(std::string_view text, PreparedImage& prepared) {
  std::vector<image::Variable> variables;
  bool all_are_known = true;
  for (std::string& name : image::ptx_variables(text)) {
    all_are_known &= !name.empty();
    variables.push_back({std::move(name), false});
  }
  prepared.has_writable_globals = !variables.empty();
  prepared.uses_device_heap = image::ptx_uses_device_heap(text);
  prepared.all_may_use_device_heap = false;
  prepared.heap_kernels.clear();
  for (std::string& name : image::ptx_heap_kernels(text)) prepared.heap_kernels.insert(std::move(name));
  prepared.takes_code_addresses = image::ptx_takes_code_addresses(text);
  prepared.has_references = image::ptx_has_references(text);
  prepared.all_may_print = false;
  prepared.printing_kernels.clear();
  for (std::string& name : image::ptx_printing_kernels(text)) prepared.printing_kernels.insert(std::move(name));
  prepared.variables.reset();
  if (all_are_known) prepared.variables = std::move(variables);
  prepared.managed = image::managed_of_ptx(text);
}

void set_placed_apart(const Placements& placements, PreparedImage& prepared) {
  for (const image::Placement& placement : placements) {
    prepared.placed.push_back({placement.name, placement.starts_as_zeroes});
    if (prepared.variables) std::erase_if(*prepared.variables, [&](const image::Variable& one) { return one.name == placement.name; });
  }
  if (prepared.variables && prepared.variables->empty()) prepared.has_writable_globals = false;
}

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

// The entries of a container that serve a device: machine code of its own major version, else the newest PTX that is not newer than it.
// `newer_ptx` is what is left where there is neither: a driver may take it (the CPU driver does) or refuse it.
struct Choice {
  const image::FatbinEntry* cubin = nullptr;
  const image::FatbinEntry* ptx = nullptr;
  const image::FatbinEntry* newer_ptx = nullptr;
};

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

  Choice choose(std::span<const image::FatbinEntry> entries) const {
    Choice choice;
    const auto is_better = [](const image::FatbinEntry& entry, const image::FatbinEntry* best) {
      return best == nullptr || entry.architecture > best->architecture;
    };
    for (const image::FatbinEntry& entry : entries) {
      if (entry.architecture > target_.compute) {
        if (entry.is(image::EntryKind::ptx)) choice.newer_ptx = &entry;
        continue;
      }
      if (entry.is(image::EntryKind::ptx) && is_better(entry, choice.ptx)) choice.ptx = &entry;
      if (is_code_for_device(entry) && is_better(entry, choice.cubin)) choice.cubin = &entry;
    }
    return choice;
  }
  bool is_code_for_device(const image::FatbinEntry& entry) const {
    return entry.is(image::EntryKind::elf) && entry.architecture <= target_.compute && entry.architecture / 10 == target_.compute / 10;
  }

  CUresult prepare_container(const ImageBytes& image) {
    std::vector<image::FatbinEntry> entries;
    const Bytes content = image.bytes();
    const std::size_t length = image::length_of(content);
    if (length == 0 || !image::read_fatbin(content, entries)) return refuse(CUDA_ERROR_INVALID_IMAGE, kDamaged, {});
    const Choice choice = choose(entries);
    const Bytes objects = content.subspan(length);
    const bool are_here = image::form_of(objects) == image::Form::fatbin;
    if (target_.has_objects || are_here) {
      const bool is_enough = choice.ptx != nullptr || (choice.cubin != nullptr && !target_.runs_texts);
      if (!is_enough && !are_here) return CUDA_ERROR_NO_BINARY_FOR_GPU;
      if (!is_enough) return prepare_objects(image.part(objects));
    }
    const image::FatbinEntry* wanted = choice.cubin != nullptr ? choice.cubin : choice.ptx != nullptr ? choice.ptx : choice.newer_ptx;
    // Otherwise the driver takes its entry from the whole container.
    if (!placements_.empty() && wanted == choice.cubin && choice.ptx != nullptr && target_.runs_texts) wanted = choice.ptx;
    if (wanted == nullptr) {
      return refuse(CUDA_ERROR_NO_BINARY_FOR_GPU, "the image holds ", image::contents_in_words(entries) + ", and no code for this device");
    }
    ImageBytes unpacked;
    if (const CUresult result = unpack(image, *wanted, unpacked); result != CUDA_SUCCESS) return result;
    if (wanted == choice.ptx || (wanted == choice.newer_ptx && !placements_.empty())) return prepare_ptx(unpacked);
    if (wanted == choice.cubin && !placements_.empty()) return place(unpacked);
    if (wanted == choice.cubin) {
      note_contents_of_cubin(unpacked.bytes(), prepared_);
    } else {
      note_contents_of_ptx(as_text(unpacked.bytes()), prepared_);
      prepared_.is_compiled_by_loading = true;
    }
    prepared_.content = image.part(content.first(length));
    return check_others(image, entries, wanted);
  }

  // The driver has reasons of its own to take another entry than the one that was looked at (code for a variant of the device): it finds none
  // that has not been unpacked here.
  CUresult check_others(const ImageBytes& image, std::span<const image::FatbinEntry> entries, const image::FatbinEntry* known) {
    for (const image::FatbinEntry& entry : entries) {
      if (&entry == known || (!entry.is(image::EntryKind::ptx) && !is_code_for_device(entry))) continue;
      ImageBytes unpacked;
      if (const CUresult result = unpack(image, entry, unpacked); result != CUDA_SUCCESS) return result;
    }
    return CUDA_SUCCESS;
  }

  CUresult prepare_cubin(const ImageBytes& cubin) {
    if (const CUresult result = check_cubin(cubin.bytes()); result != CUDA_SUCCESS) return result;
    if (!placements_.empty()) return place(cubin);
    note_contents_of_cubin(cubin.bytes(), prepared_);
    prepared_.content = cubin;
    return CUDA_SUCCESS;
  }

  CUresult place(const ImageBytes& given) {
    std::vector<std::byte> cubin(given.bytes().begin(), given.bytes().end());
    if (!image::place_in_cubin(cubin, placements_, log_)) return CUDA_ERROR_NOT_SUPPORTED;
    note_contents_of_cubin(cubin, prepared_);
    set_placed_apart(placements_, prepared_);
    prepared_.content = ImageBytes(std::move(cubin));
    return CUDA_SUCCESS;
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
    return CUDA_SUCCESS;
  }

  CUresult read_object(const ImageBytes& object) {
    std::vector<image::FatbinEntry> entries;
    if (!image::read_fatbin(object.bytes(), entries)) return refuse(CUDA_ERROR_INVALID_IMAGE, kDamaged, {});
    if (entries.empty()) return CUDA_SUCCESS;  // of a file without code for the device
    const Choice choice = choose(entries);
    const image::FatbinEntry* wanted = choice.ptx;
    if (choice.cubin != nullptr && !target_.runs_texts) wanted = choice.cubin;
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
    prepared_.prefix = prefix_;
    if (!target_.runs_texts) return CUDA_SUCCESS;  // what is linked tells about itself
    std::string texts;
    for (LinkInput& input : prepared_.inputs) {
      const bool is_left_out = prepared_.inputs.size() > 1 && image::ptx_is_device_runtime(as_text(input.bytes.bytes()));
      if (is_left_out) continue;  // when it is linked
      if (!placements_.empty()) input.bytes = placed_text(as_text(input.bytes.bytes()));
      texts.append(as_text(input.bytes.bytes())).append("\n");
    }
    note_contents_of_ptx(texts, prepared_);
    set_placed_apart(placements_, prepared_);
    return CUDA_SUCCESS;
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
