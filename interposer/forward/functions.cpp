// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/functions.hpp"

#include <cstring>

#include "interposer/local/acting_session.hpp"
#include "proto/module_functions.hpp"

namespace mpsshim::interposer::forward {

namespace {

// What an entry of ModuleLoad's reply or the reply to FunctionLookup says, put where launches and queries look. False: it contradicts itself.
template <typename Facts>
bool take_facts(Function& function, const Facts& reply, std::span<const std::byte> trailing) {
  if (trailing.size() < reply.parameter_count * sizeof(Parameter)) return false;
  function.layout.resize(reply.parameter_count);
  if (reply.parameter_count != 0) std::memcpy(function.layout.data(), trailing.data(), reply.parameter_count * sizeof(Parameter));
  for (const Parameter& parameter : function.layout) {
    // Launches copy by this layout into a record: nothing may lie outside the parameter buffer.
    if (parameter.offset > reply.parameter_bytes || parameter.size > reply.parameter_bytes - parameter.offset) return false;
  }
  function.parameters = function.layout.data();
  function.parameter_count = reply.parameter_count;
  function.parameter_bytes = reply.parameter_bytes;
  function.attribute_valid = reply.attribute_valid;
  for (std::uint32_t i = 0; i < kFunctionAttributes; ++i) function.attribute[i].store(reply.attribute[i], std::memory_order_relaxed);
  function.max_threads_per_block.store(reply.attribute[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK], std::memory_order_relaxed);
  function.max_dynamic_shared_bytes.store(reply.attribute[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES], std::memory_order_relaxed);
  function.has_compiled_cluster = reply.attribute[CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH] != 0;
  function.has_launch_attributes.store(function.has_compiled_cluster, std::memory_order_relaxed);
  function.static_shared_bytes = reply.attribute[CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES];
  return true;
}

// One entry; the rest starts behind it. False: the bytes are no entry.
bool next_entry(std::span<const std::byte>& rest, proto::ModuleFunction& entry, std::span<const std::byte>& parameters, std::string_view& name) {
  if (rest.size() < sizeof entry) return false;
  std::memcpy(&entry, rest.data(), sizeof entry);
  const std::size_t parameter_bytes = std::size_t{entry.parameter_count} * proto::kParameterEntryBytes;
  const std::size_t used = sizeof entry + parameter_bytes + entry.name_bytes;
  if (entry.entry_bytes > rest.size() || used > entry.entry_bytes) return false;
  parameters = rest.subspan(sizeof entry, parameter_bytes);
  name = {reinterpret_cast<const char*>(rest.data()) + sizeof entry + parameter_bytes, entry.name_bytes};
  rest = rest.subspan(entry.entry_bytes);
  return true;
}

}  // namespace

Functions& Functions::instance() {
  return PerSession<Functions>::get([] { return new Functions(); });
}

Function* Functions::add(proto::ModuleId module, std::string_view name) {
  auto object = std::make_unique<Function>();
  Function* function = object.get();
  function->module = module;
  function->name = name;
  const proto::FunctionId id = functions_.add(std::move(object));
  if (id == proto::FunctionId{}) return nullptr;  // the object is gone
  function->id = id;
  return function;
}

CUresult Functions::bind(proto::ModuleId module, std::span<const std::byte> described, std::string_view name, Function*& result) {
  proto::ModuleFunction entry;
  std::span<const std::byte> parameters;
  std::string_view found;
  std::uint32_t number = 0;
  while (next_entry(described, entry, parameters, found)) {
    if (found == name) break;
    ++number;
  }
  if (found != name || name.empty()) return CUDA_ERROR_NOT_FOUND;
  Function* function = add(module, name);
  if (function == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult error = take_facts(*function, entry, parameters) ? CUDA_SUCCESS : CUDA_ERROR_MPS_RPC_FAILURE;
  if (error == CUDA_SUCCESS) {
    error = session().channel().post<proto::FunctionBindRecord>({}, 0, [&](proto::FunctionBindRecord& record, std::byte*, Place place) {
      record.module = module;
      record.function = function->id;
      record.number = number;
      function->recipe = session().recipes().add(recipe_of({}, record, place.position));
    });
  }
  if (error != CUDA_SUCCESS) {
    erase(function->id);
    return error;
  }
  result = function;
  return CUDA_SUCCESS;
}

CUresult Functions::look_up(proto::ModuleId module, std::string_view name, Function*& result) {
  Function* function = add(module, name);
  if (function == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  proto::FunctionLookupRecord record{};
  record.module = module;
  record.function = function->id;
  const auto trailing = std::as_bytes(std::span(name));
  proto::FunctionLookupReply reply{};
  Answer answer;
  CUresult error = session().call_kept(record, trailing, reply, answer, function->recipe);
  if (error == CUDA_SUCCESS && !take_facts(*function, reply, std::span(answer.payload).subspan(proto::FunctionLookupReply::kBodyBytes))) {
    error = CUDA_ERROR_MPS_RPC_FAILURE;
  }
  if (error != CUDA_SUCCESS) {
    erase(function->id);
    return error;
  }
  result = function;
  return CUDA_SUCCESS;
}

void Functions::end_recipes(Function& function, Place place) {
  session().end_recipe(function.recipe, place);
  for (const RecipeBook::Key key : function.attribute_recipe) session().end_recipe(key, place);
}

Kernel* Functions::add_kernel(LibraryId library, Function& function) {
  auto object = std::make_unique<Kernel>();
  Kernel* kernel = object.get();
  kernel->library = library;
  kernel->function = &function;
  const KernelId id = kernels_.add(std::move(object));
  if (id == KernelId{}) return nullptr;
  kernel->id = id;
  return kernel;
}

CUresult Functions::get_attribute(const Function& function, int attribute, int& value) {
  if (attribute < 0 || static_cast<std::uint32_t>(attribute) >= kFunctionAttributes) return CUDA_ERROR_INVALID_VALUE;
  if ((function.attribute_valid >> attribute & 1) == 0) return CUDA_ERROR_INVALID_VALUE;
  value = function.attribute[static_cast<std::size_t>(attribute)].load(std::memory_order_relaxed);
  return CUDA_SUCCESS;
}

CUresult Functions::set_attribute(Function& function, int attribute, int value) {
  // 8 (dynamic shared memory) to 15 may be set, 0 to 7 and 10 (cluster size must be set, fixed by the image) are the compiler's.
  if (attribute < CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || static_cast<std::uint32_t>(attribute) >= kFunctionAttributes) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto index = static_cast<std::size_t>(attribute);
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE: return set_launch_attribute(function, attribute, value);
    default: break;
  }
  // Libraries set the same value before every launch.
  if ((function.attribute_valid >> attribute & 1) != 0 && function.attribute[index].load(std::memory_order_relaxed) == value) return CUDA_SUCCESS;
  const std::lock_guard setting(setting_mutex_);  // what is remembered here is what was set last there
  proto::FunctionSetAttributeRecord record{};
  record.function = function.id;
  record.attribute = attribute;
  record.value = value;
  proto::FunctionSetAttributeReply reply{};
  RecipeBook::Key key = 0;
  if (const CUresult error = session().call_kept(record, {}, reply, key); error != CUDA_SUCCESS) return error;
  session().channel().locked([&](Link&) {
    session().recipes().forget(function.attribute_recipe[index]);
    function.attribute_recipe[index] = key;
  });
  function.attribute[index].store(value, std::memory_order_relaxed);
  if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) function.max_dynamic_shared_bytes.store(value, std::memory_order_relaxed);
  return CUDA_SUCCESS;
}

// What a launch can be given is not set on the driver's function, which other clients may use as well.
CUresult Functions::set_launch_attribute(Function& function, int attribute, int value) {
  const bool is_policy = attribute == CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE;
  if ((function.attribute_valid >> attribute & 1) == 0 || value < 0) return CUDA_ERROR_INVALID_VALUE;
  if (is_policy && value > CU_CLUSTER_SCHEDULING_POLICY_LOAD_BALANCING) return CUDA_ERROR_INVALID_VALUE;
  if (!is_policy && function.has_compiled_cluster) return CUDA_ERROR_NOT_PERMITTED;
  function.attribute[static_cast<std::size_t>(attribute)].store(value, std::memory_order_relaxed);
  function.has_launch_attributes.store(true, std::memory_order_relaxed);
  return CUDA_SUCCESS;
}

CUresult Functions::copy_attributes(const Function& from, Function& to) {
  constexpr std::uint32_t kOfLaunches = 1u << CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH | 1u << CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT |
                                        1u << CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH | 1u << CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE;
  const bool has_launch_attributes = from.has_launch_attributes.load(std::memory_order_relaxed) && !from.has_compiled_cluster;
  for (std::size_t i = 0; i < kFunctionAttributes; ++i) {
    if (from.attribute_recipe[i] == 0 && !(has_launch_attributes && (kOfLaunches >> i & 1) != 0)) continue;
    const int value = from.attribute[i].load(std::memory_order_relaxed);
    if (const CUresult error = set_attribute(to, static_cast<int>(i), value); error != CUDA_SUCCESS) return error;
  }
  return CUDA_SUCCESS;
}

}  // namespace mpsshim::interposer::forward
