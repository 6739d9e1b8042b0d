// SPDX-License-Identifier: Apache-2.0
#include "broker/cpudriver/modules/module.hpp"

#include <algorithm>

#include "broker/cpudriver/device/attributes.hpp"
#include "broker/cpudriver/handle_table.hpp"
#include "broker/cpudriver/memory/allocations.hpp"
#include "broker/cpudriver/modules/image_texts.hpp"
#include "proto/image/image.hpp"

namespace mpsshim::cpudriver {
namespace {

constexpr std::uint64_t kVariableAlignment = 256;  // of the block; each variable has its own within it

// Lays the variables out one after the other. Returns the end of the last.
std::uint64_t lay_out(const ptx::Module& code, std::uint64_t base, std::vector<std::uint64_t>& addresses) {
  std::uint64_t end = base;
  for (const ptx::GlobalInfo& variable : code.globals()) {
    const std::uint64_t alignment = std::clamp<std::uint64_t>(variable.alignment, 1, kVariableAlignment);
    end = (end + alignment - 1) / alignment * alignment;
    addresses.push_back(end);
    end += variable.size;
  }
  return end;
}

std::string describe(const ptx::Error& error, std::size_t texts) {
  if (texts == 1) return error.text;
  return error.text + " (text " + std::to_string(error.text_index + 1) + " of " + std::to_string(texts) + ")";
}

}  // namespace

const ptx::KernelInfo& Function::info() const { return module_->code().kernels()[index_]; }

int Function::max_dynamic_shared_bytes() const {
  const int set = max_dynamic_shared_bytes_.load();
  if (set != kNotSet) return set;
  const int without_opting_in = attribute_of(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK);
  return std::max(0, without_opting_in - static_cast<int>(info().static_shared_bytes));
}

CUresult Function::attribute(CUfunction_attribute attribute, int& value) const {
  const ptx::KernelInfo& kernel = info();
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      value = static_cast<int>(kernel.max_threads_per_block);
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
      value = static_cast<int>(kernel.static_shared_bytes);
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
      value = static_cast<int>(kernel.const_bytes);
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
      value = static_cast<int>(kernel.local_bytes);
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
      value = static_cast<int>(kernel.registers);
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
      value = static_cast<int>(kernel.target_sm);  // of the virtual architecture, not of the language
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
      value = attribute_of(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) * 10 +
              attribute_of(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      value = max_dynamic_shared_bytes();
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      value = carveout_.load();
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_CACHE_MODE_CA:
    case CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
      value = 0;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult Function::set_attribute(CUfunction_attribute attribute, int value) {
  if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
    const int available = attribute_of(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN) -
                          static_cast<int>(info().static_shared_bytes);
    if (value < 0 || value > available) return CUDA_ERROR_INVALID_VALUE;
    max_dynamic_shared_bytes_ = value;
    return CUDA_SUCCESS;
  }
  if (attribute == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT) {
    if (value < CU_SHAREDMEM_CARVEOUT_DEFAULT || value > CU_SHAREDMEM_CARVEOUT_MAX_SHARED) return CUDA_ERROR_INVALID_VALUE;
    carveout_ = value;
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;  // clusters do not exist here, the rest is read-only
}

CUresult Module::load(const void* image, bool is_library, std::shared_ptr<Module>& module, std::string& why) {
  // What was linked is machine code, and its objects are linked for libraries alone.
  if (!is_library && image::extent_of(image).form == image::Form::fatbin_wrapper && image::containers_of(image).size() > 1) {
    why = "The linked program has no code for the device; only libraries are linked of its objects.";
    return CUDA_ERROR_INVALID_IMAGE;
  }
  std::vector<std::string> texts;
  const CUresult read = read_image_texts(image, texts, why);
  if (read != CUDA_SUCCESS) return read;
  leave_out_device_runtime(texts);
  const std::vector<std::string_view> views(texts.begin(), texts.end());
  ptx::Error error;
  auto code = ptx::compile(views, error);
  if (code == nullptr) {
    why = describe(error, texts.size());
    return static_cast<CUresult>(error.code);
  }
  std::vector<std::uint64_t> unplaced;
  const std::uint64_t bytes = lay_out(*code, 0, unplaced);
  std::uint64_t variables = 0;
  if (bytes != 0) {
    const CUresult allocated = allocate_device(bytes, MemoryKind::module_global, variables);
    if (allocated != CUDA_SUCCESS) {
      why = "The image's variables (" + std::to_string(bytes) + " bytes) do not fit into the device memory.";
      return allocated;
    }
  }
  module = std::make_shared<Module>(std::move(code), variables);
  module->make_functions(is_library);
  return CUDA_SUCCESS;
}

Module::Module(std::shared_ptr<const ptx::Module> code, std::uint64_t variables) : variables_(variables) {
  std::vector<std::uint64_t> addresses;
  lay_out(*code, variables, addresses);
  const std::size_t count = addresses.size();
  instance_ = std::make_unique<ptx::ModuleInstance>(std::move(code), std::move(addresses));
  for (std::uint32_t i = 0; i < count; ++i) {
    instance_->write_initial(i, reinterpret_cast<void*>(instance_->global_address(i)));
  }
}

Module::~Module() {
  if (variables_ != 0) (void)free_device(variables_, MemoryKind::module_global);
}

void Module::make_functions(bool is_library) {
  for (std::uint32_t i = 0; i < code().kernels().size(); ++i) {
    auto function = std::make_shared<Function>(shared_from_this(), i);
    if (!is_library) function->mark_used();
    functions_.push_back(static_cast<CUfunction>(HandleTable<Function>::get().add(std::move(function))));
  }
}

void Module::forget_functions() {
  for (const CUfunction function : functions_) HandleTable<Function>::get().remove(function);
}

CUfunction Module::find_function(std::string_view name) const {
  const auto index = code().find_kernel(name);
  return index ? functions_[*index] : nullptr;
}

// Variables without `.visible` count, too: nvcc leaves it off in whole programs, and the runtime looks them up all the
// same. A visible one of the name comes first; several texts may each have a hidden one.
const ptx::GlobalInfo* Module::find_variable(std::string_view name, CUdeviceptr& address) const {
  const std::vector<ptx::GlobalInfo>& variables = code().globals();
  const ptx::GlobalInfo* found = nullptr;
  for (std::uint32_t i = 0; i < variables.size(); ++i) {
    if (variables[i].name != name || (found != nullptr && !variables[i].is_visible)) continue;
    found = &variables[i];
    address = instance_->global_address(i);
    if (found->is_visible) break;
  }
  return found;
}

}  // namespace mpsshim::cpudriver
