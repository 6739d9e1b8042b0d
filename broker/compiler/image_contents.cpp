// SPDX-License-Identifier: Apache-2.0
#include "broker/compiler/image_contents.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "proto/image/ptx_text.hpp"

namespace mpsshim::broker {

void note_contents_of_cubin(std::span<const std::byte> cubin, PreparedImage& prepared) {
  std::optional<image::CubinInfo> info = image::read_cubin(cubin);
  prepared.has_writable_globals = !info || info->has_writable_globals;
  prepared.uses_device_heap = info && info->uses_device_heap;
  prepared.all_may_use_device_heap = info && info->all_may_use_device_heap;
  prepared.heap_kernels.clear();
  prepared.takes_code_addresses = !info || info->takes_code_addresses;
  prepared.code_takes_addresses = !info || info->code_takes_addresses;
  prepared.adds_for_system = !info || info->adds_for_system;
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
  prepared.variable_uses = prepared.has_writable_globals ? image::variable_uses_of_cubin(cubin) : image::VariableUses{};
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
  prepared.code_takes_addresses = image::ptx_code_takes_addresses(text);
  prepared.adds_for_system = image::ptx_adds_for_system(text);
  prepared.has_references = image::ptx_has_references(text);
  prepared.all_may_print = false;
  prepared.printing_kernels.clear();
  for (std::string& name : image::ptx_printing_kernels(text)) prepared.printing_kernels.insert(std::move(name));
  prepared.variables.reset();
  if (all_are_known) prepared.variables = std::move(variables);
  prepared.managed = image::managed_of_ptx(text);
  prepared.variable_uses = prepared.has_writable_globals ? image::variable_uses_of_ptx(text) : image::VariableUses{};
}

void set_placed_apart(std::span<const image::Placement> placements, PreparedImage& prepared) {
  for (const image::Placement& placement : placements) {
    prepared.placed.push_back({placement.name, placement.starts_as_zeroes});
    if (prepared.variables) std::erase_if(*prepared.variables, [&](const image::Variable& one) { return one.name == placement.name; });
  }
  if (prepared.variables && prepared.variables->empty()) prepared.has_writable_globals = false;
}

void add_contents_of_variant(const PreparedImage& other, PreparedImage& prepared) {
  prepared.has_writable_globals |= other.has_writable_globals;
  prepared.uses_device_heap |= other.uses_device_heap;
  prepared.all_may_use_device_heap |= other.all_may_use_device_heap;
  prepared.heap_kernels.insert(other.heap_kernels.begin(), other.heap_kernels.end());
  prepared.takes_code_addresses |= other.takes_code_addresses;
  prepared.code_takes_addresses |= other.code_takes_addresses;
  prepared.adds_for_system |= other.adds_for_system;
  prepared.has_references |= other.has_references;
  prepared.all_may_print |= other.all_may_print;
  prepared.printing_kernels.insert(other.printing_kernels.begin(), other.printing_kernels.end());
  prepared.variable_uses.add(other.variable_uses);
  for (const image::ManagedVariable& variable : other.managed) {
    if (std::ranges::find(prepared.managed, variable.name, &image::ManagedVariable::name) == prepared.managed.end()) prepared.managed.push_back(variable);
  }
  if (!prepared.variables || !other.variables || prepared.variables->size() != other.variables->size()) return prepared.variables.reset();
  for (image::Variable& variable : *prepared.variables) {
    const auto same = std::ranges::find(*other.variables, variable.name, &image::Variable::name);
    if (same == other.variables->end()) return prepared.variables.reset();
    variable = {std::move(variable.name), variable.starts_as_zeroes && same->starts_as_zeroes};
  }
}

}  // namespace mpsshim::broker
