// SPDX-License-Identifier: Apache-2.0
// cuRAND: numbers of five generators, and their mean and spread.
#include "report.hpp"

#include <curand.h>

int main() {
  constexpr std::size_t count = 1 << 18;
  const struct {
    const char* name;
    curandRngType_t type;
  } generators[] = {{"XORWOW", CURAND_RNG_PSEUDO_XORWOW},
                    {"MRG32k3a", CURAND_RNG_PSEUDO_MRG32K3A},
                    {"MTGP32", CURAND_RNG_PSEUDO_MTGP32},
                    {"Philox", CURAND_RNG_PSEUDO_PHILOX4_32_10},
                    {"Sobol", CURAND_RNG_QUASI_SOBOL32}};
  for (const auto& [name, type] : generators) {
    curandGenerator_t generator = nullptr;
    CHECKED(curandCreateGenerator(&generator, type));
    if (type != CURAND_RNG_QUASI_SOBOL32) CHECKED(curandSetPseudoRandomGeneratorSeed(generator, 1234));
    const DeviceVector<float> values(count);
    CHECKED(curandGenerateUniform(generator, values.data(), count));
    double mean = 0;
    for (float value : values.host()) mean += value / static_cast<double>(count);
    near(name, std::vector<double>{mean}, std::vector<double>{0.5}, 0.01);
    result(name, values.host());
    CHECKED(curandGenerateNormal(generator, values.data(), count, 0.0F, 1.0F));
    double square = 0;
    for (float value : values.host()) square += static_cast<double>(value) * value / static_cast<double>(count);
    near("spread", std::vector<double>{square}, std::vector<double>{1.0}, 0.02);
    result("normal", values.host());
    CHECKED(curandDestroyGenerator(generator));
  }
}
