// SPDX-License-Identifier: Apache-2.0
// Static partitions of the devices' multiprocessors (`mpsctl sm_partition`, mpsbroker --static-partitioning; docs/execution.md). Each has chunks of
// its device that no other has: what the driver makes green contexts of (proto::partition_unit). One of each device may have what whole chunks leave
// over, too. A partition is there, at the same chunks, until a
// command takes it away; its number is never another one's. Who uses which is the sessions' (ClientSession::sm_partition). Owned by SessionManager;
// the control process's thread.
#pragma once

#include <bit>
#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "broker/control/base/handover.hpp"
#include "proto/device_facts.hpp"
#include "proto/sm_partition.hpp"

namespace mpsshim::broker::control {

struct SmPartition {
  unsigned device = 0;
  std::uint64_t chunks = 0;  // a bit each, and kRemainderBit
  std::string name;          // of those that were made with one (`sm-partition create`); else empty
  // Whole chunks.
  [[nodiscard]] unsigned count() const { return static_cast<unsigned>(std::popcount(chunks & ~proto::kRemainderBit)); }
  [[nodiscard]] bool has_remainder() const { return (chunks & proto::kRemainderBit) != 0; }
};

class SmPartitions {
 public:
  using Map = std::map<std::uint32_t, SmPartition>;  // by number

  // What an executor has found out: in how many chunks each device is cut; 0: nothing.
  void learn(std::span<const std::uint32_t> chunks);
  [[nodiscard]] unsigned chunks_of(unsigned device) const { return device < proto::kMaxDevices ? chunks_[device] : 0; }  // 0: not known, or none
  [[nodiscard]] std::uint64_t free_chunks(unsigned device) const;

  [[nodiscard]] const Map& all() const { return all_; }
  [[nodiscard]] const SmPartition* find(unsigned device, std::uint32_t number) const;  // nullptr: there is none
  // By "P0000001", or by its name. 0: there is none.
  [[nodiscard]] std::uint32_t number_of(unsigned device, const std::string& word) const;
  // Multiprocessors of a device that whole chunks leave over, and of a partition of it.
  [[nodiscard]] std::uint32_t remainder_of(unsigned device, const proto::DeviceFacts& facts) const;
  [[nodiscard]] std::uint32_t multiprocessors_of(const SmPartition& partition, const proto::DeviceFacts& facts) const;
  // Whose partition has what the device's whole chunks leave over. nullptr: nobody's.
  [[nodiscard]] const SmPartition* holder_of_remainder(unsigned device) const;
  // Its number. 0: so many chunks are not free, or the remainder is not.
  [[nodiscard]] std::uint32_t add(unsigned device, unsigned count, bool with_remainder, const std::string& name);
  void erase(std::uint32_t number) { all_.erase(number); }

  void save(StateWriter& state) const;
  void restore(StateReader& state);

 private:
  Map all_;
  unsigned chunks_[proto::kMaxDevices] = {};
  std::uint32_t last_ = 0;
};

// Which of the free chunks so many are to be: neighbours where there are such, in the smallest hole, since neighbours share a cluster of
// multiprocessors on most devices; else the first ones. 0: there are not so many.
[[nodiscard]] std::uint64_t choose_chunks(std::uint64_t free, unsigned count);

}  // namespace mpsshim::broker::control
