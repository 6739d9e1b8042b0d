// SPDX-License-Identifier: Apache-2.0
#include "broker/control/sessions/sm_partitions.hpp"

#include <algorithm>
#include <bit>
#include <iterator>

#include <cuda.h>

#include "proto/provision.hpp"

namespace mpsshim::broker::control {

std::uint64_t choose_chunks(std::uint64_t free, unsigned count) {
  if (count == 0 || count > static_cast<unsigned>(std::popcount(free))) return 0;
  std::uint64_t best = 0;
  unsigned best_length = proto::kMostChunks + 1;
  for (unsigned begin = 0; begin < proto::kMostChunks;) {
    const auto length = static_cast<unsigned>(std::countr_one(free >> begin));
    if (length >= count && length < best_length) {
      best = proto::first_chunks(count) << begin;
      best_length = length;
    }
    begin += length + 1;
  }
  for (std::uint64_t left = free; best_length > proto::kMostChunks && count > 0; left &= left - 1, --count) best |= left & -left;
  return best;
}

void SmPartitions::learn(std::span<const std::uint32_t> chunks) {
  for (std::size_t device = 0; device < std::min(chunks.size(), std::size(chunks_)); ++device) {
    if (chunks[device] != 0) chunks_[device] = std::min(chunks[device], proto::kMostChunks);
  }
}

std::uint64_t SmPartitions::free_chunks(unsigned device) const {
  std::uint64_t free = proto::first_chunks(chunks_of(device));
  for (const auto& [number, partition] : all_) free &= partition.device == device ? ~partition.chunks : UINT64_MAX;
  return free;
}

const SmPartition* SmPartitions::find(unsigned device, std::uint32_t number) const {
  const auto found = all_.find(number);
  return found != all_.end() && found->second.device == device ? &found->second : nullptr;
}

std::uint32_t SmPartitions::number_of(unsigned device, const std::string& word) const {
  for (const auto& [number, partition] : all_) {
    const bool is_meant = proto::parse_partition(word) == number || (!partition.name.empty() && partition.name == word);
    if (is_meant && partition.device == device) return number;
  }
  return 0;
}

std::uint32_t SmPartitions::remainder_of(unsigned device, const proto::DeviceFacts& facts) const {
  const auto all = static_cast<std::uint32_t>(std::max(facts.attribute[CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT], 0));
  const std::uint32_t in_chunks = chunks_of(device) * proto::partition_unit(facts.attribute[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR]);
  return all - std::min(all, in_chunks);
}

std::uint32_t SmPartitions::multiprocessors_of(const SmPartition& partition, const proto::DeviceFacts& facts) const {
  const std::uint32_t unit = proto::partition_unit(facts.attribute[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR]);
  return partition.count() * unit + (partition.has_remainder() ? remainder_of(partition.device, facts) : 0);
}

const SmPartition* SmPartitions::holder_of_remainder(unsigned device) const {
  const auto holds = [&](const auto& entry) { return entry.second.device == device && entry.second.has_remainder(); };
  const auto found = std::ranges::find_if(all_, holds);
  return found != all_.end() ? &found->second : nullptr;
}

std::uint32_t SmPartitions::add(unsigned device, unsigned count, bool with_remainder, const std::string& name) {
  const std::uint64_t chunks = choose_chunks(free_chunks(device), count);
  if (chunks == 0 || (with_remainder && holder_of_remainder(device) != nullptr)) return 0;
  all_.emplace(++last_, SmPartition{device, chunks | (with_remainder ? proto::kRemainderBit : 0), name});
  return last_;
}

void SmPartitions::save(StateWriter& state) const {
  state.number(last_);
  for (const unsigned chunks : chunks_) state.number(chunks);
  state.number(all_.size());
  for (const auto& [number, partition] : all_) {
    state.number(number);
    state.number(partition.device);
    state.number(partition.chunks);
    state.text(partition.name);
  }
}

void SmPartitions::restore(StateReader& state) {
  last_ = static_cast<std::uint32_t>(state.number());
  for (unsigned& chunks : chunks_) chunks = std::min(static_cast<unsigned>(state.number()), proto::kMostChunks);
  for (std::uint64_t left = state.number(); left > 0 && state.ok(); --left) {
    const auto number = static_cast<std::uint32_t>(state.number());
    SmPartition partition;
    partition.device = static_cast<unsigned>(state.number());
    partition.chunks = state.number();
    partition.name = state.text();
    const std::uint64_t free = free_chunks(partition.device) | (holder_of_remainder(partition.device) == nullptr ? proto::kRemainderBit : 0);
    const bool is_one = number != 0 && number <= last_ && (partition.chunks & ~free) == 0 && partition.count() != 0;
    if (!is_one || !all_.emplace(number, partition).second) state.fail();
  }
}

}  // namespace mpsshim::broker::control
