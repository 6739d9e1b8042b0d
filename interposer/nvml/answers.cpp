// SPDX-License-Identifier: Apache-2.0
// What the shadow answers itself: a device's memory, to a client; and, where NVIDIA's library is not there, what the broker's facts can tell.
#include <algorithm>
#include <atomic>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <new>
#include <optional>
#include <string>
#include <string_view>

#include <fcntl.h>
#include <unistd.h>

#include "interposer/nvml/shadow.hpp"
#include "proto/memory_limit.hpp"
#include "proto/segment.hpp"

namespace mpsshim::interposer::nvml {

namespace {

using proto::DeviceFacts;
using proto::DriverFacts;

std::atomic<unsigned> initialisations{0};  // without NVIDIA's library, which counts itself

const char kDevices[proto::kMaxDevices] = {};  // a handle is the address of its ordinal's element

template <typename T>
T* pointer(Word word) {
  return reinterpret_cast<T*>(word);  // NOLINT(performance-no-int-to-ptr)
}

const DriverFacts* facts() {
  const proto::ManagementTable* const table = client();
  return table == nullptr ? nullptr : table->facts();
}

// Whatever a program hands in as one.
std::optional<std::uint32_t> ordinal_of(Word handle) {
  const Word ordinal = handle - reinterpret_cast<std::uintptr_t>(&kDevices[0]);
  const DriverFacts* const known = facts();
  if (known == nullptr || ordinal >= known->device_count) return std::nullopt;
  return static_cast<std::uint32_t>(ordinal);
}

const DeviceFacts* device_of(Word handle) {
  const auto ordinal = ordinal_of(handle);
  return ordinal ? &facts()->device[*ordinal] : nullptr;
}

Word give_handle(std::optional<std::uint32_t> ordinal, Word to) {
  if (to == 0) return word(Result::invalid_argument);
  if (!ordinal) return word(Result::not_found);
  *pointer<const char*>(to) = &kDevices[*ordinal];
  return word(Result::success);
}

Word give_text(std::string_view text, Word to, Word bytes) {
  if (to == 0) return word(Result::invalid_argument);
  if (text.size() >= static_cast<unsigned>(bytes)) return word(Result::insufficient_size);
  std::memcpy(pointer<char>(to), text.data(), text.size());
  pointer<char>(to)[text.size()] = '\0';
  return word(Result::success);
}

// "GPU-" and the usual form.
std::string uuid_text(const DeviceFacts& device) {
  std::string text = "GPU-";
  for (std::size_t i = 0; i < std::size(device.uuid); ++i) {
    char digits[4];
    std::snprintf(digits, sizeof digits, "%02x", device.uuid[i]);
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += digits;
  }
  return text;
}

struct PciAddress {
  unsigned domain = 0;
  unsigned bus = 0;
  unsigned device = 0;
  bool operator==(const PciAddress&) const = default;
};

// domain:bus:device.function, as NVML has it, with eight digits of the domain, and CUDA with four.
std::optional<PciAddress> parse_pci(const char* text) {
  PciAddress address;
  if (std::sscanf(text, "%x:%x:%x", &address.domain, &address.bus, &address.device) == 3) return address;
  address = {};
  if (std::sscanf(text, "%x:%x", &address.bus, &address.device) == 2) return address;
  return std::nullopt;
}

// --- memory ---

// What a client is shown in place of the device's own; nullopt: it has neither a session on it nor a limit.
std::optional<Memory> memory_of_client(std::uint32_t ordinal) {
  const proto::ManagementTable* const table = client();
  if (table == nullptr) return std::nullopt;
  std::uint64_t free_bytes = 0, total_bytes = 0;
  if (table->memory(ordinal, &free_bytes, &total_bytes)) return Memory{total_bytes, free_bytes, total_bytes - free_bytes};
  const std::uint64_t limit = table->asked_limit_bytes(ordinal);
  if (limit == 0) return std::nullopt;
  const std::uint64_t bytes = std::min(limit, table->facts()->device[ordinal].total_memory_bytes);
  return Memory{bytes, bytes, 0};
}

// NVIDIA's library has handles of its own; a device is the broker's that has its UUID.
std::optional<std::uint32_t> ordinal_of_real(Word handle) {
  const DriverFacts* const known = facts();
  char uuid[kUuidBytes] = {};
  if (known == nullptr) return std::nullopt;
  if (call_real(Function::nvmlDeviceGetUUID, {handle, reinterpret_cast<std::uintptr_t>(&uuid[0]), kUuidBytes, 0, 0, 0}) != word(Result::success))
    return std::nullopt;
  const char* const digits = std::strchr(uuid, '-');
  if (digits == nullptr) return std::nullopt;
  for (std::uint32_t ordinal = 0; ordinal < known->device_count; ++ordinal) {
    if (uuid_text(known->device[ordinal]).substr(3) == digits) return ordinal;
  }
  return std::nullopt;
}

// nullopt: `refusal` is the answer. Of NVIDIA's library the result is the first that counts.
std::optional<Memory> memory_for(Function function, const Words& words, Word& refusal) {
  refusal = word(Result::success);
  if (has_real()) {
    refusal = call_real(function, words);
    const auto ordinal = refusal == word(Result::success) ? ordinal_of_real(words[0]) : std::nullopt;
    return ordinal ? memory_of_client(*ordinal) : std::nullopt;  // or as it was answered
  }
  const auto ordinal = ordinal_of(words[0]);
  if (!ordinal) refusal = word(Result::invalid_argument);
  if (!ordinal) return std::nullopt;
  const std::uint64_t whole = facts()->device[*ordinal].total_memory_bytes;
  return memory_of_client(*ordinal).value_or(Memory{whole, whole, 0});
}

Word get_memory(Function function, const Words& words) {
  if (words[1] == 0) return word(Result::invalid_argument);
  Word refusal = 0;
  const auto memory = memory_for(function, words, refusal);
  if (memory) *pointer<Memory>(words[1]) = *memory;
  return refusal;
}

Word get_memory_2(Function function, const Words& words) {
  auto* const to = pointer<Memory2>(words[1]);
  if (to == nullptr) return word(Result::invalid_argument);
  if (to->version != kMemory2Version) return word(Result::argument_version_mismatch);
  Word refusal = 0;
  const auto memory = memory_for(function, words, refusal);
  if (memory) *to = {kMemory2Version, memory->total, 0, memory->free, memory->used};
  return refusal;
}

// --- what is answered without NVIDIA's library ---

// One that is there and cannot work, for want of devices in a container, is none.
Word initialise(Function function, const Words& words) {
  if (has_real()) {
    const Word result = call_real(function, words);
    if (result != word(Result::driver_not_loaded) || facts() == nullptr) return result;
    give_up_real();
  }
  if (facts() == nullptr) return word(Result::library_not_found);
  initialisations.fetch_add(1, std::memory_order_relaxed);
  return word(Result::success);
}

Word shut_down(Function /*function*/, const Words& /*words*/) {
  unsigned count = initialisations.load(std::memory_order_relaxed);
  while (count != 0 && !initialisations.compare_exchange_weak(count, count - 1, std::memory_order_relaxed)) {
  }
  return word(count != 0 ? Result::success : Result::uninitialized);
}

Word error_string(Function /*function*/, const Words& words) {
  struct Row {
    Result result;
    const char* text;
  };
  static constexpr Row kTexts[] = {{Result::success, "Success"},
                                   {Result::uninitialized, "Uninitialized"},
                                   {Result::invalid_argument, "Invalid Argument"},
                                   {Result::not_supported, "Not Supported"},
                                   {Result::not_found, "Not Found"},
                                   {Result::insufficient_size, "Insufficient Size"},
                                   {Result::driver_not_loaded, "Driver Not Loaded"},
                                   {Result::library_not_found, "NVML Shared Library Not Found"},
                                   {Result::function_not_found, "Function Not Found"},
                                   {Result::memory, "Insufficient Memory"},
                                   {Result::argument_version_mismatch, "Argument Version Mismatch"}};
  const auto* const found = std::ranges::find(kTexts, static_cast<Result>(words[0]), &Row::result);
  return reinterpret_cast<std::uintptr_t>(found == std::end(kTexts) ? "Unknown Error" : found->text);
}

// The kernel's module says its version, also to containers; the facts have CUDA's alone.
Word driver_version(Function /*function*/, const Words& words) {
  const proto::FileDescriptor file(open("/proc/driver/nvidia/version", O_RDONLY | O_CLOEXEC));
  char text[256] = {};
  if (!file.valid() || read(file.get(), text, sizeof text - 1) <= 0) return word(Result::not_supported);
  std::string_view rest(text, std::strcspn(text, "\n"));
  const std::size_t at = rest.find("Kernel Module");
  if (at == std::string_view::npos) return word(Result::not_supported);
  rest.remove_prefix(std::min(rest.find_first_of("0123456789", at), rest.size()));
  return give_text(rest.substr(0, rest.find(' ')), words[0], words[1]);
}

Word cuda_version(Function /*function*/, const Words& words) {
  if (words[0] == 0) return word(Result::invalid_argument);
  *pointer<int>(words[0]) = facts()->driver_version;
  return word(Result::success);
}

Word device_count(Function /*function*/, const Words& words) {
  if (words[0] == 0) return word(Result::invalid_argument);
  *pointer<unsigned>(words[0]) = facts()->device_count;
  return word(Result::success);
}

Word handle_by_index(Function /*function*/, const Words& words) {
  const auto index = static_cast<std::uint32_t>(words[0]);
  if (index >= facts()->device_count) return word(Result::invalid_argument);
  return give_handle(index, words[1]);
}

Word handle_by_uuid(Function /*function*/, const Words& words) {
  if (words[0] == 0) return word(Result::invalid_argument);
  for (std::uint32_t ordinal = 0; ordinal < facts()->device_count; ++ordinal) {
    if (uuid_text(facts()->device[ordinal]) == pointer<const char>(words[0])) return give_handle(ordinal, words[1]);
  }
  return give_handle(std::nullopt, words[1]);
}

Word handle_by_pci(Function /*function*/, const Words& words) {
  const auto wanted = words[0] == 0 ? std::nullopt : parse_pci(pointer<const char>(words[0]));
  if (!wanted) return word(Result::invalid_argument);
  for (std::uint32_t ordinal = 0; ordinal < facts()->device_count; ++ordinal) {
    if (parse_pci(facts()->device[ordinal].pci_bus_id) == wanted) return give_handle(ordinal, words[1]);
  }
  return give_handle(std::nullopt, words[1]);
}

Word device_index(Function /*function*/, const Words& words) {
  const auto ordinal = ordinal_of(words[0]);
  if (!ordinal || words[1] == 0) return word(Result::invalid_argument);
  *pointer<unsigned>(words[1]) = *ordinal;
  return word(Result::success);
}

Word device_name(Function /*function*/, const Words& words) {
  const DeviceFacts* const device = device_of(words[0]);
  if (device == nullptr) return word(Result::invalid_argument);
  return give_text({device->name, strnlen(device->name, sizeof device->name)}, words[1], words[2]);
}

Word device_uuid(Function /*function*/, const Words& words) {
  const DeviceFacts* const device = device_of(words[0]);
  return device == nullptr ? word(Result::invalid_argument) : give_text(uuid_text(*device), words[1], words[2]);
}

// 75 and 76 of CUDA's attributes: compute capability.
Word compute_capability(Function /*function*/, const Words& words) {
  const DeviceFacts* const device = device_of(words[0]);
  if (device == nullptr || words[1] == 0 || words[2] == 0) return word(Result::invalid_argument);
  *pointer<int>(words[1]) = device->attribute[75];
  *pointer<int>(words[2]) = device->attribute[76];
  return word(Result::success);
}

using Handler = Word (*)(Function function, const Words& words);
struct HandlerRow {
  Function function;
  Handler handler;
};
constexpr HandlerRow kWithoutReal[] = {{Function::nvmlShutdown, shut_down},
                                       {Function::nvmlSystemGetDriverVersion, driver_version},
                                       {Function::nvmlSystemGetCudaDriverVersion, cuda_version},
                                       {Function::nvmlSystemGetCudaDriverVersion_v2, cuda_version},
                                       {Function::nvmlDeviceGetCount, device_count},
                                       {Function::nvmlDeviceGetCount_v2, device_count},
                                       {Function::nvmlDeviceGetHandleByIndex, handle_by_index},
                                       {Function::nvmlDeviceGetHandleByIndex_v2, handle_by_index},
                                       {Function::nvmlDeviceGetHandleByUUID, handle_by_uuid},
                                       {Function::nvmlDeviceGetHandleByPciBusId, handle_by_pci},
                                       {Function::nvmlDeviceGetHandleByPciBusId_v2, handle_by_pci},
                                       {Function::nvmlDeviceGetIndex, device_index},
                                       {Function::nvmlDeviceGetName, device_name},
                                       {Function::nvmlDeviceGetUUID, device_uuid},
                                       {Function::nvmlDeviceGetCudaComputeCapability, compute_capability},
                                       {Function::nvmlDeviceGetMemoryInfo, get_memory},
                                       {Function::nvmlDeviceGetMemoryInfo_v2, get_memory_2}};

Word answer_unguarded(Function function, const Words& words) {
  if (function == Function::nvmlInit || function == Function::nvmlInit_v2 || function == Function::nvmlInitWithFlags)
    return initialise(function, words);
  if (has_real()) {
    if (function == Function::nvmlDeviceGetMemoryInfo) return get_memory(function, words);
    if (function == Function::nvmlDeviceGetMemoryInfo_v2) return get_memory_2(function, words);
    return call_real(function, words);
  }
  if (function == Function::nvmlErrorString) return error_string(function, words);
  if (initialisations.load(std::memory_order_relaxed) == 0) return word(Result::uninitialized);
  if (facts() == nullptr) return word(Result::uninitialized);  // a child of fork()
  const auto* const found = std::ranges::find(kWithoutReal, function, &HandlerRow::function);
  return found == std::end(kWithoutReal) ? word(Result::not_supported) : found->handler(function, words);
}

}  // namespace

Word answer(Function function, const Words& words) {
  try {
    return answer_unguarded(function, words);
  } catch (const std::bad_alloc&) {
    return word(Result::memory);
  }
}

}  // namespace mpsshim::interposer::nvml
