// SPDX-License-Identifier: Apache-2.0
// cuSOLVER: Cholesky and LU factors with a solve, and the eigenvalues of a symmetric matrix.
#include "report.hpp"

#include <cusolverDn.h>

namespace {

constexpr int n = 256;

std::vector<double> times(const std::vector<double>& a, const std::vector<double>& x) {
  std::vector<double> y(n);
  for (int column = 0; column < n; ++column)
    for (int row = 0; row < n; ++row) y[row] += a[column * n + row] * x[column];
  return y;
}

void no_failure(const DeviceVector<int>& info, const char* what) {
  if (const int number = info.host().front(); number != 0) {
    std::fprintf(stderr, "%s: info is %d\n", what, number);
    std::exit(1);
  }
}

}  // namespace

int main() {
  std::vector<double> a = numbers<double>(n * n, 1);
  for (int row = 0; row < n; ++row)
    for (int column = 0; column < row; ++column) a[row * n + column] = a[column * n + row];
  for (int i = 0; i < n; ++i) a[i * n + i] += n;
  const std::vector<double> b = numbers<double>(n, 2);
  cusolverDnHandle_t handle = nullptr;
  CHECKED(cusolverDnCreate(&handle));
  const DeviceVector<int> info(1), pivots(n);
  int elements = 0;

  const DeviceVector<double> cholesky(a), x(b);
  CHECKED(cusolverDnDpotrf_bufferSize(handle, CUBLAS_FILL_MODE_LOWER, n, cholesky.data(), n, &elements));
  const DeviceVector<double> cholesky_work(elements);
  CHECKED(cusolverDnDpotrf(handle, CUBLAS_FILL_MODE_LOWER, n, cholesky.data(), n, cholesky_work.data(), elements, info.data()));
  no_failure(info, "Cholesky");
  CHECKED(cusolverDnDpotrs(handle, CUBLAS_FILL_MODE_LOWER, n, 1, cholesky.data(), n, x.data(), n, info.data()));
  near("solved by Cholesky", times(a, x.host()), b, 1e-10);
  result("solved by Cholesky", x.host());

  const DeviceVector<double> lu(a), z(b);
  CHECKED(cusolverDnDgetrf_bufferSize(handle, n, n, lu.data(), n, &elements));
  const DeviceVector<double> lu_work(elements);
  CHECKED(cusolverDnDgetrf(handle, n, n, lu.data(), n, lu_work.data(), pivots.data(), info.data()));
  no_failure(info, "LU");
  CHECKED(cusolverDnDgetrs(handle, CUBLAS_OP_N, n, 1, lu.data(), n, pivots.data(), z.data(), n, info.data()));
  near("solved by LU", times(a, z.host()), b, 1e-10);
  result("solved by LU", z.host());

  const DeviceVector<double> vectors(a), values(n);
  CHECKED(cusolverDnDsyevd_bufferSize(handle, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_LOWER, n, vectors.data(), n, values.data(), &elements));
  const DeviceVector<double> eigen_work(elements);
  CHECKED(cusolverDnDsyevd(handle, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_LOWER, n, vectors.data(), n, values.data(), eigen_work.data(), elements,
                           info.data()));
  no_failure(info, "eigenvalues");
  std::vector<double> first = vectors.host();
  first.resize(n);
  std::vector<double> scaled = first;
  for (double& value : scaled) value *= values.host().front();
  near("the first eigenvector", times(a, first), scaled, 1e-9);
  result("eigenvalues", values.host());
  CHECKED(cusolverDnDestroy(handle));
}
