// SPDX-License-Identifier: Apache-2.0
// Modules with __managed__ variables: loaded with their places, their variables found by name and given their initial values.
#include <algorithm>
#include <cstring>

#include "interposer/forward/modules.hpp"

namespace mpsshim::interposer::forward {

CUresult Modules::load_placed(std::unique_ptr<ManagedBlock> block, JitOptions& options, CUcontext context, Module*& module) {
  std::vector<std::byte> none;
  CUresult error = load_image(block->image, options, context, module, none);
  if (error == CUDA_SUCCESS && module == nullptr) error = CUDA_ERROR_MPS_RPC_FAILURE;
  if (error != CUDA_SUCCESS) {
    ManagedBlocks::instance().give_back(std::move(block));
    return error;
  }
  module->managed = std::move(block);
  error = initialise_managed(*module);
  if (error == CUDA_SUCCESS) return error;
  (void)unload(module->id);
  module = nullptr;
  return error;
}

CUresult Modules::initialise_managed(Module& module) {
  for (const auto& [name, variable] : module.managed->variables) {
    const AddressRange range = variable.range;
    auto* const memory = reinterpret_cast<std::byte*>(range.address);  // NOLINT(performance-no-int-to-ptr)
    std::memset(memory, 0, range.size_bytes);
    for (std::uint64_t offset = 0; !variable.starts_as_zeroes && offset < range.size_bytes;) {
      const proto::VariableReadRecord record{module.id, offset};
      proto::VariableReadReply reply{};
      Answer answer;
      const CUresult error = session().channel().call({}, record, std::as_bytes(std::span(name)), reply, &answer);
      if (error != CUDA_SUCCESS) return error;
      const auto bytes = std::span(answer.payload).subspan(std::min(answer.payload.size(), proto::VariableReadReply::kBodyBytes));
      if (bytes.empty() || reply.size_bytes != range.size_bytes || bytes.size() > range.size_bytes - offset) return CUDA_ERROR_MPS_RPC_FAILURE;
      std::memcpy(memory + offset, bytes.data(), bytes.size());
      offset += bytes.size();
    }
  }
  return CUDA_SUCCESS;
}

CUresult Modules::get_managed(const Module& module, std::string_view name, Global& global) {
  const ManagedBlock::Variables& variables = module.managed != nullptr ? module.managed->variables : module.managed_elsewhere;
  const auto found = variables.find(name);
  if (found == variables.end()) return CUDA_ERROR_NOT_FOUND;
  global = {found->second.range.address, found->second.range.size_bytes};
  return CUDA_SUCCESS;
}

}  // namespace mpsshim::interposer::forward
