// SPDX-License-Identifier: Apache-2.0
// The answer to the CUDA runtime's self-test of runtime and driver (table INTEGRITY_CHECK): a keyed digest over what both know about the
// process. A runtime that gets another answer returns cudaErrorSoftwareValidityNotEstablished from everything, so standing in for the driver
// means giving it. docs/undocumented-tables.md says what this is and is not.
#pragma once

#include <cstdint>
#include <span>

#include "interposer/local/md2.hpp"
#include "proto/device_facts.hpp"

namespace mpsshim::interposer {

struct IntegrityDevice {
  std::uint8_t uuid[16];
  std::int32_t pci_domain;
  std::int32_t pci_bus;
  std::int32_t pci_device;
};
static_assert(sizeof(IntegrityDevice) == 28);

// What goes into the digest, in this order, without padding; the devices follow.
struct IntegrityQuestion {
  std::uint32_t driver_version;
  std::uint32_t version;        // the runtime's own, plus 0, 1 or 2
  std::uint32_t process;        // getpid()
  std::uint32_t thread;         // low half of pthread_self()
  std::uint64_t runtime_table;  // addresses the asker has been given
  std::uint64_t integrity_table;
  std::uint64_t integrity_function;
  std::uint64_t unix_seconds;
};
static_assert(sizeof(IntegrityQuestion) == 48);

[[nodiscard]] Md2Digest integrity_answer(const IntegrityQuestion& question, std::span<const IntegrityDevice> devices);

}  // namespace mpsshim::interposer
