// SPDX-License-Identifier: Apache-2.0
#include "tests/process/programs/driver.hpp"

namespace mpsshim::test {

const char kPlainPtx[] = R"ptx(
.version 6.4
.target sm_75
.address_size 64

.visible .entry add(.param .u64 data, .param .u32 count, .param .u32 value)
{
    .reg .pred %p<2>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [data];
    ld.param.u32 %r1, [count];
    ld.param.u32 %r2, [value];
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mov.u32 %r5, %tid.x;
    mad.lo.s32 %r6, %r3, %r4, %r5;
    setp.ge.u32 %p1, %r6, %r1;
    @%p1 bra DONE;
    cvta.to.global.u64 %rd1, %rd1;
    mul.wide.u32 %rd2, %r6, 4;
    add.s64 %rd3, %rd1, %rd2;
    ld.global.u32 %r7, [%rd3];
    add.u32 %r7, %r7, %r2;
    st.global.u32 [%rd3], %r7;
DONE:
    ret;
}

.visible .entry store(.param .u64 address)
{
    .reg .b32 %r<2>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [address];
    mov.u32 %r1, 1;
    st.global.u32 [%rd1], %r1;
    ret;
}

.visible .entry wait_flag(.param .u64 flag)
{
    .reg .pred %p<2>;
    .reg .b32 %r<2>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [flag];
AGAIN:
    ld.volatile.global.u32 %r1, [%rd1];
    setp.eq.u32 %p1, %r1, 0;
    @%p1 bra AGAIN;
    ret;
}

.visible .entry fill_index(.param .u64 data, .param .u32 count, .param .u32 factor)
{
    .reg .pred %p<2>;
    .reg .b32 %r<5>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [data];
    ld.param.u32 %r1, [count];
    ld.param.u32 %r2, [factor];
    mov.u32 %r3, 0;
NEXT:
    setp.ge.u32 %p1, %r3, %r1;
    @%p1 bra DONE;
    mul.lo.u32 %r4, %r3, %r2;
    st.volatile.global.u32 [%rd1], %r4;
    add.s64 %rd1, %rd1, 4;
    add.u32 %r3, %r3, 1;
    bra NEXT;
DONE:
    ret;
}
)ptx";

const char kGlobalPtx[] = R"ptx(
.version 6.4
.target sm_75
.address_size 64

.visible .global .align 4 .u32 counter = 5;

.visible .entry count(.param .u64 out)
{
    .reg .b32 %r<2>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [out];
    ld.global.u32 %r1, [counter];
    add.u32 %r1, %r1, 1;
    st.global.u32 [counter], %r1;
    st.global.u32 [%rd1], %r1;
    ret;
}
)ptx";

const char kManagedPtx[] = R"ptx(
.version 6.4
.target sm_75
.address_size 64

.visible .global .attribute(.managed) .align 4 .u32 counter = 5;

.visible .entry count(.param .u64 out)
{
    .reg .b32 %r<2>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [out];
    ld.global.u32 %r1, [counter];
    add.u32 %r1, %r1, 1;
    st.global.u32 [counter], %r1;
    st.global.u32 [%rd1], %r1;
    ret;
}
)ptx";

std::string describe(CUresult result) {
  const char* name = nullptr;
  if (cuGetErrorName(result, &name) != CUDA_SUCCESS || name == nullptr) name = "(no name)";
  return std::to_string(static_cast<int>(result)) + " " + name;
}

void require(bool holds, const std::string& what) {
  if (!holds) throw Failure(what);
}

void require_success(CUresult result, const char* call) {
  if (result != CUDA_SUCCESS) throw Failure(describe(result) + " from " + call);
}

void require_result(CUresult result, CUresult wanted, const char* call) {
  if (result != wanted) throw Failure(describe(result) + " and not " + describe(wanted) + " from " + call);
}

Device::Device() {
  CUdevice device = 0;
  CU(cuInit(0));
  CU(cuDeviceGet(&device, 0));
  CU(cuDevicePrimaryCtxRetain(&context, device));
  CU(cuCtxSetCurrent(context));
  CU(cuModuleLoadData(&module, kPlainPtx));
  CU(cuModuleGetFunction(&add, module, "add"));
  CU(cuModuleGetFunction(&store, module, "store"));
  CU(cuModuleGetFunction(&wait_flag, module, "wait_flag"));
  CU(cuModuleGetFunction(&fill_index, module, "fill_index"));
}

