// SPDX-License-Identifier: Apache-2.0
// Module management (CUDA Driver API manual, "Module Management"). A library's handle is taken for its module's where the driver does so.
#include "gen/api_declarations.hpp"
#include "interposer/forward/modules.hpp"
#include "interposer/forward/refused_image.hpp"

namespace mpsshim::interposer::api {

using namespace forward;

namespace {

template <typename F>
CUresult with_module(CUmodule handle, F&& f) {
  if (const CUresult error = begin_with_handle(); error != CUDA_SUCCESS) return error;
  Module* module = Modules::instance().resolve(handle);
  return module != nullptr ? f(*module) : CUDA_ERROR_INVALID_HANDLE;
}

}  // namespace

CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned int numOptions, CUjit_option* options, void** optionValues) {
  if (module == nullptr || image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (numOptions != 0 && (options == nullptr || optionValues == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = begin(); error != CUDA_SUCCESS) return error;
  JitOptions jit(numOptions, options, optionValues);
  Module* loaded = nullptr;
  if (const CUresult error = Modules::instance().load(image, jit, owning_context(), loaded); error != CUDA_SUCCESS) {
    return refused_module(error, jit.said());
  }
  *module = to_handle<CUmodule>(loaded->id);
  return CUDA_SUCCESS;
}

CUresult cuModuleLoadData(CUmodule* module, const void* image) { return api::cuModuleLoadDataEx(module, image, 0, nullptr, nullptr); }
CUresult cuModuleLoadFatBinary(CUmodule* module, const void* fatCubin) { return api::cuModuleLoadDataEx(module, fatCubin, 0, nullptr, nullptr); }

CUresult cuModuleLoad(CUmodule* module, const char* fname) {
  if (module == nullptr || fname == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = begin(); error != CUDA_SUCCESS) return error;
  JitOptions none;
  Module* loaded = nullptr;
  if (const CUresult error = Modules::instance().load_file(fname, none, owning_context(), loaded); error != CUDA_SUCCESS) {
    return refused_module(error, none.said());
  }
  *module = to_handle<CUmodule>(loaded->id);
  return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule hmod) {
  return with_module(hmod, [](Module& module) {
    if (module.context == nullptr) return CUDA_ERROR_INVALID_HANDLE;  // of a library: cuLibraryUnload ends it
    return Modules::instance().unload(module.id);
  });
}

CUresult cuModuleGetFunction(CUfunction* hfunc, CUmodule hmod, const char* name) {
  if (hfunc == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return with_module(hmod, [&](Module& module) {
    Function* function = nullptr;
    const CUresult error = Modules::instance().get_function(module, name, function);
    if (error == CUDA_SUCCESS) *hfunc = to_handle<CUfunction>(function->id);
    return error;
  });
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr* dptr, size_t* bytes, CUmodule hmod, const char* name) {
  if (name == nullptr || (dptr == nullptr && bytes == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  return with_module(hmod, [&](Module& module) {
    Global global;
    const CUresult error = Modules::instance().get_global(module, name, global);
    if (error != CUDA_SUCCESS) return error;
    if (dptr != nullptr) *dptr = global.address;
    if (bytes != nullptr) *bytes = global.size_bytes;
    return error;
  });
}

CUresult cuModuleGetFunctionCount(unsigned int* count, CUmodule mod) {
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return with_module(mod, [&](Module& module) {
    *count = module.function_count;
    return CUDA_SUCCESS;
  });
}

CUresult cuModuleEnumerateFunctions(CUfunction* functions, unsigned int numFunctions, CUmodule mod) {
  if (functions == nullptr || numFunctions == 0) return CUDA_ERROR_INVALID_VALUE;
  return with_module(mod, [&](Module& module) {
    std::vector<std::string> names;
    if (const CUresult error = Modules::instance().function_names(module, names); error != CUDA_SUCCESS) return error;
    for (unsigned int i = 0; i < numFunctions && i < names.size(); ++i) {
      Function* function = nullptr;
      if (const CUresult error = Modules::instance().get_function(module, names[i], function); error != CUDA_SUCCESS) return error;
      functions[i] = to_handle<CUfunction>(function->id);
    }
    return CUDA_SUCCESS;
  });
}

}  // namespace mpsshim::interposer::api
