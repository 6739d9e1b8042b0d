// SPDX-License-Identifier: Apache-2.0
// A share of a device's multiprocessors, as records name it: by how it was made, never by what the driver keeps in a CUdevResource. So a client
// sends nothing that the driver would take for its own, and a share means the same in every executor: the driver makes it again, and a split
// of the same resource with the same arguments has the same parts.
//
// Trust: all of it comes from the client. An origin is looked up among the session's own green contexts, numbers are bounded, and what the
// driver says about the split decides.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "proto/ids.hpp"

namespace mpsshim::proto {

inline constexpr std::int32_t kWholeResource = -2;      // no split
inline constexpr std::int32_t kRemainingResource = -1;  // what a split has left
inline constexpr std::uint32_t kMaxResourceGroups = 256;
inline constexpr std::uint32_t kMaxResourceShares = 256;  // in one descriptor

struct ResourceShare {
  GreenContextId origin;               // whose resource it is, or is a part of; 0: the device's
  std::uint64_t instance = 0;          // tells splits with equal arguments apart: parts of two of them make no descriptor
  std::uint32_t groups = 0;            // that the split made
  std::uint32_t flags = 0;             // of the split
  std::uint32_t min_count = 0;         // of the split
  std::int32_t part = kWholeResource;  // the group's number, or one of the above
};
static_assert(sizeof(ResourceShare) == 32 && std::is_trivially_copyable_v<ResourceShare>);

// What the driver tells of a resource: its type, and the union of CUdevResource as it is.
struct ResourceTold {
  std::uint32_t type = 0;  // CUdevResourceType; 0: there is none
  std::uint32_t reserved = 0;
  std::uint8_t content[48] = {};
};
static_assert(sizeof(ResourceTold) == 56 && std::is_trivially_copyable_v<ResourceTold>);

}  // namespace mpsshim::proto
