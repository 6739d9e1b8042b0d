// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/modules/loaded_image.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <functional>
#include <string_view>

#include "broker/log.hpp"
#include "gen/records.hpp"
#include "proto/channel.hpp"
#include "proto/module_functions.hpp"
#include "proto/trace.hpp"

namespace mpsshim::broker {

// Images and their variables, which lie where the driver says.
class ModuleVariables {
 public:
  template <std::size_t Count>
  [[nodiscard]] static CUresult load(const Driver& driver, CUmodule& module, std::span<const std::byte> content,
                                     std::array<CUjit_option, Count>& options, std::array<void*, Count>& values) {
    return driver->cuModuleLoadDataEx(AddressKey(), &module, content.data(), static_cast<unsigned>(Count), options.data(), values.data());
  }
  [[nodiscard]] static CUresult read(const Driver& driver, CUdeviceptr variable, std::span<std::byte> content) {
    return driver->cuMemcpyDtoH_v2(AddressKey(), content.data(), variable, content.size());
  }
  // `content` is as long as the variable, or longer.
  [[nodiscard]] static CUresult write(const Driver& driver, const LoadedImage::Variable& variable, std::span<const std::byte> content,
                                      CUstream stream) {
    return driver->cuMemcpyHtoDAsync_v2(AddressKey(), variable.address, content.data(), std::min(variable.size_bytes, content.size()), stream);
  }
  [[nodiscard]] static CUresult clear(const Driver& driver, const LoadedImage::Variable& variable, CUstream stream) {
    return driver->cuMemsetD8Async(AddressKey(), variable.address, 0, variable.size_bytes, stream);
  }
};

namespace {

constexpr unsigned kEagerFunctions = 64;           // a module with at most so many has all of them looked up in the window that loads it
constexpr std::size_t kLeastCostBytes = 64u << 10;  // a small module takes more of the device than its content
constexpr std::size_t kMaxSavedBytes = 64u << 20;  // of variables with contents; beyond, a copy serves one client
constexpr std::ptrdiff_t kMaxSavedVariables = 64;  // with contents: each is read in the window, 8 us; beyond, likewise
constexpr std::ptrdiff_t kMaxHashedVariables = 1'024;  // with contents, of an image whose functions have addresses
constexpr std::size_t kMaxNotedVariables = 16;     // at each launch; of a kernel that may write to more all are
constexpr std::size_t kMaxDescriptionBytes = proto::kMaxReplyBytes - sizeof(proto::ModuleLoadReply);
constexpr std::size_t kSmallFillBytes = 128u << 10;  // copied rather than filled: a fill is a kernel, and waits for room on the GPU

CUresult describe(const Driver& driver, CUfunction handle, LoadedFunction& function) {
  function.handle = handle;
  for (int i = 0; i < 16; ++i) {
    int value = 0;
    if (driver->cuFuncGetAttribute(&value, static_cast<CUfunction_attribute>(i), handle) != CUDA_SUCCESS) continue;
    function.attribute[i] = value;
    function.attribute_valid |= 1u << i;
  }
  function.local_bytes = static_cast<std::uint32_t>(function.attribute[CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES]);
  function.has_fixed_cluster =
      function.attribute[CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET] != 0 || function.attribute[CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH] != 0;
  if (function.has_fixed_cluster) function.cluster.close();
  for (std::size_t i = 0;; ++i) {
    std::size_t offset = 0;
    std::size_t size = 0;
    const CUresult result = driver->cuFuncGetParamInfo(handle, i, &offset, &size);
    if (result == CUDA_ERROR_INVALID_VALUE) return CUDA_SUCCESS;  // one past the last
    if (result != CUDA_SUCCESS) return result;
    function.parameters.push_back({static_cast<std::uint32_t>(offset), static_cast<std::uint32_t>(size)});
    function.parameter_bytes = static_cast<std::uint32_t>(offset + size);
  }
}

// Appends an entry to the image's description. False: the reply has no room for it.
bool describe_in_reply(LoadedImage& image, const std::string& name, const LoadedFunction& function) {
  const std::size_t bytes = proto::module_function_bytes(function.parameters.size(), name.size());
  const std::size_t start = image.description.size();
  if (bytes > kMaxDescriptionBytes - start) return false;
  proto::ModuleFunction entry;
  entry.entry_bytes = static_cast<std::uint32_t>(bytes);
  entry.name_bytes = static_cast<std::uint32_t>(name.size());
  entry.parameter_count = static_cast<std::uint32_t>(function.parameters.size());
  entry.parameter_bytes = function.parameter_bytes;
  std::copy(std::begin(function.attribute), std::end(function.attribute), std::begin(entry.attribute));
  entry.attribute_valid = function.attribute_valid;
  image.description.resize(start + bytes);
  std::byte* at = image.description.data() + start;
  std::memcpy(at, &entry, sizeof entry);
  at += sizeof entry;
  static_assert(sizeof(ParameterLayout) == proto::kParameterEntryBytes);
  if (!function.parameters.empty()) std::memcpy(at, function.parameters.data(), function.parameters.size() * sizeof(ParameterLayout));
  at += function.parameters.size() * sizeof(ParameterLayout);
  std::memcpy(at, name.data(), name.size());
  image.described.push_back(&function);
  return true;
}

void look_up_all(const Driver& driver, LoadedImage& image) {
  const proto::trace::Span span("driver", "looking up functions", {"functions", image.function_count});
  std::vector<std::string> names;
  if (image.function_count > kEagerFunctions || list_names(driver, image, names) != CUDA_SUCCESS) return;
  bool has_room = true;
  for (const std::string& name : names) {
    const LoadedFunction* function = nullptr;
    const CUresult result = look_up(driver, image, name, function);
    if (result != CUDA_SUCCESS) log_debug("Image {}: {} could not be looked up ahead: {}", image.image, name, driver.describe(result));
    if (result == CUDA_SUCCESS) has_room = has_room && describe_in_reply(image, name, *function);
  }
}

struct PlacedVariable {
  const image::Variable* variable = nullptr;
  CUdeviceptr address = 0;
  std::size_t size_bytes = 0;
};

CUresult ask_place(const Driver& driver, const LoadedImage& image, PlacedVariable& placed) {
  return driver->cuModuleGetGlobal_v2(&placed.address, &placed.size_bytes, image.handle, placed.variable->name.c_str());
}

// Of the variables of one section, in the order of their offsets: the driver is asked for the first and the last, 8 to 30 us each, and the rest
// lies between as the file says. False: it does not, or the file does not say.
bool derive_places(const Driver& driver, const LoadedImage& image, std::span<PlacedVariable> section) {
  if (section.size() < 3 || section.front().variable->section == 0) return false;
  PlacedVariable& first = section.front();
  PlacedVariable& last = section.back();
  if (ask_place(driver, image, first) != CUDA_SUCCESS || ask_place(driver, image, last) != CUDA_SUCCESS) return false;
  const CUdeviceptr base = first.address - first.variable->offset_bytes;
  if (last.address != base + last.variable->offset_bytes) return false;
  if (first.size_bytes != first.variable->size_bytes || last.size_bytes != last.variable->size_bytes) return false;
  for (PlacedVariable& placed : section) {
    placed.address = base + placed.variable->offset_bytes;
    placed.size_bytes = placed.variable->size_bytes;
  }
  return true;
}

CUresult find_places(const Driver& driver, const LoadedImage& image, std::span<PlacedVariable> variables) {
  std::ranges::sort(variables, {}, [](const PlacedVariable& placed) { return std::pair(placed.variable->section, placed.variable->offset_bytes); });
  while (!variables.empty()) {
    const std::uint32_t section = variables.front().variable->section;
    const auto end = std::ranges::find_if(variables, [&](const PlacedVariable& placed) { return placed.variable->section != section; });
    const auto count = static_cast<std::size_t>(end - variables.begin());
    if (!derive_places(driver, image, variables.first(count))) {
      for (PlacedVariable& placed : variables.first(count)) {
        if (const CUresult result = ask_place(driver, image, placed); result != CUDA_SUCCESS) return result;
      }
    }
    variables = variables.subspan(count);
  }
  return CUDA_SUCCESS;
}

CUresult read_content(const Driver& driver, LoadedImage::Variable& variable) {
  variable.content.resize(variable.size_bytes);
  const CUresult result = ModuleVariables::read(driver, variable.address, variable.content);
  variable.loaded_hash = loaded_hash_of(variable.content);
  return result;
}

// In the window that loads the image: nothing else runs, so the copies take their time and no more. One by one: a copy that goes beyond a variable
// is refused, whatever lies behind it (CUDA_ERROR_INVALID_VALUE; H200, driver 580). Of what would take too long or too much only the places are
// noted: CUDA_ERROR_OUT_OF_MEMORY. Linked code has addresses, which variables may hold: there it is read all the same, for the hash.
CUresult save_variables(const Driver& driver, const PreparedImage& prepared, LoadedImage& image) {
  const proto::trace::Span span("driver", "saving variables", {"variables", prepared.variables->size()});
  std::vector<PlacedVariable> placed;
  for (const image::Variable& variable : *prepared.variables) placed.push_back({&variable});
  if (const CUresult result = find_places(driver, image, placed); result != CUDA_SUCCESS) {
    log_debug("Image {}: the places of its variables are not known ({})", image.image, driver.describe(result));
    return result;
  }
  image.mutex.assume_held();  // nobody else knows it yet
  const auto has_content = [](const PlacedVariable& found) { return !found.variable->starts_as_zeroes; };
  std::size_t content_bytes = 0;
  for (const PlacedVariable& found : placed) content_bytes += has_content(found) ? found.size_bytes : 0;
  const std::ptrdiff_t contents = std::ranges::count_if(placed, has_content);
  const bool is_much = content_bytes > kMaxSavedBytes || contents > kMaxSavedVariables;
  const bool is_hashed = !is_much || (prepared.takes_code_addresses && content_bytes <= kMaxSavedBytes && contents <= kMaxHashedVariables);
  for (const PlacedVariable& found : placed) {
    image.globals[found.variable->name] = {found.address, found.size_bytes};
    image.variable_numbers[found.variable->name] = static_cast<std::uint32_t>(image.variables.size());
    LoadedImage::Variable& saved = image.variables.emplace_back(LoadedImage::Variable{found.address, found.size_bytes, {}});
    saved.is_content_known = !is_much || !has_content(found);
    if (!has_content(found) || !is_hashed) continue;
    if (const CUresult copied = read_content(driver, saved); copied != CUDA_SUCCESS) return image.variables.clear(), copied;
    if (is_much) saved.content = {};
  }
  return is_much ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

// A kernel that the driver knows of and that was not found in the image may do anything, and so may then all.
void note_uses(LoadedImage& image, const image::VariableUses& uses) {
  image.mutex.assume_held();  // nobody else knows it yet
  image.changes = std::make_unique<VariableChanges>(image.variables.size());
  for (const std::string& name : uses.constants) {
    if (const auto number = image.variable_numbers.find(name); number != image.variable_numbers.end()) image.changes->set_constant(number->second);
  }
  image.uses = uses;
  image.uses.are_known = uses.are_known && image.function_count <= uses.kernel_count;
  if (!image.uses.are_known) log_debug("Image {}: which of its kernels write to which of its variables is not known", image.image);
  for (auto& [name, function] : image.functions) function->variables = variable_use_of(image, name);
}

// For the client, which has the variables. Once more than kMaxSavedBytes it does without the rest, and the load fails there.
CUresult save_placed(const Driver& driver, const std::vector<image::Variable>& names, LoadedImage& image) {
  std::size_t saved_bytes = 0;
  for (const image::Variable& variable : names) {
    if (variable.starts_as_zeroes) continue;
    CUdeviceptr address = 0;
    std::size_t size_bytes = 0;
    const CUresult found = driver->cuModuleGetGlobal_v2(&address, &size_bytes, image.handle, variable.name.c_str());
    if (found != CUDA_SUCCESS) return found;
    saved_bytes += size_bytes;
    if (saved_bytes > kMaxSavedBytes) return CUDA_ERROR_OUT_OF_MEMORY;
    std::vector<std::byte>& content = image.placed[variable.name];
    content.resize(size_bytes);
    const CUresult copied = ModuleVariables::read(driver, address, content);
    if (copied != CUDA_SUCCESS) return copied;
  }
  return CUDA_SUCCESS;
}

}  // namespace

CUresult load_image(const Driver& driver, const PreparedImage& prepared, LoadedImage& image, std::string& log) {
  std::array<char, 4096> error_log{};
  std::array options{CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  std::array<void*, 2> values{error_log.data(), reinterpret_cast<void*>(error_log.size())};
  const CUresult result = [&] {
    const proto::trace::Span span("driver", "cuModuleLoadDataEx", {"bytes", prepared.content.size()});
    return ModuleVariables::load(driver, image.handle, prepared.content.bytes(), options, values);
  }();
  if (result != CUDA_SUCCESS) {
    image.handle = nullptr;
    log.assign(error_log.data());
    return result;
  }
  image.has_writable_globals = prepared.has_writable_globals;
  image.has_managed = !prepared.managed.empty();
  image.has_references = prepared.has_references;
  image.takes_code_addresses = prepared.takes_code_addresses;
  image.code_takes_addresses = prepared.code_takes_addresses;
  image.adds_for_system = prepared.adds_for_system;
  image.uses_device_heap = prepared.uses_device_heap;
  image.all_may_use_device_heap = prepared.all_may_use_device_heap;
  image.heap_kernels = prepared.heap_kernels;
  image.all_may_print = prepared.all_may_print;
  image.printing_kernels = prepared.printing_kernels;
  unsigned count = 0;
  if (driver->cuModuleGetFunctionCount(&count, image.handle) == CUDA_SUCCESS) image.function_count = count;
  look_up_all(driver, image);
  if (const CUresult placed = save_placed(driver, prepared.placed, image); placed != CUDA_SUCCESS) {
    log_warning("Image {}: initial values of its __managed__ variables could not be read ({}); at most {} bytes are. Its load fails", image.image,
                driver.describe(placed), kMaxSavedBytes);
    image.placed.clear();
  }
  if (!image.has_writable_globals) return CUDA_SUCCESS;
  const CUresult saved = prepared.variables ? save_variables(driver, prepared, image) : CUDA_ERROR_NOT_FOUND;
  image.can_be_restored = saved == CUDA_SUCCESS && !image.has_managed;
  note_uses(image, prepared.variable_uses);
  if (saved != CUDA_SUCCESS) {
    log_debug("Image {}: not all of its {} variables can be saved ({}), so each of its copies serves one client", image.image,
              prepared.variables ? prepared.variables->size() : 0, driver.describe(saved));
  }
  return CUDA_SUCCESS;
}

std::unique_ptr<VariableChanges::Use> variable_use_of(const LoadedImage& image, std::string_view function) {
  const auto all = [&] { return std::make_unique<VariableChanges::Use>(VariableChanges::Use{image.changes.get(), {}, true, true}); };
  if (image.variables.empty() || image.changes == nullptr) return nullptr;
  if (!image.uses.are_known || image.has_managed) return all();
  const auto found = image.uses.kernels.find(function);
  if (found == image.uses.kernels.end()) return nullptr;
  auto use = std::make_unique<VariableChanges::Use>(VariableChanges::Use{image.changes.get(), {}, false, found->second.leaves_addresses});
  for (const std::string& name : found->second.variables) {
    const auto number = image.variable_numbers.find(name);
    if (number == image.variable_numbers.end() || use->variables.size() == kMaxNotedVariables) return all();
    use->variables.push_back(number->second);
  }
  return use;
}

CUresult look_up(const Driver& driver, LoadedImage& image, const std::string& name, const LoadedFunction*& found) {
  CUfunction handle = nullptr;
  CUresult result = driver->cuModuleGetFunction(&handle, image.handle, name.c_str());
  if (result != CUDA_SUCCESS) return result;
  auto function = std::make_unique<LoadedFunction>();
  function->name = name;
  function->prints = image.all_may_print || image.printing_kernels.contains(name);
  function->variables = variable_use_of(image, name);
  function->uses_device_heap = image.all_may_use_device_heap || image.heap_kernels.contains(name);
  result = describe(driver, handle, *function);
  if (result != CUDA_SUCCESS) return result;
  std::lock_guard lock(image.mutex);
  found = image.functions.try_emplace(name, std::move(function)).first->second.get();
  return CUDA_SUCCESS;
}

CUresult list_names(const Driver& driver, LoadedImage& image, std::vector<std::string>& names) {
  std::vector<CUfunction> handles(image.function_count);
  CUresult result = CUDA_SUCCESS;
  if (!handles.empty()) result = driver->cuModuleEnumerateFunctions(handles.data(), image.function_count, image.handle);
  for (std::size_t i = 0; result == CUDA_SUCCESS && i < handles.size(); ++i) {
    const char* name = nullptr;
    result = driver->cuFuncGetName(&name, handles[i]);
    if (result == CUDA_SUCCESS) names.emplace_back(name);
  }
  if (result != CUDA_SUCCESS) return result;
  std::lock_guard lock(image.mutex);
  image.names = names;
  return CUDA_SUCCESS;
}

CUresult restore_variables(const Driver& driver, std::span<const LoadedImage::Variable> variables, CUstream stream) {
  static const std::vector<std::byte> zeroes(kSmallFillBytes);
  CUresult result = CUDA_SUCCESS;
  for (const LoadedImage::Variable& variable : variables) {
    if (result != CUDA_SUCCESS) return result;
    if (!variable.content.empty()) {
      result = ModuleVariables::write(driver, variable, variable.content, stream);
    } else if (variable.size_bytes <= zeroes.size()) {
      result = ModuleVariables::write(driver, variable, zeroes, stream);
    } else {
      result = ModuleVariables::clear(driver, variable, stream);
    }
  }
  return result == CUDA_SUCCESS ? driver->cuStreamSynchronize(stream) : result;
}

std::uint64_t loaded_hash_of(std::span<const std::byte> content) {
  return std::hash<std::string_view>()(std::string_view(reinterpret_cast<const char*>(content.data()), content.size())) | 1;
}

std::size_t cost_of(const PreparedImage& prepared, const LoadedImage& loaded) {
  std::size_t bytes = std::max(prepared.content.size(), kLeastCostBytes);
  for (const LoadedImage::Variable& variable : loaded.variables) bytes += variable.size_bytes;
  return bytes;
}

std::string words_for_place(const LoadedImage& image) {
  return image.variables.empty() ? std::string() : fmt::format(", variables from {:#x}", image.variables.front().address);
}

}  // namespace mpsshim::broker
