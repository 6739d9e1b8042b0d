// SPDX-License-Identifier: Apache-2.0
// Which entries of a container serve a device. NVIDIA's driver would choose by itself, and may have reasons of its own to take a text beside machine
// code, which it then compiles where it loads; so an executor's is given what has been chosen here and read, and nothing else.
#pragma once

#include <span>
#include <vector>

#include "broker/compiler/prepare_image.hpp"
#include "proto/image/fatbin.hpp"

namespace mpsshim::broker {

struct FatbinChoice {
  // Machine code of the device's own major version, the nearest that is not newer. Several: variants for the same architecture (sm_90 and sm_90a),
  // among which only the driver knows its own preference.
  std::vector<image::FatbinEntry> cubins;
  const image::FatbinEntry* ptx = nullptr;        // the newest text that is not newer than the device
  const image::FatbinEntry* newer_ptx = nullptr;  // what is left where there is neither: a driver may take it (the CPU driver does) or refuse it
};

// `entries` outlive what is chosen.
[[nodiscard]] FatbinChoice choose_entries(std::span<const image::FatbinEntry> entries, const ImageTarget& target);

// Machine code that a driver for such devices may take from a container.
[[nodiscard]] bool is_code_for(const image::FatbinEntry& entry, const ImageTarget& target);

}  // namespace mpsshim::broker
