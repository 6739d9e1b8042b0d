// SPDX-License-Identifier: Apache-2.0
// Library management (CUDA Driver API manual, "Library Management"). Libraries belong to the process and survive
// cuDevicePrimaryCtxReset. Only what asks for the part of one that is in the current context needs that.
#include "gen/api_declarations.hpp"
#include "interposer/entry.hpp"
#include "interposer/forward/modules.hpp"
#include "interposer/forward/refused_image.hpp"
#include "interposer/local/acting_session.hpp"
#include "interposer/local/devices.hpp"

namespace mpsshim::interposer::api {

using namespace forward;

namespace {

template <typename F>
CUresult with_library(CUlibrary handle, F&& f) {
  if (const CUresult error = session().begin_call(); error != CUDA_SUCCESS) return error;
  Library* library = Modules::instance().resolve_library(handle);
  return library != nullptr ? f(*library) : CUDA_ERROR_INVALID_HANDLE;
}

// A CUfunction is taken for a kernel where the driver takes it.
template <typename F>
CUresult with_function(CUkernel handle, F&& f) {
  if (const CUresult error = session().begin_call(); error != CUDA_SUCCESS) return error;
  Function* function = Functions::instance().resolve(reinterpret_cast<CUfunction>(handle));
  return function != nullptr ? f(*function) : CUDA_ERROR_INVALID_HANDLE;
}

template <typename Load>
CUresult load_library(CUlibrary* library, unsigned int option_count, CUjit_option* options, void** values, Load&& load) {
  if (library == nullptr || (option_count != 0 && (options == nullptr || values == nullptr))) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = session().begin_call(); error != CUDA_SUCCESS) return error;
  JitOptions jit(option_count, options, values);
  Module* module = nullptr;
  if (const CUresult error = load(jit, module); error != CUDA_SUCCESS) return refused_library(error, jit.said());
  Library* loaded = nullptr;
  if (const CUresult error = Modules::instance().add_library(*module, loaded); error != CUDA_SUCCESS) return error;
  *library = to_handle<CUlibrary>(loaded->id);
  return CUDA_SUCCESS;
}

// Of the device that is named; where the process works on one, that.
std::uint32_t session_of_kernel(CUdevice device) { return has_session(device) ? session_of(device) : ActingSession::index(); }

}  // namespace

