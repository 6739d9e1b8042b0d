// SPDX-License-Identifier: Apache-2.0
//
// Memory that one call gives and one call takes back: cuMemAlloc, cuMemHostAlloc, cuMemHostRegister, and what the
// driver takes for module globals. What is alive stands in MemoryMap and nowhere else. Any thread may call; the waits
// for running kernels that CUDA has in some of these calls are made by the callers (api/).
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "broker/cpudriver/memory/memory_map.hpp"

namespace mpsshim::cpudriver {

// Device memory of the given kind; kernels may touch it up to the next multiple of 512 bytes, as on a GPU. Zeroed.
CUresult allocate_device(std::size_t size, MemoryKind kind, std::uint64_t& address);
CUresult free_device(std::uint64_t address, MemoryKind kind);

CUresult allocate_pinned(std::size_t size, unsigned flags, void*& pointer);
CUresult free_pinned(void* pointer);

CUresult register_host(void* pointer, std::size_t size, unsigned flags);
CUresult unregister_host(void* pointer);

}  // namespace mpsshim::cpudriver
