// SPDX-License-Identifier: Apache-2.0
// Kernels that use managed memory whose preferred place is the host (test_managed_on_host.cpp). None has an atomic operation that excludes the
// host's.
extern "C" {
__global__ void transform(unsigned* words, unsigned count, unsigned factor, unsigned addend) {
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) words[i] = words[i] * factor + addend;
}
// Says each number that it is told, up to the last.
__global__ void echo(volatile unsigned* told, volatile unsigned* said, unsigned last) {
  for (unsigned number = 0; number != last;) {
    const unsigned now = *told;
    if (now == number) continue;
    __threadfence_system();
    *said = number = now;
    __threadfence_system();
  }
}
}
