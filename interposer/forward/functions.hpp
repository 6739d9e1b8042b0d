// SPDX-License-Identifier: Apache-2.0
// Functions and kernels: what a launch needs to know about them, learnt once from the executor's reply to ModuleLoad or FunctionLookup.
// CUfunction and CUkernel are accepted wherever the driver accepts both: a Kernel (which belongs to a library) points at its Function.
//
// Reading takes no lock. A Function belongs to its module and ends with it; CUDA forbids using its handle meanwhile. Attributes change
// through cuFuncSetAttribute only, in this process; the executor is told, so the copy here is what its driver would answer.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gen/cuda_api.hpp"
#include "interposer/forward/begin.hpp"
#include "interposer/local/acting_session.hpp"
#include "proto/handle_table.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::interposer::forward {

using LibraryId = proto::Id<proto::HandleKind::library>;
using KernelId = proto::Id<proto::HandleKind::kernel>;

struct Parameter {
  std::uint32_t offset;
  std::uint32_t size;
};

inline constexpr std::uint32_t kFunctionAttributes = 16;

struct Function {
  // The launch path reads these; they fit in one line of cache.
  proto::FunctionId id;
  std::uint32_t parameter_bytes = 0;
  std::uint32_t parameter_count = 0;
  const Parameter* parameters = nullptr;  // layout_'s data
  std::atomic<std::int32_t> max_threads_per_block{0};
  std::atomic<std::int32_t> max_dynamic_shared_bytes{0};
  std::int32_t static_shared_bytes = 0;
  std::atomic<bool> has_launch_attributes{false};  // launches get what was set here (launch_attributes.hpp), or are in compiled clusters

  proto::ModuleId module;
  std::string name;
  std::vector<Parameter> layout;
  std::array<std::atomic<std::int32_t>, kFunctionAttributes> attribute{};
  std::uint32_t attribute_valid = 0;  // bit i: the driver answered attribute i
  bool has_compiled_cluster = false;  // its cluster dimensions are in the image
  std::array<RecipeBook::Key, kFunctionAttributes> attribute_recipe{};
  RecipeBook::Key recipe = 0;
};

struct Kernel {
  KernelId id;
  LibraryId library;
  Function* function = nullptr;
};

// Of a kernel of another session; null: it is none, or cannot be loaded here, with a line.
[[nodiscard]] Kernel* counterpart_of(CUkernel kernel);

class Functions {
 public:
  [[nodiscard]] static Functions& instance();

  // A CUfunction, or a CUkernel cast to one. Null if the handle is neither.
  [[nodiscard]] Function* resolve(CUfunction handle) {
    const proto::FunctionId id = id_of<proto::HandleKind::function>(handle);
    if (Function* function = functions_.find(id).get()) [[likely]]
      return function;
    const Kernel* kernel = resolve_kernel(reinterpret_cast<CUkernel>(handle));
    return kernel != nullptr ? kernel->function : nullptr;
  }
  // One that another session's library has given is this session's of the same name (library_counterparts.cpp).
  [[nodiscard]] Kernel* resolve_kernel(CUkernel handle) {
    Kernel* const kernel = kernels_.find(id_of<proto::HandleKind::kernel>(handle)).get();
    return kernel != nullptr || !has_several_sessions() ? kernel : counterpart_of(handle);
  }

  // Takes an id for a function that `described` tells of (proto/module_functions.hpp); no round trip. CUDA_ERROR_NOT_FOUND if it does not.
  [[nodiscard]] CUresult bind(proto::ModuleId module, std::span<const std::byte> described, std::string_view name, Function*& function);
  // Asks the executor. CUDA_ERROR_NOT_FOUND where the module has no such function.
  [[nodiscard]] CUresult look_up(proto::ModuleId module, std::string_view name, Function*& function);
  // Inside the post that ends its module: the recipes end there, too.
  void end_recipes(Function& function, Place place);
  void erase(proto::FunctionId id) { (void)functions_.take(id); }

  [[nodiscard]] Kernel* add_kernel(LibraryId library, Function& function);
  void erase_kernel(KernelId id) { (void)kernels_.take(id); }

  [[nodiscard]] static CUresult get_attribute(const Function& function, int attribute, int& value);
  [[nodiscard]] CUresult set_attribute(Function& function, int attribute, int value);
  // Sets on `to` what was set on `from`.
  [[nodiscard]] CUresult copy_attributes(const Function& from, Function& to);

 private:
  [[nodiscard]] static CUresult set_launch_attribute(Function& function, int attribute, int value);
  // Not yet known to the executor; nullptr: the table is full.
  [[nodiscard]] Function* add(proto::ModuleId module, std::string_view name);

  proto::HandleTable<proto::HandleKind::function, Function> functions_{ActingSession::index()};
  proto::HandleTable<proto::HandleKind::kernel, Kernel> kernels_{ActingSession::index()};
  Mutex setting_mutex_;
};

}  // namespace mpsshim::interposer::forward
