// SPDX-License-Identifier: Apache-2.0
// Kernels whose PTX the engine's tests execute: what ordinary CUDA programs are made of.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cuda_fp16.h>

#include <cassert>
#include <cstdio>

namespace cg = cooperative_groups;

extern "C" {

__global__ void vector_add(const float* a, const float* b, float* c, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i];
}

__global__ void matmul(const float* a, const float* b, float* c, int n) {
    __shared__ float ta[16][16];
    __shared__ float tb[16][16];
    const int x = threadIdx.x, y = threadIdx.y;
    const int column = blockIdx.x * 16 + x, line = blockIdx.y * 16 + y;
    float sum = 0;
    for (int t = 0; t < n; t += 16) {
        ta[y][x] = a[line * n + t + x];
        tb[y][x] = b[(t + y) * n + column];
        __syncthreads();
        for (int k = 0; k < 16; ++k) sum += ta[y][k] * tb[k][x];
        __syncthreads();
    }
    c[line * n + column] = sum;
}

__global__ void matmul32(const float* a, const float* b, float* c, int n) {
    __shared__ float ta[32][32];
    __shared__ float tb[32][32];
    const int x = threadIdx.x, y = threadIdx.y;
    const int column = blockIdx.x * 32 + x, line = blockIdx.y * 32 + y;
    float sum = 0;
    for (int t = 0; t < n; t += 32) {
        ta[y][x] = a[line * n + t + x];
        tb[y][x] = b[(t + y) * n + column];
        __syncthreads();
        for (int k = 0; k < 32; ++k) sum += ta[y][k] * tb[k][x];
        __syncthreads();
    }
    c[line * n + column] = sum;
}

__global__ void warp_sum(const int* in, int* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    int v = i < n ? in[i] : 0;
    for (int d = 16; d > 0; d /= 2) v += __shfl_down_sync(0xffffffff, v, d);
    if ((threadIdx.x & 31) == 0) atomicAdd(out, v);
}

__global__ void block_scan(const int* in, int* out) {  // Inclusive, one block.
    __shared__ int warps[32];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int v = in[threadIdx.x];
    for (int d = 1; d < 32; d *= 2) {
        const int o = __shfl_up_sync(0xffffffff, v, d);
        if (lane >= d) v += o;
    }
    if (lane == 31) warps[warp] = v;
    __syncthreads();
    if (warp == 0) {
        int w = lane < blockDim.x / 32 ? warps[lane] : 0;
        for (int d = 1; d < 32; d *= 2) {
            const int o = __shfl_up_sync(0xffffffff, w, d);
            if (lane >= d) w += o;
        }
        warps[lane] = w;
    }
    __syncthreads();
    out[threadIdx.x] = v + (warp > 0 ? warps[warp - 1] : 0);
}

__global__ void transpose(const float* in, float* out, int n) {
    __shared__ float tile[32][33];
    int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
    for (int j = 0; j < 32; j += 8) tile[threadIdx.y + j][threadIdx.x] = in[(y + j) * n + x];
    __syncthreads();
    x = blockIdx.y * 32 + threadIdx.x;
    y = blockIdx.x * 32 + threadIdx.y;
    for (int j = 0; j < 32; j += 8) out[(y + j) * n + x] = tile[threadIdx.x][threadIdx.y + j];
}

__global__ void histogram(const unsigned char* in, unsigned* out, int n) {
    __shared__ unsigned bins[256];
    for (int i = threadIdx.x; i < 256; i += blockDim.x) bins[i] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&bins[in[i]], 1u);
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += blockDim.x) atomicAdd(&out[i], bins[i]);
}

__global__ void nbody(const float4* p, float4* v, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    float ax = 0, ay = 0, az = 0;
    for (int j = 0; j < n; ++j) {
        const float dx = p[j].x - p[i].x, dy = p[j].y - p[i].y, dz = p[j].z - p[i].z;
        const float r = rsqrtf(dx * dx + dy * dy + dz * dz + 0.01f);
        const float s = p[j].w * r * r * r;
        ax += dx * s;
        ay += dy * s;
        az += dz * s;
    }
    v[i] = make_float4(ax, ay, az, 0);
}

__global__ void jacobi(const double* in, double* out, int n) {
    const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x > 0 && y > 0 && x < n - 1 && y < n - 1)
        out[y * n + x] = 0.25 * (in[y * n + x - 1] + in[y * n + x + 1] + in[(y - 1) * n + x] + in[(y + 1) * n + x]);
}

__global__ void float_functions(const float* in, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const float x = in[i];
    float* o = out + i;
    int k = 0;
#define PUT(e) o[n * k++] = (e)
    PUT(sinf(x)); PUT(cosf(x)); PUT(tanf(x)); PUT(expf(x)); PUT(exp2f(x)); PUT(logf(fabsf(x) + 0.1f)); PUT(log2f(fabsf(x) + 0.1f));
    PUT(sqrtf(fabsf(x))); PUT(rsqrtf(fabsf(x) + 0.1f)); PUT(atanf(x)); PUT(tanhf(x)); PUT(powf(fabsf(x) + 0.5f, 1.7f)); PUT(erff(x));
    PUT(floorf(x)); PUT(ceilf(x)); PUT(rintf(x)); PUT(truncf(x)); PUT(fmodf(x, 0.7f)); PUT(x / 3.0f); PUT(copysignf(2.0f, x));
    PUT(cbrtf(x)); PUT(atan2f(x, 0.3f)); PUT(hypotf(x, 2.0f)); PUT(sinhf(x));
#undef PUT
}

