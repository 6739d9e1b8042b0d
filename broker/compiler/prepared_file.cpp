// SPDX-License-Identifier: Apache-2.0
#include "broker/compiler/prepared_file.hpp"

#include <algorithm>
#include <cstdint>

#include "broker/compiler/part_file.hpp"
#include "proto/image/image.hpp"

namespace mpsshim::broker {

namespace {

constexpr std::uint64_t kMagic = 0x3344455041525045;
constexpr std::size_t kMaxLogBytes = 8 * 1024;

void write_variable(PartWriter& writer, const image::Variable& variable) {
  writer.text(variable.name);
  writer.number(variable.starts_as_zeroes ? 1 : 0);
  writer.number(variable.section);
  writer.number(variable.offset_bytes);
  writer.number(variable.size_bytes);
}

image::Variable read_variable(PartReader& reader) {
  image::Variable variable;
  variable.name = reader.text();
  variable.starts_as_zeroes = reader.flag();
  variable.section = static_cast<std::uint32_t>(reader.number());
  variable.offset_bytes = reader.number();
  variable.size_bytes = reader.number();
  return variable;
}

void write_uses(PartWriter& writer, const image::VariableUses& uses) {
  writer.number(uses.are_known ? 1 : 0);
  writer.number(uses.kernel_count);
  writer.number(uses.kernels.size());
  for (const auto& [kernel, use] : uses.kernels) {
    writer.text(kernel);
    writer.number(use.leaves_addresses ? 1 : 0);
    writer.number(use.variables.size());
    for (const std::string& variable : use.variables) writer.text(variable);
  }
  writer.number(uses.constants.size());
  for (const std::string& name : uses.constants) writer.text(name);
}

image::VariableUses read_uses(PartReader& reader) {
  image::VariableUses uses;
  uses.are_known = reader.flag();
  uses.kernel_count = static_cast<std::uint32_t>(reader.number());
  for (std::uint64_t left = reader.count(); left > 0 && reader.ok(); --left) {
    image::VariableUse& use = uses.kernels[reader.text()];
    use.leaves_addresses = reader.flag();
    for (std::uint64_t names = reader.count(); names > 0 && reader.ok(); --names) use.variables.insert(reader.text());
  }
  for (std::uint64_t left = reader.count(); left > 0 && reader.ok(); --left) uses.constants.insert(reader.text());
  return uses;
}

// Whether they lie in the content is seen when they are filled in.
bool read_sites(PartReader& reader, std::vector<image::AssertionSite>& sites) {
  const std::uint64_t count = reader.count();
  if (count > image::kMaxAssertionSites) return false;
  for (std::uint64_t left = count; left > 0 && reader.ok(); --left) {
    const std::uint64_t form = reader.number();
    if (form > static_cast<std::uint64_t>(image::AssertionSite::Form::digits)) return false;
    sites.push_back({static_cast<image::AssertionSite::Form>(form), reader.number()});
  }
  return true;
}

// Names go to the driver as texts with an end.
bool has_end_within(const std::string& name) { return name.find('\0') != std::string::npos; }

std::string as_line(std::string text) {
  text.resize(std::min(text.size(), kMaxLogBytes));
  std::ranges::replace_if(
      text, [](char c) { return (static_cast<unsigned char>(c) < ' ' && c != '\t') || c == '\x7f'; }, ' ');
  return text;
}

}  // namespace

proto::FileDescriptor write_prepared(const Preparation& preparation, const ImageBytes& image) {
  PartWriter writer(image.bytes());
  const PreparedImage& prepared = preparation.image;
  writer.number(static_cast<std::uint64_t>(preparation.status));
  writer.text(as_line(preparation.log));
  writer.place(prepared.content.bytes());
  writer.number(prepared.inputs.size());
  for (const LinkInput& input : prepared.inputs) {
    writer.number(static_cast<std::uint64_t>(input.type));
    writer.place(input.bytes.bytes());
  }
  writer.bytes(prepared.prefix);
  for (const bool flag : {prepared.has_writable_globals, prepared.uses_device_heap, prepared.all_may_use_device_heap, prepared.takes_code_addresses,
                          prepared.code_takes_addresses, prepared.adds_for_system, prepared.has_references, prepared.all_may_print,
                          prepared.is_compiled_by_loading, prepared.variables.has_value()}) {
    writer.number(flag ? 1 : 0);
  }
  writer.number(prepared.heap_kernels.size());
  for (const std::string& name : prepared.heap_kernels) writer.text(name);
  writer.number(prepared.printing_kernels.size());
  for (const std::string& name : prepared.printing_kernels) writer.text(name);
  writer.number(prepared.variables ? prepared.variables->size() : 0);
  if (prepared.variables) {
    for (const image::Variable& variable : *prepared.variables) write_variable(writer, variable);
  }
  writer.number(prepared.managed.size());
  for (const image::ManagedVariable& variable : prepared.managed) {
    writer.text(variable.name);
    writer.number(variable.size_bytes);
    writer.number(variable.starts_as_zeroes ? 1 : 0);
  }
  writer.text(as_line(prepared.why_assertions_fault));
  writer.number(prepared.assertion_sites.size());
  for (const image::AssertionSite& site : prepared.assertion_sites) {
    writer.number(static_cast<std::uint64_t>(site.form));
    writer.number(site.offset);
  }
  writer.number(prepared.placed.size());
  for (const image::Variable& variable : prepared.placed) write_variable(writer, variable);
  write_uses(writer, prepared.variable_uses);
  return writer.write(kMagic, "mpsshim-prepared");
}

bool read_prepared(const proto::FileDescriptor& descriptor, const ImageBytes& image, Preparation& preparation) {
  preparation = {};
  const ImageBytes file = map_sealed(descriptor);
  PartReader reader(kMagic, file, image);
  if (!reader.ok()) return false;
  PreparedImage& prepared = preparation.image;
  preparation.status = static_cast<CUresult>(reader.number());
  preparation.log = as_line(reader.text());
  prepared.content = reader.place();
  for (std::uint64_t left = reader.count(); left > 0 && reader.ok(); --left) {
    LinkInput& input = prepared.inputs.emplace_back();
    input.type = static_cast<CUjitInputType>(reader.number());
    input.bytes = reader.place();
    if (input.type != CU_JIT_INPUT_PTX && input.type != CU_JIT_INPUT_CUBIN) return false;
    if (input.bytes.empty() || (input.type == CU_JIT_INPUT_PTX && input.bytes.bytes().back() != std::byte{0})) return false;
  }
  const std::span<const std::byte> prefix = reader.bytes();
  prepared.prefix.assign(prefix.begin(), prefix.end());
  prepared.has_writable_globals = reader.flag();
  prepared.uses_device_heap = reader.flag();
  prepared.all_may_use_device_heap = reader.flag();
  prepared.takes_code_addresses = reader.flag();
  prepared.code_takes_addresses = reader.flag();
  prepared.adds_for_system = reader.flag();
  prepared.has_references = reader.flag();
  prepared.all_may_print = reader.flag();
  prepared.is_compiled_by_loading = reader.flag();
  if (reader.flag()) prepared.variables.emplace();
  bool are_names = true;
  const auto note = [&](const std::string& name) { are_names = are_names && !has_end_within(name); };
  for (std::uint64_t left = reader.count(); left > 0 && reader.ok(); --left) prepared.heap_kernels.insert(reader.text());
  for (std::uint64_t left = reader.count(); left > 0 && reader.ok(); --left) prepared.printing_kernels.insert(reader.text());
  for (std::uint64_t left = reader.count(); left > 0 && reader.ok(); --left) {
    if (!prepared.variables) return false;
    note(prepared.variables->emplace_back(read_variable(reader)).name);
  }
  for (std::uint64_t left = reader.count(); left > 0 && reader.ok(); --left) {
    image::ManagedVariable& variable = prepared.managed.emplace_back();
    variable.name = reader.text();
    variable.size_bytes = reader.number();
    variable.starts_as_zeroes = reader.flag();
    note(variable.name);
  }
  prepared.why_assertions_fault = as_line(reader.text());
  if (!read_sites(reader, prepared.assertion_sites)) return false;
  for (std::uint64_t left = reader.count(); left > 0 && reader.ok(); --left) note(prepared.placed.emplace_back(read_variable(reader)).name);
  prepared.variable_uses = read_uses(reader);
  if (!reader.ok() || !are_names) return false;
  if (preparation.status != CUDA_SUCCESS) return true;
  return prepared.content.empty() || ends_within(prepared.content);
}

bool ends_within(const ImageBytes& content) {
  switch (image::form_of(content.bytes())) {
    case image::Form::elf:
    case image::Form::fatbin: return image::length_of(content.bytes()) != 0;
    case image::Form::ptx: return content.bytes().back() == std::byte{0};
    case image::Form::fatbin_wrapper:
    case image::Form::archive:
    case image::Form::unknown: return false;
  }
  return false;
}

}  // namespace mpsshim::broker
