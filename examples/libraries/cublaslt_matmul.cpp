// SPDX-License-Identifier: Apache-2.0
// cuBLASLt: half-precision products with a fused bias and ReLU, the algorithm chosen by its heuristics, with a workspace.
#include "report.hpp"

#include <cublasLt.h>
#include <cuda_fp16.h>

int main() {
  constexpr int m = 512, n = 256, k = 384;
  cublasLtHandle_t handle = nullptr;
  CHECKED(cublasLtCreate(&handle));
  const auto halves = [](std::size_t count, std::uint32_t seed) {
    std::vector<__half> values;
    for (float value : numbers<float>(count, seed)) values.push_back(__float2half(value));
    return values;
  };
  const std::vector<__half> a = halves(m * k, 1), b = halves(k * n, 2), bias = halves(m, 3);
  const DeviceVector<__half> da(a), db(b), dbias(bias);
  const DeviceVector<__half> dd(static_cast<std::size_t>(m) * n);
  const DeviceVector<char> workspace(32 << 20);

  cublasLtMatmulDesc_t operation = nullptr;
  CHECKED(cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_RELU_BIAS;
  const void* bias_pointer = dbias.data();
  CHECKED(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
  CHECKED(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias_pointer, sizeof bias_pointer));
  cublasLtMatrixLayout_t layout_a = nullptr, layout_b = nullptr, layout_d = nullptr;
  CHECKED(cublasLtMatrixLayoutCreate(&layout_a, CUDA_R_16F, m, k, m));
  CHECKED(cublasLtMatrixLayoutCreate(&layout_b, CUDA_R_16F, k, n, k));
  CHECKED(cublasLtMatrixLayoutCreate(&layout_d, CUDA_R_16F, m, n, m));
  cublasLtMatmulPreference_t preference = nullptr;
  const std::size_t workspace_bytes = workspace.size();
  CHECKED(cublasLtMatmulPreferenceCreate(&preference));
  CHECKED(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes, sizeof workspace_bytes));
  cublasLtMatmulHeuristicResult_t found[4] = {};
  int count = 0;
  CHECKED(cublasLtMatmulAlgoGetHeuristic(handle, operation, layout_a, layout_b, layout_d, layout_d, preference, 4, found, &count));
  std::printf("%d algorithms\n", count);

  cudaStream_t stream = nullptr;
  CHECKED(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  const float one = 1, zero = 0;
  for (int i = 0; i < count; ++i) {
    CHECKED(cublasLtMatmul(handle, operation, &one, da.data(), layout_a, db.data(), layout_b, &zero, dd.data(), layout_d, dd.data(), layout_d,
                           &found[i].algo, workspace.data(), workspace_bytes, stream));
    CHECKED(cudaStreamSynchronize(stream));
    std::vector<float> got, want;
    for (__half value : dd.host()) got.push_back(__half2float(value));
    for (int column = 0; column < n; column += 37) {
      for (int row = 0; row < m; ++row) {
        double sum = __half2float(bias[row]);
        for (int inner = 0; inner < k; ++inner) sum += static_cast<double>(__half2float(a[inner * m + row])) * __half2float(b[column * k + inner]);
        want.push_back(static_cast<float>(sum > 0 ? sum : 0));
      }
    }
    std::vector<float> compared;
    for (int column = 0; column < n; column += 37) compared.insert(compared.end(), got.begin() + column * m, got.begin() + (column + 1) * m);
    near("product with bias and ReLU", compared, want, 0.05);
    result("product", got);
  }
  CHECKED(cudaStreamDestroy(stream));
  CHECKED(cublasLtDestroy(handle));
}
