// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/image_file.hpp"

#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include <unistd.h>

#include "broker/image/contents.hpp"
#include "broker/image/cubin.hpp"
#include "broker/image/fatbin.hpp"
#include "broker/image/image.hpp"
#include "broker/image/ptx_text.hpp"
#include "broker/log.hpp"
#include "proto/managed_variables.hpp"

namespace mpsshim::broker {

namespace {

constexpr const char* kEmptyKernel = ".version 6.4\n.target sm_75\n.address_size 64\n.visible .entry nothing() { ret; }\n";
constexpr std::size_t kMaxUnpackedBytes = std::size_t{1} << 30;
constexpr const char* kDamaged = "the fat binary is damaged or cut off";
constexpr const char* kNotUnpacked = "an entry of the fat binary could not be unpacked: ";

bool read_all(const proto::FileDescriptor& file, std::vector<std::byte>& content) {
  const std::optional<std::size_t> size = proto::sealed_size(file);
  if (!size || *size > kMaxUnpackedBytes) return false;
  content.resize(*size);
  for (std::size_t done = 0; done < content.size();) {
    const ssize_t got = pread(file.get(), content.data() + done, content.size() - done, static_cast<off_t>(done));
    if (got <= 0) return false;
    done += static_cast<std::size_t>(got);
  }
  return true;
}

void note_contents_of_cubin(std::span<const std::byte> cubin, PreparedImage& prepared) {
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

using Placements = std::vector<image::Placement>;

// A placed image becomes the image it was made of.
Placements take_placements(std::vector<std::byte>& content) {
  Placements placements;
  const auto placed = proto::read_placed_image(content);
  if (!placed) return placements;
  const auto add = [&](std::string_view name, const proto::ManagedEntry& entry) {
    placements.push_back({std::string(name), entry.value, entry.starts_as_zeroes != 0});
  };
  if (!proto::read_managed_entries(placed->table, add)) return {};
  content.erase(content.begin(), content.end() - static_cast<std::ptrdiff_t>(placed->image.size()));
  return placements;
}

void set_placed_apart(const Placements& placements, PreparedImage& prepared) {
  for (const image::Placement& placement : placements) {
    prepared.placed.push_back({placement.name, placement.starts_as_zeroes});
    if (prepared.variables) std::erase_if(*prepared.variables, [&](const image::Variable& one) { return one.name == placement.name; });
  }
  if (prepared.variables && prepared.variables->empty()) prepared.has_writable_globals = false;
}

CUresult place(std::vector<std::byte> cubin, const Placements& placements, PreparedImage& prepared, std::string& log) {
  if (!image::place_in_cubin(cubin, placements, log)) return CUDA_ERROR_NOT_SUPPORTED;
  note_contents_of_cubin(cubin, prepared);
  set_placed_apart(placements, prepared);
  prepared.content = std::move(cubin);
  return CUDA_SUCCESS;
}

std::string_view as_text(std::span<const std::byte> bytes) {
  std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return text.substr(0, text.find('\0'));
}

void note_text(const std::string& text, PreparedImage& prepared) {
  note_contents_of_ptx(text, prepared);
  prepared.content.resize(text.size() + 1);
  std::memcpy(prepared.content.data(), text.c_str(), text.size() + 1);
}

// The entries of a container that serve a device: machine code of its own major version, else the newest PTX that is not newer than it.
// `newer_ptx` is what is left where there is neither: a driver may take it (the CPU driver does) or refuse it.
struct Choice {
  const image::FatbinEntry* cubin = nullptr;
  const image::FatbinEntry* ptx = nullptr;
  const image::FatbinEntry* newer_ptx = nullptr;
};

Choice choose(std::span<const image::FatbinEntry> entries, unsigned compute_major, unsigned compute_minor) {
  Choice choice;
  const unsigned device = compute_major * 10 + compute_minor;
  const auto is_better = [](const image::FatbinEntry& entry, const image::FatbinEntry* best) {
    return best == nullptr || entry.architecture > best->architecture;
  };
  for (const image::FatbinEntry& entry : entries) {
    if (entry.architecture > device) {
      if (entry.is(image::EntryKind::ptx)) choice.newer_ptx = &entry;
      continue;
    }
    if (entry.is(image::EntryKind::elf) && entry.architecture / 10 == compute_major && is_better(entry, choice.cubin)) choice.cubin = &entry;
    if (entry.is(image::EntryKind::ptx) && is_better(entry, choice.ptx)) choice.ptx = &entry;
  }
  return choice;
}

}  // namespace

ImageCompiler::ImageCompiler(const Driver& driver, CUdevice device) : driver_(driver) {
  driver_->cuDeviceGetAttribute(&compute_major_, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
  driver_->cuDeviceGetAttribute(&compute_minor_, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
}

CUresult ImageCompiler::prepare(const proto::FileDescriptor& file, bool has_objects, PreparedImage& prepared, std::string& log) const {
  if (!read_all(file, prepared.content)) return CUDA_ERROR_OUT_OF_MEMORY;
  const Placements placements = take_placements(prepared.content);
  const std::span<const std::byte> content(prepared.content);
  switch (image::form_of(content)) {
    case image::Form::fatbin: return prepare_fatbin(placements, has_objects, prepared, log);
    case image::Form::ptx: return prepare_ptx(std::string(as_text(content)), placements, prepared, log);
    case image::Form::elf:
      if (!placements.empty()) return place(std::move(prepared.content), placements, prepared, log);
      note_contents_of_cubin(content, prepared);
      return CUDA_SUCCESS;
    case image::Form::fatbin_wrapper:
    case image::Form::archive:
    case image::Form::unknown: log = "the image is neither a fat binary, nor a cubin, nor PTX"; return CUDA_ERROR_INVALID_IMAGE;
  }
  return CUDA_ERROR_INVALID_IMAGE;
}

CUresult ImageCompiler::prepare_fatbin(const Placements& placements, bool has_objects, PreparedImage& prepared, std::string& log) const {
  std::vector<image::FatbinEntry> entries;
  const std::span<const std::byte> content(prepared.content);
  const std::size_t length = image::length_of(content);
  if (length == 0 || !image::read_fatbin(content, entries)) {
    log = kDamaged;
    return CUDA_ERROR_INVALID_IMAGE;
  }
  const Choice choice = choose(entries, static_cast<unsigned>(compute_major_), static_cast<unsigned>(compute_minor_));
  const std::span<const std::byte> objects = content.subspan(length);
  const bool are_here = image::form_of(objects) == image::Form::fatbin;
  if (has_objects || are_here) {
    const bool is_enough = choice.ptx != nullptr || (choice.cubin != nullptr && !runs_texts());
    if (!is_enough && !are_here) return CUDA_ERROR_NO_BINARY_FOR_GPU;
    if (!is_enough) return prepare_objects(objects, placements, prepared, log);
  }
  const image::FatbinEntry* wanted = choice.cubin != nullptr ? choice.cubin : choice.ptx != nullptr ? choice.ptx : choice.newer_ptx;
  // Otherwise the driver takes its entry from the whole container.
  if (!placements.empty() && wanted == choice.cubin && choice.ptx != nullptr && runs_texts()) wanted = choice.ptx;
  if (wanted == nullptr) {
    log = "the image holds " + image::contents_in_words(entries) + ", and no code for this device";
    return CUDA_ERROR_NO_BINARY_FOR_GPU;
  }
  std::vector<std::byte> unpacked;
  if (const image::UnpackError error = image::unpack(*wanted, kMaxUnpackedBytes, unpacked); error != image::UnpackError::none) {
    log = std::string(kNotUnpacked) + image::to_text(error);
    return CUDA_ERROR_INVALID_IMAGE;
  }
  if (wanted == choice.ptx || (wanted == choice.newer_ptx && !placements.empty())) {
    return prepare_ptx(std::string(as_text(unpacked)), placements, prepared, log);
  }
  if (wanted == choice.cubin) {
    if (!placements.empty()) return place(std::move(unpacked), placements, prepared, log);
    note_contents_of_cubin(unpacked, prepared);
  } else {
    note_contents_of_ptx(as_text(unpacked), prepared);
  }
  return CUDA_SUCCESS;  // the driver takes its entry from the whole container
}

// Machine code is changed where it has an address, a text where it has a name: whoever compiles while it loads (the CPU driver) takes that.
CUresult ImageCompiler::prepare_ptx(const std::string& text, const Placements& placements, PreparedImage& prepared, std::string& log) const {
  // No linker takes it, the loader does. Such a text has no __managed__ variables either (they came with version 4.0).
  if (image::ptx_version(text) < image::kOldestLinkedPtx && placements.empty()) {
    note_text(text, prepared);
    return CUDA_SUCCESS;
  }
  std::vector<std::byte> cubin;
  const CUresult result = compile_ptx(text, cubin, log);
  const bool is_machine_code = result == CUDA_SUCCESS && image::form_of(cubin) == image::Form::elf;
  if (!placements.empty() && is_machine_code) return place(std::move(cubin), placements, prepared, log);
  if (!placements.empty() && (result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_SUPPORTED)) {
    note_text(image::place_in_ptx(text, placements), prepared);
    set_placed_apart(placements, prepared);
    return CUDA_SUCCESS;
  }
  if (result == CUDA_SUCCESS) {
    // From the cubin: a later executor gets it instead of the text, and must say the same. (The CPU driver's linker makes no machine code.)
    prepared.was_compiled = is_machine_code;
    if (prepared.was_compiled) {
      note_contents_of_cubin(cubin, prepared);
    } else {
      note_contents_of_ptx(text, prepared);
    }
    prepared.content = std::move(cubin);
    return result;
  }
  if (result != CUDA_ERROR_NOT_SUPPORTED) return result;
  // No linker in this driver: it compiles while it loads.
  note_text(text, prepared);
  return CUDA_SUCCESS;
}

// The CPU driver runs texts, and its linker gives them back.
bool ImageCompiler::runs_texts() const {
  std::call_once(runs_texts_once_, [&] {
    std::vector<std::byte> linked;
    std::string log;
    runs_texts_ = compile_ptx(kEmptyKernel, linked, log) == CUDA_SUCCESS && image::form_of(linked) != image::Form::elf;
  });
  return runs_texts_;
}

CUresult ImageCompiler::read_object(std::span<const std::byte> object, std::vector<Input>& inputs, std::string& log) const {
  std::vector<image::FatbinEntry> entries;
  if (!image::read_fatbin(object, entries)) {
    log = kDamaged;
    return CUDA_ERROR_INVALID_IMAGE;
  }
  if (entries.empty()) return CUDA_SUCCESS;  // of a file without code for the device
  const Choice choice = choose(entries, static_cast<unsigned>(compute_major_), static_cast<unsigned>(compute_minor_));
  const image::FatbinEntry* wanted = choice.ptx;
  if (choice.cubin != nullptr && !runs_texts()) wanted = choice.cubin;
  if (wanted == nullptr && runs_texts()) wanted = choice.newer_ptx;
  if (wanted == nullptr) {
    log = "an object of the linked fat binary holds " + image::contents_in_words(entries) + ", and no code for this device";
    return CUDA_ERROR_NO_BINARY_FOR_GPU;
  }
  Input input{wanted == choice.cubin ? CU_JIT_INPUT_CUBIN : CU_JIT_INPUT_PTX, {}};
  if (const image::UnpackError error = image::unpack(*wanted, kMaxUnpackedBytes, input.bytes); error != image::UnpackError::none) {
    log = std::string(kNotUnpacked) + image::to_text(error);
    return CUDA_ERROR_INVALID_IMAGE;
  }
  if (input.type == CU_JIT_INPUT_PTX) input.bytes.push_back(std::byte{0});
  inputs.push_back(std::move(input));
  return CUDA_SUCCESS;
}

// What the linker made ahead is for other devices, so it is made again (as NVIDIA's driver does it).
CUresult ImageCompiler::prepare_objects(std::span<const std::byte> objects, const Placements& placements, PreparedImage& prepared,
                                        std::string& log) const {
  std::vector<Input> inputs;
  while (image::form_of(objects) == image::Form::fatbin) {  // files are as long as whole pages
    const std::size_t length = image::length_of(objects);
    if (length == 0) {
      log = kDamaged;
      return CUDA_ERROR_INVALID_IMAGE;
    }
    if (const CUresult result = read_object(objects.first(length), inputs, log); result != CUDA_SUCCESS) return result;
    objects = objects.subspan(length);
  }
  std::string texts;
  for (Input& input : inputs) {
    if (!runs_texts()) break;
    if (inputs.size() > 1 && image::ptx_is_device_runtime(as_text(input.bytes))) continue;  // left out when it is linked
    if (!placements.empty()) {
      const std::string placed = image::place_in_ptx(as_text(input.bytes), placements);
      const auto bytes = std::as_bytes(std::span(placed.c_str(), placed.size() + 1));
      input.bytes.assign(bytes.begin(), bytes.end());
    }
    texts.append(as_text(input.bytes)).append("\n");
  }
  std::vector<std::byte> linked;
  if (const CUresult result = link(inputs, linked, log); result != CUDA_SUCCESS) return result;
  const bool is_machine_code = image::form_of(linked) == image::Form::elf;
  if (is_machine_code && !placements.empty()) return place(std::move(linked), placements, prepared, log);
  prepared.was_compiled = is_machine_code;
  if (is_machine_code) {
    note_contents_of_cubin(linked, prepared);
  } else {
    note_contents_of_ptx(texts, prepared);
    set_placed_apart(placements, prepared);
  }
  prepared.content = std::move(linked);
  return CUDA_SUCCESS;
}

CUresult ImageCompiler::compile_ptx(const std::string& text, std::vector<std::byte>& cubin, std::string& log) const {
  const auto bytes = std::as_bytes(std::span(text.c_str(), text.size() + 1));
  const Input input{CU_JIT_INPUT_PTX, {bytes.begin(), bytes.end()}};
  return link({&input, 1}, cubin, log);
}

CUresult ImageCompiler::link(std::span<const Input> inputs, std::vector<std::byte>& result_bytes, std::string& log) const {
  std::array<char, 8192> errors{};
  std::array options{CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  std::array<void*, 2> values{errors.data(), reinterpret_cast<void*>(errors.size())};
  CUlinkState link = nullptr;
  CUresult result = driver_->cuLinkCreate_v2(static_cast<unsigned>(options.size()), options.data(), values.data(), &link);
  if (result != CUDA_SUCCESS) return result;
  for (const Input& input : inputs) {
    if (result != CUDA_SUCCESS) break;
    auto* const bytes = const_cast<std::byte*>(input.bytes.data());  // NOLINT(cppcoreguidelines-pro-type-const-cast): it only reads
    result = driver_->cuLinkAddData_v2(AddressKey(), link, input.type, bytes, input.bytes.size(), "image", 0, nullptr, nullptr);
  }
  void* linked = nullptr;
  std::size_t size = 0;
  if (result == CUDA_SUCCESS) result = driver_->cuLinkComplete(link, &linked, &size);
  if (result == CUDA_SUCCESS) {
    const auto* bytes = static_cast<const std::byte*>(linked);
    result_bytes.assign(bytes, bytes + size);
  } else {
    log.assign(errors.data());
  }
  driver_->cuLinkDestroy(link);
  return result;
}

}  // namespace mpsshim::broker
