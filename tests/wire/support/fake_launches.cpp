// SPDX-License-Identifier: Apache-2.0
// Functions of the fake driver, and what they, copies, fills and written words leave in a stream.
#include <span>

#include "tests/wire/support/fake_work.hpp"

namespace mpsshim::test {

namespace {

// As cuFuncSetAttribute and its kin.
CUresult change_function(int moments = 20) {  // in which another thread gets its chance to be wrong
  FakeDriver& fake = FakeDriver::current();
  ++fake.function_changes;
  for (int i = 0; i < moments; ++i) {
    if (fake.function_users != 0) ++fake.function_conflicts;
    std::this_thread::yield();
  }
  --fake.function_changes;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI set_function_attribute(CUfunction function, CUfunction_attribute attribute, int value) {
  const FakeDriver& fake = FakeDriver::current();
  const int dimension = attribute - CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH;
  if (dimension >= 0 && dimension < 3) {
    const CUresult result = value != 0 ? fake.cluster_result.load() : fake.cluster_removal_result.load();
    if (result != CUDA_SUCCESS) return result;
    reinterpret_cast<FakeFunction*>(function)->cluster[static_cast<std::size_t>(dimension)] = static_cast<unsigned>(value);
    return change_function(4);  // it is one of three
  }
  if (attribute == CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE) return change_function(4);
  return change_function();
}

}  // namespace

// The functions behind the table.
struct FakeLaunchesEntry {
  static CUresult CUDAAPI module_load(CUmodule* module, const void*) { return FakeDriver::current().make(module); }
  static CUresult CUDAAPI get_function(CUfunction* function, CUmodule, const char* name) {
    static auto& known = *new std::map<std::string, std::unique_ptr<FakeFunction>>;  // executors of fuzz targets end with the process
    std::lock_guard lock(FakeDriver::current().mutex_);
    std::unique_ptr<FakeFunction>& entry = known[name];
    if (!entry)
      entry = std::make_unique<FakeFunction>(FakeFunction{name, name == std::string(kWriter)         ? std::vector<std::size_t>{8, 8, 4, 4}
                                                                : name == std::string(kClusterWidth) ? std::vector<std::size_t>{8}
                                                                                                     : std::vector<std::size_t>{}});
    *function = reinterpret_cast<CUfunction>(entry.get());
    return CUDA_SUCCESS;
  }

