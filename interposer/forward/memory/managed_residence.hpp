// SPDX-License-Identifier: Apache-2.0
// Managed memory that lives on the host, since the program has advised that this is its preferred place: kernels have the shadow's pages at its
// address (ChunkResidence), so that both sides see each other's stores at once. The device's memory stays what it was made for, so that the way back
// cannot fail for want of it.
//
// Not where kernels have atomic operations that are to exclude the host's: over a bus without such operations they do not, and natively the driver
// sees to it by moving the page. A session of a second device brings all of it back, for that one would reach the device's memory.
// For one session, the acting one; made where it is used. Any thread.
#pragma once

#include <chrono>
#include <cstdint>

#include "interposer/forward/memory/managed_memory.hpp"

namespace mpsshim::interposer::forward {

class ManagedResidence {
 public:
  explicit ManagedResidence(ManagedMemory& memory = ManagedMemory::instance()) : memory_(memory) {}

  // The program has advised of memory there, or prefetched it: whose preferred place is the host lives there until all of it is sent to the device,
  // where that can be now.
  void follow_advice(std::uint64_t address);
  // All that lives on the host, which nothing keeps there from now on. False: work under way, or a touch, is in the way for so long.
  [[nodiscard]] bool bring_back(std::chrono::milliseconds limit);
  // Kernels of the process may exclude the host by atomic operations, as they can in memory that migrates: what lives on the host does no longer.
  static void note_system_atomics();
  // Of what lives on the host and nothing uses. What the program has there goes up with the next work.
  static void move_to_device(ManagedAllocation& allocation);

 private:
  // The memory at the address is to live on the host or the device. False: work under way, or a touch, is in the way. An error that leaves it where
  // it is counts as done.
  [[nodiscard]] bool settle(std::uint64_t address, bool may_be_on_host);
  [[nodiscard]] bool settle_within(std::uint64_t address, bool may_be_on_host, std::chrono::milliseconds limit);
  void move_to_host(ManagedAllocation& allocation) REQUIRES(memory_.order_);
  [[nodiscard]] CUresult download(const ManagedAllocation& allocation) REQUIRES(memory_.order_);
  void open_all(ManagedAllocation& allocation) REQUIRES(memory_.order_);
  [[nodiscard]] static bool is_for_host(const ManagedAllocation& allocation);

  ManagedMemory& memory_;
};

}  // namespace mpsshim::interposer::forward
