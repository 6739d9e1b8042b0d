// SPDX-License-Identifier: Apache-2.0
//
// A loaded image: compiled code, its variables in device memory, its functions. Shared ownership: the handle table
// until it is unloaded, and each queued launch of one of its functions, so that unloading never pulls code from under
// a launch. A CUmodule and a CUlibrary are both one of these; a CUkernel is the same handle as its CUfunction.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "broker/cpudriver/ptx/module.hpp"

namespace mpsshim::cpudriver {

class Module;

class Function {
 public:
  Function(std::shared_ptr<Module> module, std::uint32_t index) : module_(std::move(module)), index_(index) {}

  const std::shared_ptr<Module>& module() const { return module_; }
  std::uint32_t index() const { return index_; }
  const ptx::KernelInfo& info() const;

  // As cuFuncGetAttribute and cuFuncSetAttribute.
  CUresult attribute(CUfunction_attribute attribute, int& value) const;
  CUresult set_attribute(CUfunction_attribute attribute, int value);
  int max_dynamic_shared_bytes() const;

  // Functions of a library are brought to the device at their first use, which waits for running kernels on a GPU.
  // True for the one caller that must wait.
  bool take_first_use() { return !was_used_.exchange(true); }
  void mark_used() { was_used_ = true; }

 private:
  static constexpr int kNotSet = -1;

  const std::shared_ptr<Module> module_;
  const std::uint32_t index_;
  std::atomic<int> max_dynamic_shared_bytes_{kNotSet};
  std::atomic<int> carveout_{CU_SHAREDMEM_CARVEOUT_DEFAULT};
  std::atomic<bool> was_used_{false};
};

class Module : public std::enable_shared_from_this<Module> {
 public:
  // Compiles, allocates and initialises the variables, and enters the functions in their handle table. `why` receives
  // a sentence when it fails. `is_library`: functions count as not yet used.
  static CUresult load(const void* image, bool is_library, std::shared_ptr<Module>& module, std::string& why);
  Module(std::shared_ptr<const ptx::Module> code, std::uint64_t variables);
  ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  const ptx::ModuleInstance& instance() const { return *instance_; }
  const ptx::Module& code() const { return instance_->module(); }
  const std::vector<CUfunction>& functions() const { return functions_; }

  // Null if there is none of this name.
  CUfunction find_function(std::string_view name) const;
  const ptx::GlobalInfo* find_variable(std::string_view name, CUdeviceptr& address) const;

  // Takes the functions out of their handle table. What is queued stays.
  void forget_functions();

 private:
  void make_functions(bool is_library);

  const std::uint64_t variables_;  // one block of device memory, 0 if the image has none
  std::unique_ptr<ptx::ModuleInstance> instance_;
  std::vector<CUfunction> functions_;  // by kernel index
};

}  // namespace mpsshim::cpudriver
