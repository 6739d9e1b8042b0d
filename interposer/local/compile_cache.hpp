// SPDX-License-Identifier: Apache-2.0
// The compile cache that nvrtc and nvJitLink ask the driver for (table da9151d3): which entry is meant. The files are cache_store.hpp's; what
// was observed, and how far, is in docs/undocumented-tables.md.
//
// Needs no broker and no cuInit. Any thread; an entry's handle is used by one at a time, and several may be open in a thread. None throws, none
// ends the program: whatever fails is a miss or an error that the compiler goes on after.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gen/cuda_api.hpp"

namespace mpsshim::interposer {

class CompileCacheEntry;

namespace slots {

// 1: a handle for what is compiled from `key` in this way. `kind` is 2 for a source (NVVM IR) and 1 for what becomes machine code: PTX, or the
// source once more; other kinds are CUDA_ERROR_NOT_SUPPORTED. The strings may be null. Where nothing is cached (CUDA_CACHE_DISABLE) it is
// CUDA_ERROR_NOT_SUPPORTED and a null handle: compilers ask no more.
CUresult cache_open(CompileCacheEntry** entry, std::uint32_t kind, const void* key, std::size_t key_bytes, const char* options, const char* host,
                    const char* build, std::uint32_t architecture);

// 2: also of a handle from which nothing was asked. What cache_get has given stays.
CUresult cache_close(CompileCacheEntry* entry);

// 3: CUDA_ERROR_NOT_FOUND leaves *data and *size_bytes as they are. Never success without at least a byte. The caller owns a copy (cache_free).
CUresult cache_get(CompileCacheEntry* entry, std::uint32_t item, void** data, std::uint32_t* size_bytes);

// 4: CUDA_ERROR_OPERATING_SYSTEM where it could not be written, CUDA_ERROR_NOT_SUPPORTED where an entry would not say all that its content
// depends on. `item` is 0 here and in cache_get; its meaning is not known, and others are CUDA_ERROR_NOT_SUPPORTED.
CUresult cache_put(CompileCacheEntry* entry, std::uint32_t item, const void* data, std::size_t size_bytes);

// 6.
void cache_free(void* data);

}  // namespace slots
}  // namespace mpsshim::interposer
