// SPDX-License-Identifier: Apache-2.0
// Words of client memory that streams write and wait for: as checked_types.hpp has it, made by CheckedMemory alone, and not looked up or checked
// again. Values without a thread of their own. Host memory stays mapped here as long as work that names it is queued.
#pragma once

#include <cstdint>

#include "proto/shared_events.hpp"

namespace mpsshim::broker {

// A word of 4 or 8 bytes, aligned to its size.
class CheckedWord {
 public:
  [[nodiscard]] std::uint64_t address() const { return address_; }
  [[nodiscard]] std::uint32_t size_bytes() const { return size_bytes_; }
  // Memory that the executor has mapped at this address as well, and may look at itself.
  [[nodiscard]] bool is_host() const { return is_host_; }

 private:
  friend class CheckedMemory;
  CheckedWord(std::uint64_t address, std::uint32_t size_bytes, bool is_host) : address_(address), size_bytes_(size_bytes), is_host_(is_host) {}

  std::uint64_t address_;
  std::uint32_t size_bytes_;
  bool is_host_;
};

// A record of a shared event, whose slot lies in host memory that the executor has mapped.
class CheckedSharedRecord {
 public:
  [[nodiscard]] const proto::SharedEventSlot& slot() const { return *slot_; }
  [[nodiscard]] std::uint32_t number() const { return number_; }

 private:
  friend class CheckedMemory;
  CheckedSharedRecord(const proto::SharedEventSlot* slot, std::uint32_t number) : slot_(slot), number_(number) {}

  const proto::SharedEventSlot* slot_;
  std::uint32_t number_;
};

}  // namespace mpsshim::broker
