// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/management.hpp"

#include "interposer/cancellation.hpp"
#include "interposer/forward/begin.hpp"
#include "interposer/forward/memory/memory_info.hpp"
#include "interposer/local/acting_session.hpp"
#include "interposer/local/devices.hpp"
#include "interposer/settle.hpp"

namespace mpsshim::interposer::forward {

namespace {

bool is_client() {
  switch (settle()) {
    case ProcessState::attached:
    case ProcessState::ready:
    case ProcessState::ready_traced: return true;
    case ProcessState::undecided:
    case ProcessState::pass_through:
    case ProcessState::no_driver:
    case ProcessState::refused:
    case ProcessState::forked: return false;
  }
  return false;
}

const proto::DriverFacts* facts() {
  const NoCancellation hold;
  try {
    return is_client() ? &driver_facts() : nullptr;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

// Of the broker's device; -1: this process does not see it, or does not work on it.
CUdevice worked_on(std::uint32_t broker_device) {
  for (CUdevice device = 0; device < device_count(); ++device) {
    if (broker_ordinal(device) == broker_device) return has_session(device) ? device : -1;
  }
  return -1;
}

// No session is opened for a question. Errors stay where the program's next call of CUDA finds them.
bool memory(std::uint32_t device, std::uint64_t* free_bytes, std::uint64_t* total_bytes) {
  const NoCancellation hold;
  try {
    if (!is_client() || !is_initialised()) return false;
    const CUdevice own = worked_on(device);
    if (own < 0) return false;
    const ActingSession acting(session_of(own));
    if (!session().is_attached() || session().ensure_attached() != CUDA_SUCCESS) return false;
    const MemoryInfo info = read_memory_info();
    *free_bytes = info.free_bytes;
    *total_bytes = info.total_bytes;
    return info.error == CUDA_SUCCESS;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

std::uint64_t asked_limit_bytes(std::uint32_t device) {
  const NoCancellation hold;
  try {
    return is_client() ? std::uint64_t{asked_memory_limit_mib(device)} << 20 : 0;
  } catch (const std::bad_alloc&) {
    return 0;
  }
}

}  // namespace

const proto::ManagementTable& management_table() {
  static constexpr proto::ManagementTable kTable{sizeof(proto::ManagementTable), facts, memory, asked_limit_bytes};
  return kTable;
}

}  // namespace mpsshim::interposer::forward
