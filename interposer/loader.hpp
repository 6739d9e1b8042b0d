// SPDX-License-Identifier: Apache-2.0
// The doors of the dynamic loader. This library is preloaded under the soname libcuda.so.1, so whoever links with that name or opens it has us
// already. By another name of the driver, libcuda.so or a path, the loader would bring NVIDIA's library in beside us: the exported dlopen and
// dlmopen give it our own path instead.
//
// They decide about the name alone and then *jump* to the next definition, which is the C library's or that of whoever else stands between. The
// loader reads from its return address which library asks (whose RUNPATH, $ORIGIN and namespace count), so it must never be a place in here.
// Nothing is looked up before the first call, nothing is allocated, and errno and dlerror() are those of the C library.
//
// Loads that the loader makes by itself do not come by here (a DT_NEEDED entry that is a path), nor those of code that does not see our dlopen: in a
// namespace of dlmopen, in a static program, or where this library was not preloaded. For those there is the folder for LD_LIBRARY_PATH.
#pragma once

namespace mpsshim::interposer {

// Whether dlopen's `file` is a name of the driver: its last part is libcuda.so, alone or with a version behind it, or it is a path that is a
// link to such a name. A name without a slash is not searched for. `file` may be null. Keeps errno.
[[nodiscard]] bool names_driver(const char* file) noexcept;

// The next dlopen behind this library's own, for loading the real driver.
[[nodiscard]] void* next_dlopen(const char* file, int mode);

}  // namespace mpsshim::interposer
