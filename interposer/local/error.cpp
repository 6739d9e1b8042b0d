// SPDX-License-Identifier: Apache-2.0
// Names and texts of results (CUDA Driver API manual, "Error Handling"). By number, since an older cuda.h lacks the newest; the texts are those
// that NVIDIA's driver and runtime give, because programs compare and print them.
#include <algorithm>
#include <array>

#include "gen/api_declarations.hpp"

namespace mpsshim::interposer::api {

namespace {

struct Row {
  int result;
  const char* name;
  const char* text;
};

constexpr std::array kResults = {
    Row{0, "CUDA_SUCCESS", "no error"},
    Row{1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    Row{2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    Row{3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    Row{4, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    Row{5, "CUDA_ERROR_PROFILER_DISABLED", "profiler disabled while using external profiling tool"},
    Row{6, "CUDA_ERROR_PROFILER_NOT_INITIALIZED", "profiler not initialized: call cudaProfilerInitialize()"},
    Row{7, "CUDA_ERROR_PROFILER_ALREADY_STARTED", "profiler already started"},
    Row{8, "CUDA_ERROR_PROFILER_ALREADY_STOPPED", "profiler already stopped"},
    Row{34, "CUDA_ERROR_STUB_LIBRARY", "CUDA driver is a stub library"},
    Row{36, "CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER", "API call is not supported in the installed CUDA driver"},
    Row{46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable"},
    Row{100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    Row{101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    Row{102, "CUDA_ERROR_DEVICE_NOT_LICENSED", "device doesn't have valid Grid license"},
    Row{200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    Row{201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    Row{202, "CUDA_ERROR_CONTEXT_ALREADY_CURRENT", "context already current"},
    Row{205, "CUDA_ERROR_MAP_FAILED", "mapping of buffer object failed"},
    Row{206, "CUDA_ERROR_UNMAP_FAILED", "unmapping of buffer object failed"},
    Row{207, "CUDA_ERROR_ARRAY_IS_MAPPED", "array is mapped"},
    Row{208, "CUDA_ERROR_ALREADY_MAPPED", "resource already mapped"},
    Row{209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
    Row{210, "CUDA_ERROR_ALREADY_ACQUIRED", "resource already acquired"},
    Row{211, "CUDA_ERROR_NOT_MAPPED", "resource not mapped"},
    Row{212, "CUDA_ERROR_NOT_MAPPED_AS_ARRAY", "resource not mapped as array"},
    Row{213, "CUDA_ERROR_NOT_MAPPED_AS_POINTER", "resource not mapped as pointer"},
    Row{214, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"},
    Row{215, "CUDA_ERROR_UNSUPPORTED_LIMIT", "limit is not supported on this architecture"},
    Row{216, "CUDA_ERROR_CONTEXT_ALREADY_IN_USE", "exclusive-thread device already in use by a different thread"},
    Row{217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access is not supported between these two devices"},
    Row{218, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
    Row{219, "CUDA_ERROR_INVALID_GRAPHICS_CONTEXT", "invalid OpenGL or DirectX context"},
    Row{220, "CUDA_ERROR_NVLINK_UNCORRECTABLE", "uncorrectable NVLink error detected during the execution"},
    Row{221, "CUDA_ERROR_JIT_COMPILER_NOT_FOUND", "PTX JIT compiler library not found"},
    Row{222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the provided PTX was compiled with an unsupported toolchain."},
    Row{223, "CUDA_ERROR_JIT_COMPILATION_DISABLED", "PTX JIT compilation was disabled"},
    Row{224, "CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY", "the provided execution affinity is not supported"},
    Row{225, "CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC", "the provided PTX contains unsupported call to cudaDeviceSynchronize"},
    Row{226, "CUDA_ERROR_CONTAINED", "Invalid access of peer GPU memory over nvlink or a hardware error"},
    Row{300, "CUDA_ERROR_INVALID_SOURCE", "device kernel image is invalid"},
    Row{301, "CUDA_ERROR_FILE_NOT_FOUND", "file not found"},
    Row{302, "CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND", "shared object symbol not found"},
    Row{303, "CUDA_ERROR_SHARED_OBJECT_INIT_FAILED", "shared object initialization failed"},
    Row{304, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed or operation not supported on this OS"},
    Row{400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    Row{401, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state"},
    Row{402, "CUDA_ERROR_LOSSY_QUERY", "attempted introspection would be semantically lossy"},
    Row{500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    Row{600, "CUDA_ERROR_NOT_READY", "device not ready"},
    Row{700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    Row{701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    Row{702, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated"},
    Row{703, "CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING", "launch uses incompatible texturing mode"},
    Row{704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled"},
    Row{705, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", "peer access has not been enabled"},
    Row{708, "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE", "cannot set while device is active in this process"},
    Row{709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    Row{710, "CUDA_ERROR_ASSERT", "device-side assert triggered"},
    Row{711, "CUDA_ERROR_TOO_MANY_PEERS", "peer mapping resources exhausted"},
    Row{712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "part or all of the requested memory range is already mapped"},
    Row{713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer does not correspond to a registered memory region"},
    Row{714, "CUDA_ERROR_HARDWARE_STACK_ERROR", "hardware stack error"},
    Row{715, "CUDA_ERROR_ILLEGAL_INSTRUCTION", "an illegal instruction was encountered"},
    Row{716, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
    Row{717, "CUDA_ERROR_INVALID_ADDRESS_SPACE", "operation not supported on global/shared address space"},
    Row{718, "CUDA_ERROR_INVALID_PC", "invalid program counter"},
    Row{719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    Row{720, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", "too many blocks in cooperative launch"},
    Row{721, "CUDA_ERROR_TENSOR_MEMORY_LEAK", "tensor memory not completely freed"},
    Row{800, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    Row{801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    Row{802, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized"},
    Row{803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system has unsupported display driver / cuda driver combination"},
    Row{804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", "forward compatibility was attempted on non supported HW"},
    Row{805, "CUDA_ERROR_MPS_CONNECTION_FAILED", "MPS client failed to connect to the MPS control daemon or the MPS server"},
    Row{806, "CUDA_ERROR_MPS_RPC_FAILURE", "the remote procedural call between the MPS server and the MPS client failed"},
    Row{807, "CUDA_ERROR_MPS_SERVER_NOT_READY", "MPS server is not ready to accept new MPS client requests"},
    Row{808, "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED", "the hardware resources required to create MPS client have been exhausted"},
    Row{809, "CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED", "the hardware resources required to support device connections have been exhausted"},
    Row{810, "CUDA_ERROR_MPS_CLIENT_TERMINATED", "the MPS client has been terminated by the server"},
    Row{811, "CUDA_ERROR_CDP_NOT_SUPPORTED", "is using CUDA Dynamic Parallelism, but the current configuration, like MPS, does not support it"},
    Row{812, "CUDA_ERROR_CDP_VERSION_MISMATCH", "unsupported interaction between different versions of CUDA Dynamic Parallelism"},
    Row{900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
    Row{901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"},
    Row{902, "CUDA_ERROR_STREAM_CAPTURE_MERGE", "operation would result in a merge of separate capture sequences"},
    Row{903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "capture was not ended in the same stream as it began"},
    Row{904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work"},
    Row{905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "dependency created on uncaptured work in another stream"},
    Row{906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "operation would make the legacy stream depend on a capturing blocking stream"},
    Row{907, "CUDA_ERROR_CAPTURED_EVENT", "operation not permitted on an event last recorded in a capturing stream"},
    Row{908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", "attempt to terminate a thread-local capture sequence from another thread"},
    Row{909, "CUDA_ERROR_TIMEOUT", "wait operation timed out"},
    Row{910, "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE",
        "the graph update was not performed because it included changes which violated constraints specific to instantiated graph update"},
    Row{911, "CUDA_ERROR_EXTERNAL_DEVICE", "an async error has occured in external entity outside of CUDA"},
    Row{912, "CUDA_ERROR_INVALID_CLUSTER_SIZE", "a kernel launch error has occurred due to cluster misconfiguration"},
    Row{913, "CUDA_ERROR_FUNCTION_NOT_LOADED", "the function handle is not loaded when calling an API that requires a loaded function"},
    Row{914, "CUDA_ERROR_INVALID_RESOURCE_TYPE", "one or more resources passed in are not valid resource types for the operation"},
    Row{915, "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION", "one or more resources are insufficient or non-applicable for the operation"},
    Row{916, "CUDA_ERROR_KEY_ROTATION", "an error happened during the key rotation sequence"},
    Row{917, "CUDA_ERROR_STREAM_DETACHED", "the requested operation is not permitted because the stream is in a detached state"},
    Row{999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

constexpr bool ascending() {
  for (std::size_t i = 1; i < kResults.size(); ++i) {
    if (kResults[i - 1].result >= kResults[i].result) return false;
  }
  return true;
}
static_assert(ascending(), "find() searches the table by halves");

const Row* find(CUresult result) {
  const auto row = std::lower_bound(kResults.begin(), kResults.end(), static_cast<int>(result),
                                    [](const Row& candidate, int wanted) { return candidate.result < wanted; });
  return row != kResults.end() && row->result == static_cast<int>(result) ? &*row : nullptr;
}

// A result nobody knows: the pointer is cleared.
CUresult give(CUresult error, const char** destination, const char* Row::*member) {
  if (destination == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Row* row = find(error);
  *destination = row != nullptr ? row->*member : nullptr;
  return row != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

CUresult cuGetErrorName(CUresult error, const char** pStr) { return give(error, pStr, &Row::name); }
CUresult cuGetErrorString(CUresult error, const char** pStr) { return give(error, pStr, &Row::text); }

}  // namespace mpsshim::interposer::api
