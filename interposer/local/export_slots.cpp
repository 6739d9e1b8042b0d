// SPDX-License-Identifier: Apache-2.0
#include "interposer/local/export_slots.hpp"

#include <array>
#include <cstring>
#include <span>

#include <pthread.h>
#include <unistd.h>

#include "interposer/entry.hpp"
#include "interposer/forward/hooks.hpp"
#include "interposer/local/contexts.hpp"
#include "interposer/local/devices.hpp"
#include "interposer/local/integrity.hpp"
#include "interposer/settle.hpp"

namespace mpsshim::interposer::slots {

namespace {

// The runtime of CUDA 13.0 has 523 functions with flags and 14 domains, and reads that many without looking at the count.
constexpr std::array<std::uint32_t, 1024> kRuntimeFlags{};
constexpr std::array<std::uint32_t, 64> kDomainFlags{};

bool means_current(CUcontext context) { return context == nullptr || reinterpret_cast<std::uintptr_t>(context) == ~std::uintptr_t{0}; }

proto::Known<ContextObject> find_owner(CUcontext context) { return find_context(means_current(context) ? current_context() : context); }

}  // namespace

CUresult get_primary_context(CUcontext* context, CUdevice device) {
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!is_initialised()) return CUDA_ERROR_NOT_INITIALIZED;
  if (device_facts(device) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  return guarded(
      +[](CUcontext* out, CUdevice which) {
        *out = primary_context(which);
        return CUDA_SUCCESS;
      },
      context, device);
}

void runtime_call_flags(const void** flags, std::size_t* count) {
  *flags = kRuntimeFlags.data();
  *count = kRuntimeFlags.size();
}

void domain_flags(const void** flags, std::size_t* count) {
  *flags = kDomainFlags.data();
  *count = kDomainFlags.size();
}

CUresult get_tls_context(void** context) {
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *context = current_context();
  return CUDA_SUCCESS;
}

CUresult storage_put(CUcontext context, void* key, void* value, ContextStorage::Destructor destructor) {
  const auto owner = find_owner(context);
  if (!owner) return CUDA_ERROR_INVALID_CONTEXT;
  if (key == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return guarded(
      +[](ContextObject* where, void* with_key, void* what, ContextStorage::Destructor end) {
        where->storage.put(with_key, what, end);
        return CUDA_SUCCESS;
      },
      owner.get(), key, value, destructor);
}

CUresult storage_delete(CUcontext context, void* key) {
  const auto owner = find_owner(context);
  if (!owner) return CUDA_ERROR_INVALID_CONTEXT;
  return owner->storage.remove(key) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult storage_get(void** value, CUcontext context, void* key) {
  const auto owner = find_owner(context);
  if (!owner || key == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return owner->storage.get(key, *value) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult check_context(CUcontext, std::uint32_t* kind, const void**) {
  if (kind == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *kind = 0;
  return CUDA_SUCCESS;
}

std::uint32_t check_flags() { return 0; }

CUresult check_integrity(std::uint32_t version, std::uint64_t unix_seconds, std::uint64_t* answer) {
  if (answer == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!is_initialised()) return CUDA_ERROR_NOT_INITIALIZED;
  const IntegrityQuestion question{
      .driver_version = static_cast<std::uint32_t>(driver_version()),
      .version = version,
      .process = static_cast<std::uint32_t>(getpid()),
      .thread = static_cast<std::uint32_t>(pthread_self()),
      .runtime_table = runtime_table_address(),
      .integrity_table = integrity_table_address(),
      .integrity_function = reinterpret_cast<std::uintptr_t>(&check_integrity),
      .unix_seconds = unix_seconds,
  };
  std::array<IntegrityDevice, proto::kMaxDevices> devices{};
  const auto count = static_cast<std::size_t>(device_count());
  for (std::size_t i = 0; i < count; ++i) {
    const proto::DeviceFacts& facts = *device_facts(static_cast<CUdevice>(i));
    std::memcpy(devices[i].uuid, facts.uuid, sizeof devices[i].uuid);
    devices[i].pci_domain = facts.attribute[CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID];
    devices[i].pci_bus = facts.attribute[CU_DEVICE_ATTRIBUTE_PCI_BUS_ID];
    devices[i].pci_device = facts.attribute[CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID];
  }
  const Md2Digest digest = integrity_answer(question, std::span(devices).first(count));
  std::memcpy(answer, digest.data(), digest.size());
  return CUDA_SUCCESS;
}

CUresult tools_context_id(CUcontext context, std::uint64_t* id) {
  const auto owner = find_owner(context);
  if (!owner) return CUDA_ERROR_INVALID_CONTEXT;
  if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *id = owner->unique_id;
  return CUDA_SUCCESS;
}

CUresult tools_stream_object(CUcontext context, CUstream stream, void** object) {
  if (!find_owner(context)) return CUDA_ERROR_INVALID_CONTEXT;
  if (reinterpret_cast<std::uintptr_t>(stream) == ~std::uintptr_t{0}) return CUDA_ERROR_INVALID_HANDLE;
  if (object == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *object = stream;
  return CUDA_SUCCESS;
}

CUresult tools_stream_id(CUcontext context, void* object, std::uint64_t* id) {
  if (!find_owner(context)) return CUDA_ERROR_INVALID_CONTEXT;
  if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return called(
      +[](CUstream stream, std::uint64_t* out) {
        *out = forward::unique_stream_id(stream);
        return *out != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
      },
      static_cast<CUstream>(object), id);
}

CUresult empty_array(void** array, std::size_t* count) {
  if (array == nullptr || count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *array = nullptr;
  *count = 0;
  return CUDA_SUCCESS;
}

std::uint32_t visit_module_functions(CUcontext, CUmodule module, void (*visit)(void*, CUfunction), void* user) {
  std::uint32_t count = 0;
  if (visit == nullptr || !is_initialised()) return 0;
  const CUresult error = called(
      +[](CUmodule which, void (*each)(void*, CUfunction), void* with, std::uint32_t* out) {
        return forward::visit_functions(which, each, with, *out);
      },
      module, visit, user, &count);
  return error == CUDA_SUCCESS ? count : 0;
}

}  // namespace mpsshim::interposer::slots