__global__ void double_functions(const double* in, double* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const double x = in[i];
    double* o = out + i;
    int k = 0;
#define PUT(e) o[n * k++] = (e)
    PUT(sin(x)); PUT(cos(x)); PUT(exp(x)); PUT(log(fabs(x) + 0.1)); PUT(sqrt(fabs(x))); PUT(rsqrt(fabs(x) + 0.1)); PUT(pow(fabs(x) + 0.5, 1.7));
    PUT(tanh(x)); PUT(atan(x)); PUT(x / 3.0); PUT(floor(x)); PUT(rint(x)); PUT(erf(x)); PUT(cbrt(x));
#undef PUT
}

__global__ void tile_reduce(int* out) {
    const auto tile = cg::tiled_partition<16>(cg::this_thread_block());
    out[threadIdx.x] = cg::reduce(tile, static_cast<int>(threadIdx.x), cg::plus<int>());
}

__global__ void coalesced_count(const int* in, int* counter, int* position) {
    if (in[threadIdx.x] > 0) {
        const auto active = cg::coalesced_threads();
        int base = 0;
        if (active.thread_rank() == 0) base = atomicAdd(counter, static_cast<int>(active.size()));
        position[threadIdx.x] = active.shfl(base, 0) + static_cast<int>(active.thread_rank());
    }
}

__global__ void grid_sync(int* data, int n, int rounds) {
    auto grid = cg::this_grid();
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    for (int r = 0; r < rounds; ++r) {
        const int v = data[(r & 1) * n + (i + 1) % n];
        data[((r + 1) & 1) * n + i] = v + 1;
        grid.sync();
    }
}

__global__ void spin_lock(int* lock, int* counter) {  // Every lane takes it: the classic hang of lock-step machines.
    bool done = false;
    while (!done) {
        if (atomicCAS(lock, 0, 1) == 0) {
            *reinterpret_cast<volatile int*>(counter) += 1;
            __threadfence();
            atomicExch(lock, 0);
            done = true;
        }
    }
}

__global__ void spin_lock_simple(int* lock, int* counter) {
    while (atomicCAS(lock, 0, 1) != 0) {}
    *reinterpret_cast<volatile int*>(counter) += 1;
    __threadfence();
    atomicExch(lock, 0);
}

__global__ void block_chain(volatile int* flags, int* out) {  // Each block waits for the one before.
    if (threadIdx.x == 0) {
        if (blockIdx.x > 0) while (flags[blockIdx.x - 1] == 0) {}
        out[blockIdx.x] = blockIdx.x == 0 ? 1 : out[blockIdx.x - 1] + 1;
        __threadfence();
        flags[blockIdx.x] = 1;
    }
}

__global__ void reverse_chain(volatile int* flags, int n) {  // Each block waits for the one after it.
    if (threadIdx.x == 0) {
        if (static_cast<int>(blockIdx.x) + 1 < n) while (flags[blockIdx.x + 1] == 0) {}
        flags[blockIdx.x] = 1;
    }
}

__global__ void forever(volatile int* flag) { while (*flag == 0) {} }
__global__ void forever_silent(int* out) {
    unsigned x = threadIdx.x;
    while (x != 12345678) x = x * 2 + 2;
    *out = static_cast<int>(x);
}

__global__ void say(int x) {
    if (threadIdx.x < 2) printf("thread %d: %5.2f %s %c %llx %%\n", threadIdx.x, 1.5 * x, "text", 'z', 0x123456789aULL);
}
__global__ void claim(int x) { assert(x != 7); }

struct Record { int a[10]; double b; };
__device__ __noinline__ int recursive(int n, Record s) { return n < 2 ? n + s.a[n] : recursive(n - 1, s) + recursive(n - 2, s); }
__global__ void call_recursive(Record s, int* out) { out[threadIdx.x] = recursive(threadIdx.x % 8, s) + static_cast<int>(s.b); }
__global__ void grid_constant(const __grid_constant__ Record s, int* out) {
    const Record* p = &s;
    out[threadIdx.x] = p->a[threadIdx.x % 10];
}
__device__ __noinline__ int endless(int n) { return n == -1 ? 1 : n / (endless(n + 1) | 1); }
__global__ void overflow(int* out) { *out = endless(static_cast<int>(threadIdx.x)); }

