// SPDX-License-Identifier: Apache-2.0
// What a descriptor is that a client has sent, found out without asking whoever is behind it: a file of a file system that its client serves (FUSE)
// may answer never, or otherwise the next time. So nothing here is a question to a file system, and nothing that such a file can say is believed.
#pragma once

#include <cstdint>
#include <optional>

namespace mpsshim::broker::control {

enum class DescriptorKind : std::uint8_t {
  other,
  memory_file,  // memfd_create
  dma_buf,
  gpu,  // of NVIDIA's driver: what Vulkan and CUDA export
};

struct DescriptorFacts {
  DescriptorKind kind = DescriptorKind::other;
  std::optional<std::uint64_t> size_bytes;  // nothing: the driver alone knows. A memory file may be made shorter later, if it is not sealed.
};

[[nodiscard]] DescriptorFacts look_at(int fd);

}  // namespace mpsshim::broker::control
