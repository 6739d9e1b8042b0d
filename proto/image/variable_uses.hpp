// SPDX-License-Identifier: Apache-2.0
//
// Which variables of an image its kernels may write to, and which kernels may leave the address of one where later kernels find it. Read from the
// code, so that a launch which touches none is known to leave them as they are.
//
// Says more when in doubt, never less: what is not understood makes `are_known` false, and then every kernel may do anything, but to __constant__
// variables: to these no kernel writes (in CUDA their space is read-only for kernels, whatever has their address).
// Of cubins: a kernel that may refer to a variable may write to it and leave its address. Of texts: what is done with the address is followed.
// Not trusted; an image that lies deceives nobody but its owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>

namespace mpsshim::image {

struct VariableUse {
  std::set<std::string, std::less<>> variables;
  bool leaves_addresses = false;  // of these

  void add(const VariableUse& other);
};

struct VariableUses {
  bool are_known = false;
  std::uint32_t kernel_count = 0;                           // of the image: a driver that knows of more has seen more than was read here
  std::map<std::string, VariableUse, std::less<>> kernels;  // those that write to any; empty where nothing is known
  std::set<std::string, std::less<>> constants;             // known in any case

  // Either image may be the one that is loaded.
  void add(const VariableUses& other);
};

[[nodiscard]] VariableUses variable_uses_of_cubin(std::span<const std::byte> cubin);
[[nodiscard]] VariableUses variable_uses_of_ptx(std::string_view text);

}  // namespace mpsshim::image
