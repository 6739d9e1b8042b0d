// SPDX-License-Identifier: Apache-2.0
// cuBLAS: matrix products in three precisions, a batch, a triangular solve; with an argument N also the rate of N x N sgemm.
#include "report.hpp"

#include <cublas_v2.h>

#include <chrono>

namespace {

std::vector<double> product(const std::vector<float>& a, const std::vector<float>& b, int n) {
  std::vector<double> c(static_cast<std::size_t>(n) * n);
  for (int column = 0; column < n; ++column)
    for (int k = 0; k < n; ++k)
      for (int row = 0; row < n; ++row) c[column * n + row] += static_cast<double>(a[k * n + row]) * b[column * n + k];
  return c;
}

void rate(cublasHandle_t handle, int n) {
  const DeviceVector<float> a(numbers<float>(static_cast<std::size_t>(n) * n, 1)), b(numbers<float>(static_cast<std::size_t>(n) * n, 2));
  const DeviceVector<float> c(static_cast<std::size_t>(n) * n);
  const float one = 1, zero = 0;
  const auto run = [&](int times) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < times; ++i)
      CHECKED(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one, a.data(), n, b.data(), n, &zero, c.data(), n));
    CHECKED(cudaDeviceSynchronize());
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / times;
  };
  run(5);
  std::fprintf(stderr, "sgemm %d: %.1f TFLOP/s\n", n, 2.0 * n * n * n / run(50) / 1e12);
  result("sgemm of the rate", c.host());
}

}  // namespace

int main(int argc, char** argv) {
  constexpr int n = 192;
  cublasHandle_t handle = nullptr;
  CHECKED(cublasCreate(&handle));
  const std::vector<float> a = numbers<float>(n * n, 1), b = numbers<float>(n * n, 2);
  const DeviceVector<float> da(a), db(b), dc(n * n);
  const float one = 1, zero = 0;
  CHECKED(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one, da.data(), n, db.data(), n, &zero, dc.data(), n));
  near("sgemm", dc.host(), product(a, b, n), 1e-4);
  result("sgemm", dc.host());

  const DeviceVector<double> ea(numbers<double>(n * n, 3)), eb(numbers<double>(n * n, 4)), ec(n * n);
  const double done = 1, dzero = 0;
  CHECKED(cublasDgemm(handle, CUBLAS_OP_N, CUBLAS_OP_T, n, n, n, &done, ea.data(), n, eb.data(), n, &dzero, ec.data(), n));
  result("dgemm", ec.host());

  CHECKED(cublasGemmStridedBatchedEx(handle, CUBLAS_OP_N, CUBLAS_OP_N, 64, 64, 64, &one, da.data(), CUDA_R_32F, 64, 64 * 64, db.data(), CUDA_R_32F,
                                     64, 64 * 64, &zero, dc.data(), CUDA_R_32F, 64, 64 * 64, 9, CUBLAS_COMPUTE_32F_FAST_TF32, CUBLAS_GEMM_DEFAULT));
  result("a batch of nine in TF32", dc.host());

  float norm = 0;
  CHECKED(cublasSnrm2(handle, n * n, da.data(), 1, &norm));
  result("norm, to the host", std::vector<float>{norm});

  std::vector<float> triangle = a;
  for (int i = 0; i < n; ++i) triangle[i * n + i] = 40;
  const DeviceVector<float> dt(triangle), dx(b);
  CHECKED(cublasStrsm(handle, CUBLAS_SIDE_LEFT, CUBLAS_FILL_MODE_LOWER, CUBLAS_OP_N, CUBLAS_DIAG_NON_UNIT, n, n, &one, dt.data(), n, dx.data(), n));
  CHECKED(cublasStrmm(handle, CUBLAS_SIDE_LEFT, CUBLAS_FILL_MODE_LOWER, CUBLAS_OP_N, CUBLAS_DIAG_NON_UNIT, n, n, &one, dt.data(), n, dx.data(), n,
                      dc.data(), n));
  near("triangular solve, multiplied back", dc.host(), b, 1e-4);
  result("triangular solve", dx.host());
  if (argc > 1) rate(handle, std::atoi(argv[1]));
  CHECKED(cublasDestroy(handle));
}
