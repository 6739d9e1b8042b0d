// SPDX-License-Identifier: Apache-2.0
//
// Shares of the device's multiprocessors, as CUdevResource carries them (CUDA Driver API manual, "Green Contexts"). A resource is a value: the
// caller keeps it, copies it and gives it back, so all that is known of it lies in the structure, under a check sum. One that was not made
// here, or was changed since, is none. Nothing is restricted by it: kernels run where there is a core.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <optional>
#include <span>

namespace mpsshim::cpudriver {

struct SmShare {
  std::uint64_t mask = 0;      // one bit a multiprocessor
  std::uint64_t instance = 0;  // of the split that made it; 0: a device's or a context's own, which may be split

  unsigned count() const;
};

// The whole device.
SmShare whole_device();

CUdevResource as_resource(const SmShare& share);
// Nothing: no share of multiprocessors of this device.
std::optional<SmShare> share_of(const CUdevResource& resource);

// What a split gives: `groups` of equal size, and the rest.
struct SmSplit {
  unsigned groups = 0;
  unsigned group_size = 0;
};
// How many groups there may be at most; an error where there is none.
CUresult plan_split(const SmShare& input, unsigned flags, unsigned min_count, SmSplit& plan);
// Fills `groups`, at most as many as planned, and returns what is left.
SmShare split(const SmShare& input, const SmSplit& plan, std::span<CUdevResource> groups);

// One share of several: CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION unless they come from one split and have nothing in common.
CUresult combine(std::span<const SmShare> shares, SmShare& all);

}  // namespace mpsshim::cpudriver
