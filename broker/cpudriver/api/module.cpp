// SPDX-License-Identifier: Apache-2.0
// CUDA Driver API manual: "Module Management", "Library Management". A module and a library are the same object; a
// library's load does not wait for running kernels, the first use of each of its functions does.
#include "broker/cpudriver/modules/module.hpp"

#include <fstream>
#include <iterator>
#include <utility>

#include "broker/cpudriver/api/entry.hpp"
#include "broker/cpudriver/modules/jit_options.hpp"

using namespace mpsshim::cpudriver;

namespace {

CUresult load(const void* image, bool is_library, const JitOptions& options, std::shared_ptr<Module>& module) {
  if (image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::string why;
  const CUresult result = Module::load(image, is_library, module, why);
  if (result == CUDA_SUCCESS) {
    options.clear_logs();
  } else {
    options.report_error(why);
  }
  return result;
}

CUresult load_module(CUmodule* handle, const void* image, const JitOptions& options) {
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Module> module;
  const Scheduler::QuietWindow window(Scheduler::get(), false);
  const CUresult result = load(image, false, options, module);
  if (result == CUDA_SUCCESS) *handle = static_cast<CUmodule>(HandleTable<Module>::get().add(std::move(module)));
  return result;
}

CUresult unload(const void* handle, bool launches_pass) {
  const auto module = HandleTable<Module>::get().remove(handle);
  if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const Scheduler::QuietWindow window(Scheduler::get(), launches_pass);
  module->forget_functions();
  return CUDA_SUCCESS;
}

template <class Body>
CUresult with_module(Needs needs, const void* handle, Body&& body) {
  return entry(needs, [&]() -> CUresult {
    const auto module = HandleTable<Module>::get().find(handle);
    return module == nullptr ? CUDA_ERROR_INVALID_HANDLE : body(*module);
  });
}
template <class Body>
CUresult with_module(const void* handle, Body&& body) {
  return with_module(Needs::handle, handle, std::forward<Body>(body));
}

CUresult find_function(const Module& module, const char* name, CUfunction& function) {
  if (name == nullptr || *name == '\0') return CUDA_ERROR_INVALID_VALUE;
  function = module.find_function(name);
  return function == nullptr ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}

CUresult find_variable(const Module& module, const char* name, CUdeviceptr* dptr, size_t* bytes) {
  CUdeviceptr address = 0;
  if (name == nullptr || (dptr == nullptr && bytes == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  const auto* const variable = module.find_variable(name, address);
  if (variable == nullptr) return module.find_function(name) != nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_FOUND;
  if (dptr != nullptr) *dptr = address;
  if (bytes != nullptr) *bytes = variable->size;
  return CUDA_SUCCESS;
}

template <class Handle>
void copy_functions(const Module& module, Handle* handles, unsigned count) {
  for (unsigned i = 0; i < count && i < module.functions().size(); ++i) {
    handles[i] = reinterpret_cast<Handle>(module.functions()[i]);
  }
}

CUresult read_file(const char* name, std::string& content) {
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::ifstream file(name, std::ios::binary);
  if (!file) return CUDA_ERROR_FILE_NOT_FOUND;
  content.assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  return CUDA_SUCCESS;
}

}  // namespace

CUresult CUDAAPI cuModuleLoadData(CUmodule* module, const void* image) {
  return entry(Needs::context, [&] { return load_module(module, image, {}); });
}

CUresult CUDAAPI cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned int numOptions, CUjit_option* options,
                                    void** optionValues) {
  return entry(Needs::context, [&] {
    JitOptions jit;
    const CUresult understood = JitOptions::read(numOptions, options, optionValues, jit);
    return understood == CUDA_SUCCESS ? load_module(module, image, jit) : understood;
  });
}

CUresult CUDAAPI cuModuleLoadFatBinary(CUmodule* module, const void* fatCubin) { return cuModuleLoadData(module, fatCubin); }

CUresult CUDAAPI cuModuleLoad(CUmodule* module, const char* fname) {
  return entry(Needs::context, [&] {
    std::string image;  // ends with a NUL, as a PTX text must
    const CUresult read = read_file(fname, image);
    return read == CUDA_SUCCESS ? load_module(module, image.c_str(), {}) : read;
  });
}

CUresult CUDAAPI cuModuleUnload(CUmodule hmod) {
  return entry(Needs::handle, [&] { return unload(hmod, true); });
}

CUresult CUDAAPI cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
  return entry(Needs::initialised, [&] {
    if (mode == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *mode = CU_MODULE_LAZY_LOADING;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuModuleGetFunction(CUfunction* hfunc, CUmodule hmod, const char* name) {
  return with_module(hmod, [&](Module& module) {
    return hfunc == nullptr ? CUDA_ERROR_INVALID_VALUE : find_function(module, name, *hfunc);
  });
}

CUresult CUDAAPI cuModuleGetFunctionCount(unsigned int* count, CUmodule mod) {
  return with_module(mod, [&](Module& module) {
    if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *count = static_cast<unsigned>(module.functions().size());
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuModuleEnumerateFunctions(CUfunction* functions, unsigned int numFunctions, CUmodule mod) {
  return with_module(mod, [&](Module& module) {
    if (functions == nullptr || numFunctions == 0) return CUDA_ERROR_INVALID_VALUE;
    copy_functions(module, functions, numFunctions);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuModuleGetGlobal(CUdeviceptr* dptr, size_t* bytes, CUmodule hmod, const char* name) {
  return with_module(hmod, [&](Module& module) { return find_variable(module, name, dptr, bytes); });
}

CUresult CUDAAPI cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option* jitOptions,
                                   void** jitOptionsValues, unsigned int numJitOptions, CUlibraryOption*, void**,
                                   unsigned int) {
  return entry(Needs::handle, [&] {
    if (library == nullptr) return CUDA_ERROR_INVALID_VALUE;
    JitOptions jit;
    const CUresult understood = JitOptions::read(numJitOptions, jitOptions, jitOptionsValues, jit);
    if (understood != CUDA_SUCCESS) return understood;
    std::shared_ptr<Module> module;
    const CUresult result = load(code, true, jit, module);
    if (result == CUDA_SUCCESS) *library = static_cast<CUlibrary>(HandleTable<Module>::get().add(std::move(module)));
    return result;
  });
}

CUresult CUDAAPI cuLibraryLoadFromFile(CUlibrary* library, const char* fileName, CUjit_option* jitOptions,
                                       void** jitOptionsValues, unsigned int numJitOptions,
                                       CUlibraryOption* libraryOptions, void** libraryOptionValues,
                                       unsigned int numLibraryOptions) {
  return entry(Needs::handle, [&] {
    std::string image;
    const CUresult read = read_file(fileName, image);
    if (read != CUDA_SUCCESS) return read;
    return cuLibraryLoadData(library, image.c_str(), jitOptions, jitOptionsValues, numJitOptions, libraryOptions,
                             libraryOptionValues, numLibraryOptions);
  });
}

CUresult CUDAAPI cuLibraryUnload(CUlibrary library) {
  return entry(Needs::handle, [&] { return unload(library, false); });
}

CUresult CUDAAPI cuLibraryGetKernel(CUkernel* pKernel, CUlibrary library, const char* name) {
  return with_module(library, [&](Module& module) {
    return pKernel == nullptr ? CUDA_ERROR_INVALID_VALUE
                              : find_function(module, name, reinterpret_cast<CUfunction&>(*pKernel));
  });
}

CUresult CUDAAPI cuLibraryGetKernelCount(unsigned int* count, CUlibrary lib) {
  return cuModuleGetFunctionCount(count, reinterpret_cast<CUmodule>(lib));
}

CUresult CUDAAPI cuLibraryEnumerateKernels(CUkernel* kernels, unsigned int numKernels, CUlibrary lib) {
  return with_module(lib, [&](Module& module) {
    if (kernels == nullptr || numKernels == 0) return CUDA_ERROR_INVALID_VALUE;
    copy_functions(module, kernels, numKernels);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuLibraryGetModule(CUmodule* pMod, CUlibrary library) {
  return with_module(Needs::context, library, [&](Module&) {
    if (pMod == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *pMod = reinterpret_cast<CUmodule>(library);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuLibraryGetGlobal(CUdeviceptr* dptr, size_t* bytes, CUlibrary library, const char* name) {
  return with_module(Needs::context, library, [&](Module& module) { return find_variable(module, name, dptr, bytes); });
}

CUresult CUDAAPI cuLibraryGetManaged(CUdeviceptr* dptr, size_t* bytes, CUlibrary library, const char* name) {
  return with_module(library, [&](Module& module) {
    CUdeviceptr address = 0;
    const auto* const variable = name == nullptr ? nullptr : module.find_variable(name, address);
    if (variable == nullptr || !variable->is_managed) return CUDA_ERROR_NOT_FOUND;
    return find_variable(module, name, dptr, bytes);
  });
}