__device__ int plus_one(int x) { return x + 1; }
__device__ int times_three(int x) { return x * 3; }
typedef int (*Function)(int);
__device__ Function functions[2] = {plus_one, times_three};
struct Mixed { char c; Function f; short s; const char* name; };
__device__ Mixed mixed = {'a', times_three, 3, "hello"};
__global__ void call_pointers(int* out) { out[threadIdx.x] = functions[threadIdx.x & 1](threadIdx.x) + mixed.f(2) + mixed.name[1]; }
__global__ void call_wild(Function f, int* out) { *out = f(1); }

struct Base { __device__ virtual int f(int) = 0; };
struct One : Base { __device__ int f(int x) override { return x + 1; } };
struct Two : Base { __device__ int f(int x) override { return x * 2; } };
__global__ void call_virtual(int* out) {
    One a;
    Two b;
    Base* p = (threadIdx.x & 1) != 0 ? static_cast<Base*>(&a) : static_cast<Base*>(&b);
    out[threadIdx.x] = p->f(threadIdx.x);
}
__global__ void use_heap(int* out) {
    int* p = static_cast<int*>(malloc(sizeof(int) * 4));
    if (p == nullptr) { out[threadIdx.x] = -1; return; }
    p[3] = threadIdx.x * 7;
    out[threadIdx.x] = p[3];
    free(p);
}

__constant__ int table[4] = {10, 20, 30, 40};
__device__ int counter = 5;
__managed__ int shared_with_host = 9;
__global__ void use_globals(int* out) {
    out[threadIdx.x] = table[threadIdx.x & 3] + shared_with_host;
    if (threadIdx.x == 0) counter += 1;
}

__global__ void local_array(const int* in, int* out) {
    int a[16];
    for (int i = 0; i < 16; ++i) a[i] = in[i] * static_cast<int>(threadIdx.x);
    out[threadIdx.x] = a[in[threadIdx.x & 15] & 15];
}

__global__ void half_math(const __half* a, const __half* b, __half* out) {
    const int i = threadIdx.x;
    out[i] = __hfma(a[i], b[i], __hadd(a[i], b[i]));
}

__global__ void early_exit(int* out, int n) {
    __shared__ int total;
    if (threadIdx.x == 0) total = 0;
    __syncthreads();
    if (threadIdx.x >= n) return;
    atomicAdd(&total, 1);
    __syncthreads();
    out[threadIdx.x] = total;
}

__global__ void both_sides(int* out) {  // One collective, met from two places.
    const int lane = threadIdx.x;
    int v;
    if (lane < 16) v = __shfl_xor_sync(0xffffffff, lane, 16);
    else v = __shfl_xor_sync(0xffffffff, lane * 100, 16);
    out[lane] = v;
}

__global__ void dynamic_shared(int* out) {
    extern __shared__ int scratch[];
    __shared__ int fixed[8];
    if (threadIdx.x < 8) fixed[threadIdx.x] = threadIdx.x;
    scratch[threadIdx.x] = threadIdx.x * 2;
    __syncthreads();
    out[threadIdx.x] = scratch[blockDim.x - 1 - threadIdx.x] + fixed[threadIdx.x & 7];
}

__global__ void counts(const unsigned* in, int* out) {
    const int any = __syncthreads_or(in[threadIdx.x] == 3), all = __syncthreads_and(in[threadIdx.x] < 100);
    const int n = __syncthreads_count(in[threadIdx.x] & 1);
    out[threadIdx.x] = any * 10000 + all * 1000 + n;
}

__global__ void integers(const unsigned* in, unsigned* out, int n) {
    const int i = threadIdx.x;
    const unsigned x = in[i], y = in[(i + 1) % n] | 1;
    unsigned* o = out + i;
    int k = 0;
#define PUT(e) o[n * k++] = static_cast<unsigned>(e)
    PUT(x / y); PUT(x % y); PUT(static_cast<int>(x) / static_cast<int>(y)); PUT(static_cast<int>(x) % static_cast<int>(y)); PUT(__umulhi(x, y));
    PUT(__mulhi(static_cast<int>(x), static_cast<int>(y))); PUT(__popc(x)); PUT(__clz(x)); PUT(__brev(x)); PUT(__ffs(x));
    PUT(__byte_perm(x, y, 0x5140)); PUT(__funnelshift_l(x, y, y)); PUT(__funnelshift_r(x, y, y)); PUT((static_cast<unsigned long long>(x) * y) >> 13);
    PUT(__dp4a(static_cast<int>(x), static_cast<int>(y), 7)); PUT(__sad(static_cast<int>(x), static_cast<int>(y), 3u));
    PUT(min(x, y)); PUT(max(static_cast<int>(x), static_cast<int>(y)));
    PUT(static_cast<short>(x) >> 3); PUT(static_cast<unsigned char>(x) * 3);
    PUT(static_cast<unsigned long long>(x) / (y & 0xff | 1)); PUT(abs(static_cast<int>(x)));
    PUT(static_cast<float>(x)); PUT(static_cast<int>(static_cast<float>(static_cast<int>(x)) * 0.001f));
    PUT(x << (y & 31)); PUT(static_cast<int>(x) >> (y & 31));
#undef PUT
}

}  // extern "C"
