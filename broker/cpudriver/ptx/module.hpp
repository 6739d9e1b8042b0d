// SPDX-License-Identifier: Apache-2.0
//
// A compiled PTX image. `compile` turns one or several texts (several: one symbol table, as -rdc needs) into an
// immutable Module, which any thread may read. A ModuleInstance binds its globals to addresses: each context (or
// client) that loads the image makes its own. The texts are not trusted and not kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "broker/cpudriver/ptx/fault.hpp"

namespace mpsshim::ptx {

struct Program;   // The decoded code; private to the engine.
struct Bindings;  // Addresses as operands; private to the engine.

struct ParameterInfo {
  std::uint32_t offset = 0;
  std::uint32_t size = 0;
};

// The attributes that cuFuncGetAttribute and cuFuncGetParamInfo report.
struct KernelInfo {
  std::string name;
  std::vector<ParameterInfo> parameters;
  std::uint32_t parameter_bytes = 0;  // End of the last parameter.
  std::uint32_t static_shared_bytes = 0;
  std::uint32_t local_bytes = 0;                // Per thread, of the kernel itself and what it certainly calls.
  std::uint32_t const_bytes = 0;                // All .const variables of the image.
  std::uint32_t max_threads_per_block = 1024;   // .maxntid and .reqntid lower it.
  std::uint32_t required_block[3] = {0, 0, 0};  // .reqntid; 0: free.
  std::uint32_t registers = 0;                  // An estimate, 16 to 255: so few that the largest block fits, and .maxnreg.
  std::uint32_t ptx_version = 0;                // 90 for ".version 9.0".
  std::uint32_t target_sm = 0;                  // 75 for ".target sm_75".
};

enum class GlobalSpace { global, constant };

// At `offset` of the initial bytes stands the address of another global.
struct Relocation {
  std::uint64_t offset = 0;
  std::uint32_t target = 0;  // Index into globals().
  std::int64_t addend = 0;
};

struct GlobalInfo {
  std::string name;
  GlobalSpace space = GlobalSpace::global;
  std::uint64_t size = 0;
  std::uint64_t alignment = 1;
  bool is_managed = false;
  bool is_visible = false;         // .visible, .weak or .common: known to other texts. find_global finds others too.
  bool may_be_written = false;     // By kernels of this image: stored to, or its address escapes.
  std::vector<std::byte> initial;  // May be shorter than size; the rest is zero.
  std::vector<Relocation> relocations;
};

class Module {
 public:
  explicit Module(std::unique_ptr<Program> program);
  ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  [[nodiscard]] const std::vector<KernelInfo>& kernels() const;
  [[nodiscard]] const std::vector<GlobalInfo>& globals() const;
  [[nodiscard]] std::optional<std::uint32_t> find_kernel(std::string_view name) const;
  [[nodiscard]] std::optional<std::uint32_t> find_global(std::string_view name) const;
  [[nodiscard]] const Program& program() const { return *program_; }

 private:
  std::unique_ptr<Program> program_;
};

// Null and `error` filled if the image cannot be executed exactly as written.
[[nodiscard]] std::shared_ptr<const Module> compile(std::span<const std::string_view> ptx_texts, Error& error);

class ModuleInstance {
 public:
  // One address per entry of module->globals(), in that order.
  ModuleInstance(std::shared_ptr<const Module> module, std::vector<std::uint64_t> global_addresses);
  ~ModuleInstance();
  ModuleInstance(const ModuleInstance&) = delete;
  ModuleInstance& operator=(const ModuleInstance&) = delete;

  [[nodiscard]] const Module& module() const { return *module_; }
  [[nodiscard]] std::uint64_t global_address(std::uint32_t global) const { return global_addresses_[global]; }
  [[nodiscard]] const Bindings& bindings() const { return *bindings_; }

  // Writes the initial image of a global (bytes, zeros, relocated addresses) to `destination`, which is its
  // address or a staging copy of info.size bytes.
  void write_initial(std::uint32_t global, void* destination) const;

 private:
  std::shared_ptr<const Module> module_;
  std::vector<std::uint64_t> global_addresses_;
  std::unique_ptr<Bindings> bindings_;
};

}  // namespace mpsshim::ptx
