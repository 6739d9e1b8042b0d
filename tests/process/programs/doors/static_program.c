/* SPDX-License-Identifier: Apache-2.0
   A static program that opens the driver as the loader finds it, says what it answers, and does what needs more than answers. With an argument it
   says only which release of the C library it has in it. */
#include <dlfcn.h>
#include <gnu/libc-version.h>
#include <stdio.h>

int main(int count, char** arguments) {
  (void)arguments;
  if (count > 1) return puts(gnu_get_libc_version()) < 0;
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == NULL) {
    printf("failed: %s\n", dlerror());
    return 1;
  }
  int (*init)(unsigned) = (int (*)(unsigned))dlsym(library, "cuInit");
  int (*get_version)(int*) = (int (*)(int*))dlsym(library, "cuDriverGetVersion");
  int (*set_current)(void*) = (int (*)(void*))dlsym(library, "cuCtxSetCurrent");
  int version = 0;
  const int result = get_version(&version);
  printf("cuDriverGetVersion %d", result);
  printf(" cuInit %d", init(0));
  printf(" cuCtxSetCurrent %d\n", set_current(NULL));
  return 0;
}
