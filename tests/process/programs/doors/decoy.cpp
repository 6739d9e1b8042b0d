// SPDX-License-Identifier: Apache-2.0
// Lies where NVIDIA's library would, under its soname, and says so when it is used.
#include <cstdio>

extern "C" {
__attribute__((visibility("default"))) int cuInit(unsigned) {
  std::printf("decoy: cuInit\n");
  return 0;
}
__attribute__((visibility("default"))) int cuDriverGetVersion(int* version) {
  *version = 4711;
  return 0;
}
}
