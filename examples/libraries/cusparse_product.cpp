// SPDX-License-Identifier: Apache-2.0
// cuSPARSE: a sparse matrix times a vector and times a dense matrix.
#include "report.hpp"

#include <cusparse.h>

int main() {
  constexpr int rows = 2000, columns = 1500, in_a_row = 9, width = 16;
  std::vector<int> offsets(rows + 1), indices;
  for (int row = 0; row < rows; ++row) {
    offsets[row + 1] = offsets[row] + in_a_row;
    for (int i = 0; i < in_a_row; ++i) indices.push_back((row * 7 + i * 163) % columns);
  }
  const std::vector<float> values = numbers<float>(indices.size(), 1), x = numbers<float>(columns * width, 2);
  std::vector<double> want(rows * width);
  for (int c = 0; c < width; ++c)
    for (int row = 0; row < rows; ++row)
      for (int i = offsets[row]; i < offsets[row + 1]; ++i) want[c * rows + row] += static_cast<double>(values[i]) * x[c * columns + indices[i]];

  const DeviceVector<int> doffsets(offsets), dindices(indices);
  const DeviceVector<float> dvalues(values), dx(x), dy(rows * width);
  cusparseHandle_t handle = nullptr;
  CHECKED(cusparseCreate(&handle));
  cusparseSpMatDescr_t matrix = nullptr;
  CHECKED(cusparseCreateCsr(&matrix, rows, columns, static_cast<std::int64_t>(indices.size()), doffsets.data(), dindices.data(), dvalues.data(),
                            CUSPARSE_INDEX_32I, CUSPARSE_INDEX_32I, CUSPARSE_INDEX_BASE_ZERO, CUDA_R_32F));
  const float one = 1, zero = 0;
  std::size_t bytes = 0;

  cusparseDnVecDescr_t vector_x = nullptr, vector_y = nullptr;
  CHECKED(cusparseCreateDnVec(&vector_x, columns, dx.data(), CUDA_R_32F));
  CHECKED(cusparseCreateDnVec(&vector_y, rows, dy.data(), CUDA_R_32F));
  CHECKED(cusparseSpMV_bufferSize(handle, CUSPARSE_OPERATION_NON_TRANSPOSE, &one, matrix, vector_x, &zero, vector_y, CUDA_R_32F,
                                  CUSPARSE_SPMV_CSR_ALG2, &bytes));
  const DeviceVector<char> vector_buffer(bytes + 1);
  CHECKED(cusparseSpMV(handle, CUSPARSE_OPERATION_NON_TRANSPOSE, &one, matrix, vector_x, &zero, vector_y, CUDA_R_32F, CUSPARSE_SPMV_CSR_ALG2,
                       vector_buffer.data()));
  near("matrix times vector", dy.host(), std::vector<double>(want.begin(), want.begin() + rows), 1e-5);
  result("matrix times vector", dy.host());

  cusparseDnMatDescr_t dense_x = nullptr, dense_y = nullptr;
  CHECKED(cusparseCreateDnMat(&dense_x, columns, width, columns, dx.data(), CUDA_R_32F, CUSPARSE_ORDER_COL));
  CHECKED(cusparseCreateDnMat(&dense_y, rows, width, rows, dy.data(), CUDA_R_32F, CUSPARSE_ORDER_COL));
  CHECKED(cusparseSpMM_bufferSize(handle, CUSPARSE_OPERATION_NON_TRANSPOSE, CUSPARSE_OPERATION_NON_TRANSPOSE, &one, matrix, dense_x, &zero, dense_y,
                                  CUDA_R_32F, CUSPARSE_SPMM_CSR_ALG2, &bytes));
  const DeviceVector<char> matrix_buffer(bytes + 1);
  CHECKED(cusparseSpMM(handle, CUSPARSE_OPERATION_NON_TRANSPOSE, CUSPARSE_OPERATION_NON_TRANSPOSE, &one, matrix, dense_x, &zero, dense_y, CUDA_R_32F,
                       CUSPARSE_SPMM_CSR_ALG2, matrix_buffer.data()));
  near("matrix times matrix", dy.host(), want, 1e-5);
  result("matrix times matrix", dy.host());
  CHECKED(cusparseDestroy(handle));
}
