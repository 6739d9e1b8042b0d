// SPDX-License-Identifier: Apache-2.0
// cuFFT: transforms there and back in one, two and three dimensions, of sizes with small and with large prime factors.
#include "report.hpp"

#include <cufft.h>

namespace {

// `points` of each of `batch` transforms.
void there_and_back(const char* name, cufftHandle plan, std::size_t points, std::size_t batch = 1) {
  const std::size_t count = points * batch;
  const std::vector<float> values = numbers<float>(2 * count, static_cast<std::uint32_t>(count));
  const DeviceVector<float> data(values);
  auto* complex = reinterpret_cast<cufftComplex*>(data.data());
  CHECKED(cufftExecC2C(plan, complex, complex, CUFFT_FORWARD));
  result(name, data.host());
  CHECKED(cufftExecC2C(plan, complex, complex, CUFFT_INVERSE));
  std::vector<float> back = data.host();
  for (float& value : back) value /= static_cast<float>(points);
  near(name, back, values, 1e-4);
  CHECKED(cufftDestroy(plan));
}

}  // namespace

int main() {
  cufftHandle plan = 0;
  CHECKED(cufftPlan1d(&plan, 1 << 16, CUFFT_C2C, 4));
  there_and_back("65536 points, four times", plan, 1 << 16, 4);
  CHECKED(cufftPlan1d(&plan, 10007, CUFFT_C2C, 1));
  there_and_back("10007 points", plan, 10007);
  CHECKED(cufftPlan2d(&plan, 300, 256, CUFFT_C2C));
  there_and_back("300 x 256 points", plan, 300 * 256);
  CHECKED(cufftPlan3d(&plan, 32, 48, 40, CUFFT_C2C));
  there_and_back("32 x 48 x 40 points", plan, 32 * 48 * 40);

  const std::vector<double> signal = numbers<double>(4096, 9);
  const DeviceVector<double> real(signal);
  const DeviceVector<cufftDoubleComplex> spectrum(2049);
  CHECKED(cufftPlan1d(&plan, 4096, CUFFT_D2Z, 1));
  CHECKED(cufftExecD2Z(plan, real.data(), spectrum.data()));
  double sum = 0;
  for (double value : signal) sum += value;
  const std::vector<cufftDoubleComplex> host = spectrum.host();
  near("the mean of a real transform", std::vector<double>{host[0].x}, std::vector<double>{sum}, 1e-9);
  result("real transform", host);
  CHECKED(cufftDestroy(plan));
}
