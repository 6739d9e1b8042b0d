// SPDX-License-Identifier: Apache-2.0
// A library that opens others: with its own run path, $ORIGIN/inner, not with the program's.
#include <dlfcn.h>

extern "C" __attribute__((visibility("default"))) void* open_in_library(const char* file, int mode) {
  void* library = dlopen(file, mode);
  __asm__ volatile("" ::: "memory");  // the call above must not become a jump, or the program would be the caller
  return library;
}