CUresult Device::launch_add(CUdeviceptr data, unsigned count, unsigned value, CUstream stream) const {
  constexpr unsigned kThreads = 128;
  void* arguments[] = {&data, &count, &value};
  return cuLaunchKernel(add, (count + kThreads - 1) / kThreads, 1, 1, kThreads, 1, 1, 0, stream, arguments, nullptr);
}

CUresult Device::launch_fill_index(CUdeviceptr data, unsigned count, unsigned factor, CUstream stream) const {
  void* arguments[] = {&data, &count, &factor};
  return cuLaunchKernel(fill_index, 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr);
}

CUresult Device::launch_store(CUdeviceptr address) const {
  void* arguments[] = {&address};
  return cuLaunchKernel(store, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr);
}

CUresult Device::launch_wait_flag(CUdeviceptr flag) const {
  void* arguments[] = {&flag};
  return cuLaunchKernel(wait_flag, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr);
}

namespace {

CUdeviceptr map_pieces(std::size_t bytes) {
  constexpr std::size_t kPiece = std::size_t{2} << 20;
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  const CUmemAccessDesc access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUdeviceptr range = 0;
  CU(cuMemAddressReserve(&range, (bytes / kPiece + 8) * kPiece, 0, 0, 0));
  for (std::size_t at = 0; at < bytes; at += kPiece) {
    CUmemGenericAllocationHandle handle = 0;
    CU(cuMemCreate(&handle, kPiece, &properties, 0));
    CU(cuMemMap(range + at, kPiece, 0, handle, 0));
    CU(cuMemSetAccess(range + at, kPiece, &access, 1));
    if (at == 0) CU(cuMemRelease(handle));  // one without a handle
  }
  return range;
}

// The executable graph stays, as a program's would.
CUdeviceptr allocate_in_graph(std::size_t bytes) {
  CUstream stream = nullptr;
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  CUdeviceptr address = 0;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  CU(cuMemAllocAsync(&address, bytes, stream));
  CU(cuStreamEndCapture(stream, &graph));
  CU(cuGraphInstantiateWithFlags(&exec, graph, 0));
  CU(cuGraphLaunch(exec, stream));
  CU(cuStreamSynchronize(stream));
  return address;
}

}  // namespace

Words::Words(std::size_t count, unsigned seed, Origin origin) : expected(count) {
  for (std::size_t i = 0; i < count; ++i) expected[i] = static_cast<unsigned>(i) * 2654435761u + seed;
  const std::size_t bytes = count * sizeof(unsigned);
  switch (origin) {
    case Origin::allocated: CU(cuMemAlloc(&address, bytes)); break;
    case Origin::pooled: CU(cuMemAllocAsync(&address, bytes, nullptr)); break;
    case Origin::mapped: address = map_pieces(bytes); break;
    case Origin::managed: CU(cuMemAllocManaged(&address, bytes, CU_MEM_ATTACH_GLOBAL)); break;
    case Origin::of_graph: address = allocate_in_graph(bytes); break;
  }
  CU(cuMemcpyHtoD(address, expected.data(), count * sizeof(unsigned)));
}

void Words::add(unsigned value, std::size_t first, std::size_t words) {
  for (std::size_t i = first; i < first + words; ++i) expected[i] += value;
}

void Words::check() const {
  std::vector<unsigned> found(expected.size());
  CU(cuMemcpyDtoH(found.data(), address, found.size() * sizeof(unsigned)));
  check_words("device memory", found.data(), expected);
}

void check_words(const char* what, const unsigned* words, const std::vector<unsigned>& expected) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (words[i] == expected[i]) continue;
    throw Failure("wrong: word " + std::to_string(i) + " of " + std::to_string(expected.size()) + " in " + what + " is " + std::to_string(words[i]) +
                  " and not " + std::to_string(expected[i]));
  }
}

}  // namespace mpsshim::test
