// SPDX-License-Identifier: Apache-2.0
// Kernels that launch kernels, for test_device_runtime.cpp. Compiled with -rdc=true; nothing but the engine's own device runtime is linked.

// Halves [first, first + count) until a piece is small.
extern "C" __global__ void halve(int* data, int first, int count) {
  if (count <= 4) {
    for (int i = 0; i < count; ++i) data[first + i] = first * 10 + count;
    return;
  }
  halve<<<1, 1>>>(data, first, count / 2);
  halve<<<1, 1>>>(data, first + count / 2, count - count / 2);
}

struct Odd {
  char letter;
  double number;
};

extern "C" __global__ void take(long long* out, char a, Odd odd, int* shared_bytes) {
  extern __shared__ int scratch[];
  scratch[threadIdx.x] = static_cast<int>(threadIdx.x);
  __syncthreads();
  const int at = static_cast<int>((blockIdx.y * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x);
  out[at] = a * 1000000 + odd.letter * 1000 + static_cast<long long>(odd.number) + scratch[blockDim.x - 1 - threadIdx.x];
  if (at == 0) asm("mov.u32 %0, %dynamic_smem_size;" : "=r"(*shared_bytes));
}
extern "C" __global__ void give(long long* out, int* shared_bytes) { take<<<dim3(3, 2), 32, 512>>>(out, 7, Odd{'x', 2.5}, shared_bytes); }

// Appends its number: the order in which grids ran.
extern "C" __global__ void note(int* log, int number) { log[atomicAdd(log, 1) + 1] = number; }

extern "C" __global__ void orders(int* log) {
  note<<<1, 1, 0, cudaStreamTailLaunch>>>(log, 6);
  note<<<1, 1>>>(log, 1);
  note<<<1, 1>>>(log, 2);
  cudaStream_t stream;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  note<<<1, 1, 0, stream>>>(log, 3);
  note<<<1, 1, 0, cudaStreamFireAndForget>>>(log, 4);
  cudaEvent_t event;
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  cudaEventRecord(event, stream);
  cudaStreamWaitEvent(cudaStreamPerThread, event, 0);
  note<<<1, 1>>>(log, 5);
  note<<<1, 1, 0, cudaStreamTailLaunch>>>(log, 7);
  cudaEventDestroy(event);
  cudaStreamDestroy(stream);
}

// A loop by tail launches: each round sees all that the round before has launched.
extern "C" __global__ void add_one(int* value) { atomicAdd(value, 1); }
extern "C" __global__ void round_of(int* value, int* seen, int rounds) {
  seen[rounds] = *value;
  if (rounds == 0) return;
  add_one<<<2, 32>>>(value);
  round_of<<<1, 1, 0, cudaStreamTailLaunch>>>(value, seen, rounds - 1);
}

extern "C" __global__ void moves(char* to, const char* from) {
  cudaMemsetAsync(to, 'a', 64);
  cudaMemcpyAsync(to + 8, from, 4, cudaMemcpyDeviceToDevice);
  cudaMemset2DAsync(to + 64, 8, 'b', 3, 4);
  cudaMemcpy2DAsync(to + 96, 8, from + 4, 3, 3, 2, cudaMemcpyDeviceToDevice);
  cudaMemcpy3DParms box = {};
  box.srcPtr = cudaPitchedPtr{const_cast<char*>(from), 4, 4, 2};
  box.srcPos = cudaPos{1, 0, 0};
  box.dstPtr = cudaPitchedPtr{to + 128, 8, 8, 2};
  box.dstPos = cudaPos{0, 1, 0};
  box.extent = cudaExtent{2, 1, 2};
  box.kind = cudaMemcpyDeviceToDevice;
  cudaMemcpy3DAsync(&box, 0);
  cudaMemset3DAsync(cudaPitchedPtr{to + 192, 4, 4, 2}, 'c', cudaExtent{1, 2, 2}, 0);
}

extern "C" __global__ void reach(int depth, int* deepest, int* error) {
  atomicMax(deepest, depth);
  reach<<<1, 1>>>(depth + 1, deepest, error);
  const int mine = cudaGetLastError();
  if (mine != 0) *error = mine;
}

__device__ bool is_text(const char* a, const char* b) {
  while (*a != 0 && *a == *b) ++a, ++b;
  return *a == *b;
}

extern "C" __global__ void errors(int* out, void (*no_kernel)(), void* handle) {
  __shared__ int of_block;
  int* pointer = nullptr;
  int n = 0;
  add_one<<<1, 0>>>(out);
  out[n++] = cudaPeekAtLastError();
  out[n++] = cudaGetLastError();
  out[n++] = cudaGetLastError();
  out[n++] = cudaStreamDestroy(static_cast<cudaStream_t>(handle));
  out[n++] = cudaGetLastError();
  cudaStream_t stream;
  out[n++] = cudaStreamCreateWithFlags(&stream, cudaStreamDefault);
  cudaEvent_t event;
  out[n++] = cudaEventCreateWithFlags(&event, cudaEventDefault);
  out[n++] = cudaMemcpyAsync(out, pointer, 4, cudaMemcpyHostToDevice);
  out[n++] = cudaMemsetAsync(&of_block, 0, 4);
  out[n++] = cudaLaunchDevice(reinterpret_cast<void*>(no_kernel), nullptr, 1, 1, 0, 0);
  out[n++] = cudaLaunchDevice(reinterpret_cast<void*>(add_one), nullptr, 1, 1, 0, 0);
  add_one<<<1, 1, 0, static_cast<cudaStream_t>(handle)>>>(out);
  out[n++] = cudaGetLastError();
  out[n++] = is_text(cudaGetErrorName(cudaErrorInvalidConfiguration), "cudaErrorInvalidConfiguration");
  out[n++] = is_text(cudaGetErrorString(cudaSuccess), "no error");
  int count = 0;
  int device = 9;
  out[n++] = cudaGetDeviceCount(&count) + cudaGetDevice(&device) + count * 100 + device;
  cudaFuncAttributes attributes;
  out[n++] = cudaFuncGetAttributes(&attributes, errors);
  out[n++] = static_cast<int>(attributes.sharedSizeBytes);
  out[n++] = attributes.maxThreadsPerBlock;
}

// By the documented calls for other compilers: a buffer, the parameters in it, the launch.
extern "C" __global__ void by_buffer(int* value) {
  void* buffer = cudaGetParameterBuffer(64, sizeof value);
  *static_cast<int**>(buffer) = value;
  cudaLaunchDevice(reinterpret_cast<void*>(add_one), buffer, dim3(2), dim3(8), 0, 0);
}

extern "C" __global__ void store(int* pointer) { *pointer = 1; }
extern "C" __global__ void misleads(int* pointer, int how) {
  if (how == 0) store<<<1, 1>>>(pointer);
  if (how == 1) cudaMemsetAsync(pointer, 0, 4);
  if (how == 2) store<<<1, 1, 0, cudaStreamTailLaunch>>>(pointer);
}

extern "C" __global__ void spin(int* go) {
  while (atomicAdd(go, 0) == 0) {
  }
}
extern "C" __global__ void starts_spinning(int* go) { spin<<<1, 1>>>(go); }

// Each of its threads launches.
extern "C" __global__ void crowd(int* value) { add_one<<<1, 1>>>(value); }
