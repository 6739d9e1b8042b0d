// SPDX-License-Identifier: Apache-2.0
#include "interposer/glibc/old_library.h"

MPSSHIM_OLD_SYMBOL(__pthread_key_create, "GLIBC_2.2.5");
MPSSHIM_OLD_SYMBOL(pthread_create, "GLIBC_2.2.5");
MPSSHIM_OLD_SYMBOL(pthread_detach, "GLIBC_2.2.5");
MPSSHIM_OLD_SYMBOL(pthread_getspecific, "GLIBC_2.2.5");
MPSSHIM_OLD_SYMBOL(pthread_join, "GLIBC_2.2.5");
MPSSHIM_OLD_SYMBOL(pthread_key_create, "GLIBC_2.2.5");
MPSSHIM_OLD_SYMBOL(pthread_key_delete, "GLIBC_2.2.5");
MPSSHIM_OLD_SYMBOL(pthread_mutex_trylock, "GLIBC_2.2.5");
MPSSHIM_OLD_SYMBOL(pthread_once, "GLIBC_2.2.5");
MPSSHIM_OLD_SYMBOL(pthread_rwlock_rdlock, "GLIBC_2.2.5");
MPSSHIM_OLD_SYMBOL(pthread_rwlock_tryrdlock, "GLIBC_2.2.5");
MPSSHIM_OLD_SYMBOL(pthread_rwlock_trywrlock, "GLIBC_2.2.5");
MPSSHIM_OLD_SYMBOL(pthread_rwlock_unlock, "GLIBC_2.2.5");
MPSSHIM_OLD_SYMBOL(pthread_rwlock_wrlock, "GLIBC_2.2.5");
MPSSHIM_OLD_SYMBOL(pthread_setname_np, "GLIBC_2.12");
MPSSHIM_OLD_SYMBOL(pthread_setspecific, "GLIBC_2.2.5");
MPSSHIM_OLD_SYMBOL(pthread_sigmask, "GLIBC_2.2.5");