  static CUresult launch_in(FakeCluster cluster, unsigned attributes, CUfunction handle, unsigned grid_x, CUstream stream, void** parameters) {
    if (FakeDriver::current().launch_result != CUDA_SUCCESS) return FakeDriver::current().launch_result;
    FakeCall call(FakeCall::launch);
    call.function = reinterpret_cast<const FakeFunction*>(handle);
    call.grid_x = grid_x;
    call.cluster = cluster;
    call.attributes = attributes;
    call.parameters = gather(*call.function, parameters);
    if (!divides(cluster, grid_x)) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    FakeDriver& fake = FakeDriver::current();
    ++fake.function_users;
    if (fake.function_changes != 0) ++fake.function_conflicts;
    --fake.function_users;
    const auto run = [call] { run_kernel(call); };
    FakeDriver::current().submit(stream, std::move(call), run);
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI launch(CUfunction handle, unsigned grid_x, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream stream,
                                 void** parameters, void**) {
    return launch_in(reinterpret_cast<const FakeFunction*>(handle)->cluster, 0, handle, grid_x, stream, parameters);
  }
  static CUresult CUDAAPI launch_ex(const CUlaunchConfig* config, CUfunction handle, void** parameters, void**) {
    FakeCluster cluster = reinterpret_cast<const FakeFunction*>(handle)->cluster;
    for (unsigned i = 0; i < config->numAttrs; ++i) {
      if (config->attrs[i].id != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) continue;
      const auto& dimensions = config->attrs[i].value.clusterDim;
      const FakeCluster wanted{dimensions.x, dimensions.y, dimensions.z};
      if (cluster != kNoCluster && cluster != wanted) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
      cluster = wanted;
    }
    const CUresult result = launch_in(cluster, config->numAttrs, handle, config->gridDimX, config->hStream, parameters);
    for (const CUlaunchAttribute& attribute : std::span(config->attrs, config->numAttrs)) {
      if (attribute.id != CU_LAUNCH_ATTRIBUTE_PRIORITY || result != CUDA_SUCCESS) continue;
      std::lock_guard lock(FakeDriver::current().mutex_);
      FakeDriver::current().calls_.back().own_priority = attribute.value.priority;
    }
    return result;
  }
  static CUresult CUDAAPI launch_cooperative(CUfunction handle, unsigned grid_x, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                             CUstream stream, void** parameters) {
    return launch(handle, grid_x, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr);
  }
  static CUresult copy(std::uint64_t destination, std::uint64_t source, std::size_t bytes, CUstream stream) {
    FakeCall call(FakeCall::copy);
    call.destination = destination;
    call.source = source;
    call.bytes_or_value = bytes;
    FakeDriver::current().submit(stream, std::move(call));
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI copy_any(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) { return copy(to, from, bytes, stream); }
  static CUresult CUDAAPI copy_in(CUdeviceptr to, const void* from, std::size_t bytes, CUstream stream) {
    return copy(to, reinterpret_cast<std::uint64_t>(from), bytes, stream);
  }
  static CUresult CUDAAPI copy_out(void* to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
    return copy(reinterpret_cast<std::uint64_t>(to), from, bytes, stream);
  }
  // From the first to the last byte of each end; of an array: its handle.
  static CUresult CUDAAPI copy_box(const CUDA_MEMCPY3D* box, CUstream stream) {
    const auto first = [](CUmemorytype type, CUarray array, const void* host, CUdeviceptr device, std::uint64_t before) -> std::uint64_t {
      if (type == CU_MEMORYTYPE_ARRAY) return reinterpret_cast<std::uint64_t>(array);
      return (type == CU_MEMORYTYPE_HOST ? reinterpret_cast<std::uint64_t>(host) : device) + before;
    };
    const auto to = first(box->dstMemoryType, box->dstArray, box->dstHost, box->dstDevice,
                          (box->dstZ * box->dstHeight + box->dstY) * box->dstPitch + box->dstXInBytes);
    const auto from = first(box->srcMemoryType, box->srcArray, box->srcHost, box->srcDevice,
                            (box->srcZ * box->srcHeight + box->srcY) * box->srcPitch + box->srcXInBytes);
    return copy(to, from, box->WidthInBytes * box->Height * box->Depth, stream);
  }
  static CUresult CUDAAPI copy_plane(const CUDA_MEMCPY2D* plane, CUstream stream) {
    CUDA_MEMCPY3D box{};
    box.srcMemoryType = plane->srcMemoryType;
    box.srcHost = plane->srcHost;
    box.srcDevice = plane->srcDevice;
    box.dstMemoryType = plane->dstMemoryType;
    box.dstHost = plane->dstHost;
    box.dstDevice = plane->dstDevice;
    box.WidthInBytes = plane->WidthInBytes;
    box.Height = plane->Height;
    box.Depth = 1;
    return copy_box(&box, stream);
  }
  static CUresult fill(CUdeviceptr destination, std::uint64_t value, CUstream stream) {
    FakeCall call(FakeCall::fill);
    call.destination = destination;
    call.bytes_or_value = value;
    FakeDriver::current().submit(stream, std::move(call));
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI fill8(CUdeviceptr to, unsigned char value, std::size_t, CUstream stream) { return fill(to, value, stream); }
  static CUresult CUDAAPI fill16(CUdeviceptr to, unsigned short value, std::size_t, CUstream stream) { return fill(to, value, stream); }
  static CUresult CUDAAPI fill32(CUdeviceptr to, unsigned value, std::size_t, CUstream stream) { return fill(to, value, stream); }
  static CUresult CUDAAPI fill2d8(CUdeviceptr to, std::size_t, unsigned char value, std::size_t, std::size_t, CUstream stream) {
    return fill(to, value, stream);
  }
  static CUresult CUDAAPI fill2d16(CUdeviceptr to, std::size_t, unsigned short value, std::size_t, std::size_t, CUstream stream) {
    return fill(to, value, stream);
  }
  static CUresult CUDAAPI fill2d32(CUdeviceptr to, std::size_t, unsigned value, std::size_t, std::size_t, CUstream stream) {
    return fill(to, value, stream);
  }
  static CUresult CUDAAPI write(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned) {
    const CUstreamBatchMemOpParams operation = write_operation(address, value);
    FakeDriver::current().submit(stream, write_call(operation), [operation] { write_value(operation); });
    return CUDA_SUCCESS;
  }
  static CUresult bind(void* reference, std::uint64_t source, std::uint64_t bytes) {
    FakeCall call(FakeCall::bind);
    call.destination = reinterpret_cast<std::uint64_t>(reference);
    call.source = source;
    call.bytes_or_value = bytes;
    std::lock_guard lock(FakeDriver::current().mutex_);
    FakeDriver::current().calls_.push_back(std::move(call));
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI bind_linear(std::size_t* offset, CUtexref texture, CUdeviceptr address, std::size_t bytes) {
    *offset = 0;
    return bind(texture, address, bytes);
  }
  static CUresult CUDAAPI bind_array(CUtexref texture, CUarray array, unsigned) { return bind(texture, reinterpret_cast<std::uint64_t>(array), 0); }
  static CUresult CUDAAPI bind_surface(CUsurfref surface, CUarray array, unsigned) {
    return bind(surface, reinterpret_cast<std::uint64_t>(array), 0);
  }
  static CUresult CUDAAPI batch(CUstream stream, unsigned count, CUstreamBatchMemOpParams* operations, unsigned) {
    if (!FakeDriver::current().has_batches) return CUDA_ERROR_NOT_SUPPORTED;
    const std::vector<CUstreamBatchMemOpParams> writes(operations, operations + count);
    std::vector<FakeCall> calls;
    for (const auto& operation : writes) calls.push_back(write_call(operation));
    FakeDriver::current().submit_all(stream, std::move(calls), [writes] {
      for (const auto& operation : writes) write_value(operation);
    });
    return CUDA_SUCCESS;
  }
};

void FakeLaunches::fill(DriverTable& table) {
  table.cuModuleLoadData = FakeLaunchesEntry::module_load;
  table.cuModuleGetFunction = FakeLaunchesEntry::get_function;
  table.cuLaunchKernel = FakeLaunchesEntry::launch;
  table.cuFuncGetAttribute = [](int* value, CUfunction_attribute, CUfunction) { return *value = 0, change_function(); };
  table.cuFuncSetAttribute = set_function_attribute;
  table.cuDeviceGetAttribute = [](int* value, CUdevice_attribute attribute, CUdevice) {
    const bool is_known = attribute == CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH || attribute == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT ||
                          attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR;
    return *value = 1, is_known ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
  };
  // More for a function that has a cluster, so that it is seen.
  table.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags = [](int* blocks, CUfunction function, int, std::size_t, unsigned) {
    return *blocks = reinterpret_cast<const FakeFunction*>(function)->cluster == kNoCluster ? 1 : 1000, change_function();
  };
  table.cuLaunchKernelEx = FakeLaunchesEntry::launch_ex;
  table.cuLaunchCooperativeKernel = FakeLaunchesEntry::launch_cooperative;
  table.cuMemcpyAsync = FakeLaunchesEntry::copy_any;
  table.cuMemcpyDtoDAsync_v2 = FakeLaunchesEntry::copy_any;
  table.cuMemcpyHtoDAsync_v2 = FakeLaunchesEntry::copy_in;
  table.cuMemcpyDtoHAsync_v2 = FakeLaunchesEntry::copy_out;
  table.cuMemcpy3DAsync_v2 = FakeLaunchesEntry::copy_box;
  table.cuMemcpy2DAsync_v2 = FakeLaunchesEntry::copy_plane;
  table.cuMemsetD8Async = FakeLaunchesEntry::fill8;
  table.cuMemsetD16Async = FakeLaunchesEntry::fill16;
  table.cuMemsetD32Async = FakeLaunchesEntry::fill32;
  table.cuMemsetD2D8Async = FakeLaunchesEntry::fill2d8;
  table.cuMemsetD2D16Async = FakeLaunchesEntry::fill2d16;
  table.cuMemsetD2D32Async = FakeLaunchesEntry::fill2d32;
  table.cuStreamWriteValue32_v2 = FakeLaunchesEntry::write;
  table.cuStreamBatchMemOp_v2 = FakeLaunchesEntry::batch;
  table.cuTexRefSetAddress_v2 = FakeLaunchesEntry::bind_linear;
  table.cuTexRefSetArray = FakeLaunchesEntry::bind_array;
  table.cuSurfRefSetArray = FakeLaunchesEntry::bind_surface;
}

}  // namespace mpsshim::test
