// SPDX-License-Identifier: Apache-2.0
#include "interposer/glibc/old_library.h"

MPSSHIM_OLD_SYMBOL(dladdr, "GLIBC_2.2.5");
MPSSHIM_OLD_SYMBOL(dlclose, "GLIBC_2.2.5");
MPSSHIM_OLD_SYMBOL(dlerror, "GLIBC_2.2.5");
MPSSHIM_OLD_SYMBOL(dlopen, "GLIBC_2.2.5");
MPSSHIM_OLD_SYMBOL(dlsym, "GLIBC_2.2.5");
