// SPDX-License-Identifier: Apache-2.0
//
// Where the variables of modules lie: in an area of their own, each set at the lowest place that has room. Processes that load and unload the
// same modules in the same order so have them at the same addresses, whatever else they have mapped, as with NVIDIA's driver. Any thread.
#pragma once

#include <cstddef>

namespace mpsshim::cpudriver {

// Zeroed pages, whose number is a whole one; nullptr: there is no memory. Outside the area where that is full, or somebody else's.
void* take_module_pages(std::size_t size);
void give_back_module_pages(void* pages, std::size_t size);

}  // namespace mpsshim::cpudriver
