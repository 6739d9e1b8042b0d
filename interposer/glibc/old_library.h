// SPDX-License-Identifier: Apache-2.0
// libpthread.so.0 and libdl.so.2 as glibc had them before 2.34, for the linker alone: names and versions, no code. What is linked with them first
// needs these functions in the version, and of the library, that systems older than 2.34 have them in; before 2.30 the loader insists on the library.
// Newer systems have the same versions in libc.so.6, as the same code, and empty libraries of these names, and there the loader looks in all
// libraries. Needed of libc.so.6 instead, a function would have the version with which it moved there.
#pragma once

// What is not here is taken from the C library of the machine that builds; tests/artefact/check_exports.sh names it.
#define MPSSHIM_OLD_SYMBOL(name, version) \
  __asm__(".globl old_" #name "\n.type old_" #name ", @function\nold_" #name ":\n.symver old_" #name ", " #name "@@" version "\n")
