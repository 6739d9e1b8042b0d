// SPDX-License-Identifier: Apache-2.0
// MPSSHIM_MANAGED: where this process's managed memory lives.
#pragma once

#include <cstdint>

namespace mpsshim::interposer {

enum class ManagedMode : std::uint8_t {
  host,       // pinned memory under another name, reached by kernels over the bus
  device,     // it migrates; where it cannot the allocation fails
  automatic,  // it migrates where system calls' touches are noticed too, and the process's devices reach each other; where there is no room as `host`
};

// Read once.
[[nodiscard]] ManagedMode managed_mode();

}  // namespace mpsshim::interposer
