// SPDX-License-Identifier: Apache-2.0
#include "broker/cpudriver/modules/device_runtime_host.hpp"

#include "broker/cpudriver/context/context.hpp"
#include "broker/cpudriver/device/attributes.hpp"
#include "broker/cpudriver/device/devices.hpp"
#include "broker/cpudriver/handle_table.hpp"
#include "broker/cpudriver/modules/launch.hpp"

namespace mpsshim::cpudriver {

std::shared_ptr<Function> DeviceRuntimeHost::function(std::uint32_t kernel) const {
  return HandleTable<Function>::get().find(module_.functions()[kernel]);
}

bool DeviceRuntimeHost::attribute(std::int32_t attribute, std::int32_t& value) const {
  if (attribute <= 0 || attribute >= CU_DEVICE_ATTRIBUTE_MAX) return false;
  value = attribute_of(static_cast<CUdevice_attribute>(attribute));
  return true;
}

bool DeviceRuntimeHost::limit(std::int32_t limit, std::uint64_t& value) const {
  std::size_t bytes = 0;
  if (Context::primary().limit(static_cast<CUlimit>(limit), bytes) != CUDA_SUCCESS) return false;
  value = bytes;
  return true;
}

std::int32_t DeviceRuntimeHost::device_count() const { return Devices::get().count(); }

std::int32_t DeviceRuntimeHost::runtime_version() const { return kDriverVersion; }

std::int32_t DeviceRuntimeHost::binary_version() const {
  return attribute_of(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) * 10 + attribute_of(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
}

std::int32_t DeviceRuntimeHost::max_dynamic_shared_bytes(std::uint32_t kernel) const {
  const auto found = function(kernel);
  return found == nullptr ? 0 : found->max_dynamic_shared_bytes();
}

std::int32_t DeviceRuntimeHost::resident_blocks(std::uint32_t kernel, std::int32_t threads, std::uint64_t dynamic_shared_bytes) const {
  const auto found = function(kernel);
  return found == nullptr ? 0 : cpudriver::resident_blocks(*found, threads, dynamic_shared_bytes);
}

bool DeviceRuntimeHost::may_launch(std::uint32_t kernel, const ptx::Dim3& grid, const ptx::Dim3& block, std::uint32_t dynamic_shared_bytes) const {
  const auto found = function(kernel);
  const LaunchShape shape{{grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, dynamic_shared_bytes};
  return found != nullptr && check_shape(*found, shape) == CUDA_SUCCESS;
}

}  // namespace mpsshim::cpudriver
