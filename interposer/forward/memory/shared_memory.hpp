// SPDX-License-Identifier: Apache-2.0
// Memory that processes share, by names that the control process gives out and knows again (proto/handshake.hpp): what stands behind shareable
// handles and inter-process handles. A name means the memory for as long as its maker holds it. Any thread.
#pragma once

#include <cstdint>

#include "gen/cuda_api.hpp"
#include "interposer/forward/begin.hpp"
#include "proto/client_requests.hpp"
#include "proto/segment.hpp"

namespace mpsshim::interposer::forward {

// `object`: address of a chunk, or handle of memory made by VirtualMemory.
[[nodiscard]] CUresult share_memory(std::uint64_t object, proto::MemoryName& name);
// Has the executor handed memory of that name, to be adopted under `id`.
struct OpenedMemory {
  bool is_own = false;       // of this process
  std::uint32_t device = 0;  // 1 + the broker's number of the device that has it; 0: not told
};
[[nodiscard]] CUresult open_shared_memory(const proto::MemoryName& name, proto::MemoryId id, OpenedMemory& opened);

enum class NameOf : std::uint32_t { memory = 0, pool = 1 };
// A descriptor that carries a name to another process: what the application passes on as a POSIX handle.
[[nodiscard]] proto::FileDescriptor write_name(const proto::MemoryName& name, NameOf what = NameOf::memory);
// False if `fd` is none of those.
[[nodiscard]] bool read_name(int fd, proto::MemoryName& name, NameOf what = NameOf::memory);

}  // namespace mpsshim::interposer::forward