CUresult cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option* jitOptions, void** jitOptionsValues, unsigned int numJitOptions,
                           CUlibraryOption*, void**, unsigned int) {
  if (code == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return load_library(library, numJitOptions, jitOptions, jitOptionsValues,
                      [&](JitOptions& jit, Module*& module) { return Modules::instance().load(code, jit, nullptr, module); });
}

CUresult cuLibraryLoadFromFile(CUlibrary* library, const char* fileName, CUjit_option* jitOptions, void** jitOptionsValues,
                               unsigned int numJitOptions, CUlibraryOption*, void**, unsigned int) {
  if (fileName == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return load_library(library, numJitOptions, jitOptions, jitOptionsValues,
                      [&](JitOptions& jit, Module*& module) { return Modules::instance().load_file(fileName, jit, nullptr, module); });
}

CUresult cuLibraryUnload(CUlibrary library) {
  if (has_several_sessions()) return unload_everywhere(library);
  return with_library(library, [](Library& found) { return Modules::instance().unload_library(found); });
}

CUresult cuLibraryGetKernel(CUkernel* pKernel, CUlibrary library, const char* name) {
  if (pKernel == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return with_library(library, [&](Library& found) {
    Kernel* kernel = nullptr;
    const CUresult error = Modules::instance().get_kernel(found, name, kernel);
    if (error == CUDA_SUCCESS) *pKernel = to_handle<CUkernel>(kernel->id);
    return error;
  });
}

CUresult cuLibraryGetModule(CUmodule* pMod, CUlibrary library) {
  if (pMod == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = begin(); error != CUDA_SUCCESS) return error;
  return with_library(library, [&](Library& found) {
    *pMod = to_handle<CUmodule>(found.module->id);
    return CUDA_SUCCESS;
  });
}

CUresult cuLibraryGetGlobal(CUdeviceptr* dptr, size_t* bytes, CUlibrary library, const char* name) {
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = begin(); error != CUDA_SUCCESS) return error;
  return with_library(library, [&](Library& found) {
    Global global;
    const CUresult error = Modules::instance().get_global(*found.module, name, global);
    if (error != CUDA_SUCCESS) return error;
    if (dptr != nullptr) *dptr = global.address;
    if (bytes != nullptr) *bytes = global.size_bytes;
    return error;
  });
}

CUresult cuLibraryGetManaged(CUdeviceptr* dptr, size_t* bytes, CUlibrary library, const char* name) {
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return with_library(library, [&](Library& found) {
    Global global;
    const CUresult error = Modules::get_managed(*found.module, name, global);
    if (error != CUDA_SUCCESS) return error;
    if (dptr != nullptr) *dptr = global.address;
    if (bytes != nullptr) *bytes = global.size_bytes;
    return error;
  });
}

// A pointer by which the host and every device call the same function: devices have such only where host and device share all memory.
CUresult cuLibraryGetUnifiedFunction(void** fptr, CUlibrary library, const char* symbol) {
  if (fptr == nullptr || symbol == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return with_library(library, [](Library&) {
    int has_any = 0;
    const proto::DeviceFacts* facts = device_facts(session_device());
    if (facts == nullptr || device_attribute(*facts, CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS, has_any) != CUDA_SUCCESS || has_any == 0) {
      return CUDA_ERROR_NOT_FOUND;
    }
    return unsupported(ApiId::cuLibraryGetUnifiedFunction);
  });
}

CUresult cuLibraryGetKernelCount(unsigned int* count, CUlibrary lib) {
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return with_library(lib, [&](Library& found) {
    *count = found.module->function_count;
    return CUDA_SUCCESS;
  });
}

CUresult cuLibraryEnumerateKernels(CUkernel* kernels, unsigned int numKernels, CUlibrary lib) {
  if (kernels == nullptr || numKernels == 0) return CUDA_ERROR_INVALID_VALUE;
  return with_library(lib, [&](Library& found) {
    std::vector<std::string> names;
    if (const CUresult error = Modules::instance().function_names(*found.module, names); error != CUDA_SUCCESS) return error;
    for (unsigned int i = 0; i < numKernels && i < names.size(); ++i) {
      Kernel* kernel = nullptr;
      if (const CUresult error = Modules::instance().get_kernel(found, names[i], kernel); error != CUDA_SUCCESS) return error;
      kernels[i] = to_handle<CUkernel>(kernel->id);
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuKernelGetFunction(CUfunction* pFunc, CUkernel kernel) {
  if (pFunc == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = begin(); error != CUDA_SUCCESS) return error;
  return with_function(kernel, [&](Function& function) {
    *pFunc = to_handle<CUfunction>(function.id);
    return CUDA_SUCCESS;
  });
}

CUresult cuKernelGetLibrary(CUlibrary* pLib, CUkernel kernel) {
  if (pLib == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = session().begin_call(); error != CUDA_SUCCESS) return error;
  const Kernel* found = Functions::instance().resolve_kernel(kernel);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const Library* const library = Modules::instance().resolve_library(to_handle<CUlibrary>(found->library));
  if (library == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *pLib = to_handle<CUlibrary>(library->origin);
  return CUDA_SUCCESS;
}

CUresult cuKernelGetName(const char** name, CUkernel hfunc) {
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return with_function(hfunc, [&](Function& function) {
    *name = function.name.c_str();
    return CUDA_SUCCESS;
  });
}

CUresult cuKernelGetAttribute(int* pi, CUfunction_attribute attrib, CUkernel kernel, CUdevice dev) {
  if (pi == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (device_facts(dev) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  const ActingSession acting(session_of_kernel(dev));
  return with_function(kernel, [&](Function& function) { return Functions::get_attribute(function, attrib, *pi); });
}

CUresult cuKernelSetAttribute(CUfunction_attribute attrib, int val, CUkernel kernel, CUdevice dev) {
  if (device_facts(dev) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  const ActingSession acting(session_of_kernel(dev));
  return with_function(kernel, [&](Function& function) { return Functions::instance().set_attribute(function, attrib, val); });
}

CUresult cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache config, CUdevice dev) {
  if (device_facts(dev) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (config < CU_FUNC_CACHE_PREFER_NONE || config > CU_FUNC_CACHE_PREFER_EQUAL) return CUDA_ERROR_INVALID_VALUE;
  const ActingSession acting(session_of_kernel(dev));
  return with_function(kernel, [](Function&) { return CUDA_SUCCESS; });  // a preference; the carveout attribute is what counts
}

CUresult cuKernelGetParamInfo(CUkernel kernel, size_t paramIndex, size_t* paramOffset, size_t* paramSize) {
  if (const CUresult error = begin(); error != CUDA_SUCCESS) return error;
  return api::cuFuncGetParamInfo(reinterpret_cast<CUfunction>(kernel), paramIndex, paramOffset, paramSize);
}

}  // namespace mpsshim::interposer::api
