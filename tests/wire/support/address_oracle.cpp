// SPDX-License-Identifier: Apache-2.0
#include "tests/wire/support/address_oracle.hpp"

#include <algorithm>
#include <utility>

#include "broker/executor/base/scoped_call.hpp"
#include "broker/progress_table.hpp"
#include "proto/channel.hpp"
#include "tests/wire/support/address_numbers.hpp"
#include "tests/wire/support/fake_driver.hpp"

namespace mpsshim::test {

namespace {

template <auto Member, typename Type = decltype(Member)>
struct Guard;

template <auto Member, typename... Parameters>
struct Guard<Member, CUresult (CUDAAPI* DriverTable::*)(Parameters...)> {
  static inline CUresult(CUDAAPI* next)(Parameters...) = nullptr;
  static CUresult CUDAAPI call(Parameters... parameters) {
    FakeDriver::current().oracle.ask<Member>(parameters...);
    return next != nullptr ? next(parameters...) : CUDA_ERROR_NOT_SUPPORTED;
  }
};

}  // namespace

void guard_addresses(DriverTable& table) {
  for_each_address_row([&]<auto Member> {
    Guard<Member>::next = table.*Member;
    table.*Member = Guard<Member>::call;
  });
}

void AddressOracle::note_mapped(std::uint64_t address, std::uint64_t size_bytes) {
  const std::lock_guard lock(mutex_);
  mapped_[address] = size_bytes;
}

void AddressOracle::note_unmapped(std::uint64_t address) {
  const std::lock_guard lock(mutex_);
  mapped_.erase(address);
}

void AddressOracle::note_registered(std::uint64_t address, std::uint64_t size_bytes) {
  const std::lock_guard lock(mutex_);
  registered_[address] = size_bytes;
}

void AddressOracle::note_unregistered(std::uint64_t address) {
  const std::lock_guard lock(mutex_);
  registered_.erase(address);
  given_.erase(address);
}

void AddressOracle::note_array(CUarray array, const CUDA_ARRAY3D_DESCRIPTOR& descriptor) {
  const std::lock_guard lock(mutex_);
  arrays_[number(array)] = descriptor;
}

void AddressOracle::note_mipmapped(CUmipmappedArray array) {
  const std::lock_guard lock(mutex_);
  mipmapped_.insert(number(array));
}

void AddressOracle::note_array_gone(std::uint64_t array) {
  const std::lock_guard lock(mutex_);
  arrays_.erase(array);
  mipmapped_.erase(array);
}

void AddressOracle::give(std::uint64_t address, std::uint64_t session) {
  const std::lock_guard lock(mutex_);
  given_[address] = session;
}

void AddressOracle::give_variable(std::uint64_t address, std::uint64_t size_bytes, std::uint64_t session) {
  const std::lock_guard lock(mutex_);
  variables_[address] = {size_bytes, session};
}

void AddressOracle::take_variable(std::uint64_t address) {
  const std::lock_guard lock(mutex_);
  variables_.erase(address);
}

bool AddressOracle::has_variable(std::uint64_t address) {
  const std::lock_guard lock(mutex_);
  return variables_.contains(address);
}

void AddressOracle::give_file(int file, std::uint64_t session) {
  const std::lock_guard lock(mutex_);
  std::uint64_t size_bytes = 0;
  files_[inode_of(file, size_bytes)] = session;
}

void AddressOracle::note_imported(CUexternalMemory memory, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC& description) {
  const std::lock_guard lock(mutex_);
  std::uint64_t size_bytes = 0;
  const auto file = files_.find(inode_of(description.handle.fd, size_bytes));
  imported_[memory] = {description.size, file != files_.end() ? file->second : 0};
}

std::uint64_t AddressOracle::place_external(CUexternalMemory memory, std::uint64_t size_bytes) {
  const std::lock_guard lock(mutex_);
  if (!imported_.contains(memory)) return 0;
  std::uint64_t place = kExternalMemory;
  for (const auto& [address, piece] : external_) {
    if (size_bytes <= address - place) break;
    place = address + piece.size_bytes;
  }
  external_[place] = {size_bytes, memory};
  return place;
}

void AddressOracle::note_freed(std::uint64_t address) {
  const std::lock_guard lock(mutex_);
  external_.erase(address);
}

// Work under way would lose its memory.
void AddressOracle::note_destroyed(CUexternalMemory memory) {
  const std::lock_guard lock(mutex_);
  if (imported_.erase(memory) == 0) wrong("cuDestroyExternalMemory: extMem", "is no memory that was imported");
  for (const auto& [address, piece] : external_) {
    if (piece.memory == memory) wrong("cuDestroyExternalMemory: extMem", "has a buffer that is still mapped");
  }
}

void AddressOracle::forget(std::uint64_t session) {
  const std::lock_guard lock(mutex_);
  std::erase_if(mapped_, [&](const auto& piece) { return leaseholder(kDeviceLease, piece.first, piece.second) == session; });
  std::erase_if(registered_, [&](const auto& piece) { return leaseholder(kPinnedLease, piece.first, piece.second) == session; });
}

void AddressOracle::act_as(std::uint64_t session) {
  const std::lock_guard lock(mutex_);
  actor_ = session;
}

void AddressOracle::follow_marks() {
  const std::lock_guard lock(mutex_);
  follows_marks_ = true;
}

std::uint64_t AddressOracle::marked_session() {
  const broker::CallSlot* const slot = broker::detail::call_slot;
  return slot != nullptr ? broker::PublishedCall::from(slot->call.load(std::memory_order_relaxed)).session : 0;
}

void AddressOracle::report(const std::string& violation) {
  const std::lock_guard lock(mutex_);
  violations_.push_back(violation);
}

void AddressOracle::begin_at(const char* where, std::uint64_t address) {
  const std::lock_guard lock(mutex_);
  owner_ = 0;
  if (follows_marks_) actor_ = marked_session();
  check_bytes(where, address, 1);
}

std::uint64_t AddressOracle::registered_bytes(std::uint64_t address) {
  const std::lock_guard lock(mutex_);
  const auto piece = registered_.find(address);
  return piece != registered_.end() ? piece->second : 0;
}

std::uint64_t AddressOracle::buffer_bytes(std::uint64_t address) {
  const std::lock_guard lock(mutex_);
  const auto piece = external_.find(address);
  return piece != external_.end() ? piece->second.size_bytes : 0;
}

std::string AddressOracle::what_is_left(std::uint64_t but_of) {
  const std::lock_guard lock(mutex_);
  const auto is_leased = [&](const auto& piece) {
    const auto& [address, size_bytes] = piece;
    return touches_leases(address, size_bytes) && leaseholder(kDeviceLease, address, size_bytes) != but_of &&
           leaseholder(kPinnedLease, address, size_bytes) != but_of;
  };
  if (std::ranges::any_of(mapped_, is_leased)) return "device memory is left";
  if (std::ranges::any_of(registered_, is_leased) || !given_.empty()) return "registered memory is left";
  if (!external_.empty() || !imported_.empty()) return "external memory is left";
  if (!arrays_.empty() || !mipmapped_.empty()) return "arrays are left";
  return variables_.empty() ? "" : "a module's variable is left";
}

std::vector<std::string> AddressOracle::take_violations() {
  const std::lock_guard lock(mutex_);
  return std::exchange(violations_, {});
}

}  // namespace mpsshim::test
