// SPDX-License-Identifier: Apache-2.0
// Kernels that launch kernels, and the device's heap: a sum by recursive halves, and lists made with malloc.
#include "report.hpp"

__global__ void fill(int* data, int count, int value) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) data[i] = value + i;
}

// Halves [first, first + count) until a piece is small, and fills that by a child grid.
__global__ void halve(int* data, int first, int count, int depth) {
  if (count <= 256 || depth == 0) {
    fill<<<(count + 127) / 128, 128>>>(data + first, count, first * 3);
    return;
  }
  const int half = count / 2;
  halve<<<1, 1>>>(data, first, half, depth - 1);
  halve<<<1, 1>>>(data, first + half, count - half, depth - 1);
}

struct Link {
  Link* next;
  int value;
};

__global__ void lists(int* sums, int length) {
  Link* head = nullptr;
  for (int i = 0; i < length; ++i) {
    auto* link = static_cast<Link*>(malloc(sizeof(Link)));
    if (link == nullptr) return;
    *link = {head, i};
    head = link;
  }
  int sum = 0;
  while (head != nullptr) {
    Link* next = head->next;
    sum += head->value;
    free(head);
    head = next;
  }
  sums[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

int main() {
  constexpr int count = 8192;
  const DeviceVector<int> data(count);
  halve<<<1, 1>>>(data.data(), 0, count, 5);
  CHECKED(cudaGetLastError());
  CHECKED(cudaDeviceSynchronize());
  std::vector<int> want(count);
  for (int piece = 0; piece < 32; ++piece)
    for (int i = 0; i < 256; ++i) want[piece * 256 + i] = piece * 256 * 3 + i;
  near("grids of grids", data.host(), want, 0);
  result("grids of grids", data.host());

  CHECKED(cudaDeviceSetLimit(cudaLimitMallocHeapSize, 64 << 20));
  const DeviceVector<int> sums(512);
  lists<<<4, 128>>>(sums.data(), 40);
  CHECKED(cudaGetLastError());
  CHECKED(cudaDeviceSynchronize());
  near("lists on the device's heap", sums.host(), std::vector<int>(512, 40 * 39 / 2), 0);
}
