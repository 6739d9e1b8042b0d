// SPDX-License-Identifier: Apache-2.0
// madvise(MADV_POPULATE_WRITE): since Linux 5.14; headers may be older than the kernel. EINVAL before that.
#pragma once

#include <sys/mman.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
