// SPDX-License-Identifier: Apache-2.0
//
// What kernels of a module that launch kernels learn of the device, and whether a launch of theirs may be: as a launch
// by the host. Made for one launch, whose module it refers to.
#pragma once

#include "broker/cpudriver/modules/module.hpp"
#include "broker/cpudriver/ptx/engine.hpp"

namespace mpsshim::cpudriver {

class DeviceRuntimeHost final : public ptx::DeviceRuntimeHost {
 public:
  explicit DeviceRuntimeHost(const Module& module) : module_(module) {}

  [[nodiscard]] bool attribute(std::int32_t attribute, std::int32_t& value) const override;
  [[nodiscard]] bool limit(std::int32_t limit, std::uint64_t& value) const override;
  [[nodiscard]] std::int32_t device_count() const override;
  [[nodiscard]] std::int32_t runtime_version() const override;
  [[nodiscard]] std::int32_t binary_version() const override;
  [[nodiscard]] std::int32_t max_dynamic_shared_bytes(std::uint32_t kernel) const override;
  [[nodiscard]] std::int32_t resident_blocks(std::uint32_t kernel, std::int32_t threads, std::uint64_t dynamic_shared_bytes) const override;
  [[nodiscard]] bool may_launch(std::uint32_t kernel, const ptx::Dim3& grid, const ptx::Dim3& block,
                                std::uint32_t dynamic_shared_bytes) const override;

 private:
  // Null once the module is being unloaded.
  [[nodiscard]] std::shared_ptr<Function> function(std::uint32_t kernel) const;

  const Module& module_;
};

}  // namespace mpsshim::cpudriver
