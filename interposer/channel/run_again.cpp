// SPDX-License-Identifier: Apache-2.0
#include "interposer/channel/run_again.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>

#include <time.h>

#include "gen/records.hpp"
#include "interposer/channel/carry_over.hpp"

namespace mpsshim::interposer {

namespace {

using Clock = std::chrono::steady_clock;

// The driver takes 0.15 s to tell of most faults, 0.8 s at most to tell of a trap.
constexpr std::chrono::milliseconds kRunLimit{900};
constexpr std::uint64_t kLookUs = 200;

bool is_launch(const proto::RecordHeader& header) {
  return header.id == static_cast<std::uint16_t>(proto::RecordId::Launch) || header.id == static_cast<std::uint16_t>(proto::RecordId::GraphLaunch);
}

template <typename Record>
Record read(const std::byte* body) {
  Record record{};
  std::memcpy(&record, body, Record::kBodyBytes);
  return record;
}

// f(position, header, body) of each record that is still there and was read. Stops at what is none: the ring is this process's own, so nothing
// is lost by that but the trial.
template <typename F>
void for_each_read(Link& link, std::uint64_t consumed, F&& f) {
  for (std::uint64_t position = link.producer().oldest_record(); position < consumed;) {
    const std::byte* const at = link.ring_memory() + position % proto::kRingBytes;
    proto::RecordHeader header;
    std::memcpy(&header, at, sizeof header);
    if (header.size_bytes < sizeof header || header.size_bytes > consumed - position || header.size_bytes % proto::kRecordAlignment != 0) return;
    f(position, header, at + sizeof header);
    position += header.size_bytes;
  }
}

}  // namespace

std::vector<std::uint64_t> find_launches_in_flight(Link& old_link, std::uint64_t consumed, const FenceMemory& fences) {
  std::vector<std::uint64_t> ended(proto::kFenceWords);  // up to where each stream's work has
  for_each_read(old_link, consumed, [&](std::uint64_t position, const proto::RecordHeader& header, const std::byte* body) {
    const std::uint32_t index = header.stream.index() % proto::kFenceWords;
    if (const std::uint32_t value = fence_of(header, body); value != 0 && fences.reached(index, value)) ended[index] = position;
  });
  std::vector<std::uint64_t> launches;
  for_each_read(old_link, consumed, [&](std::uint64_t position, const proto::RecordHeader& header, const std::byte*) {
    if (is_launch(header) && position >= ended[header.stream.index() % proto::kFenceWords]) launches.push_back(position);
  });
  return launches;
}

NeededRecipes::NeededRecipes(const std::vector<std::uint64_t>& launches, const Link& old_link, const RecipeBook::Entries& recipes) {
  for (const std::uint64_t position : launches) {
    const std::byte* const at = old_link.ring_memory() + position % proto::kRingBytes;
    proto::RecordHeader header;
    std::memcpy(&header, at, sizeof header);
    are_all_ |= header.id != static_cast<std::uint16_t>(proto::RecordId::Launch);
    if (!are_all_) functions_.insert(read<proto::LaunchRecord>(at + sizeof header).function.value);
  }
  for (const auto& [key, recipe] : recipes) {
    if (recipe.id == proto::RecordId::FunctionBind) note_module<proto::FunctionBindRecord>(recipe);
    if (recipe.id == proto::RecordId::FunctionLookup) note_module<proto::FunctionLookupRecord>(recipe);
  }
  for (const auto& [key, recipe] : recipes) {
    if (recipe.id != proto::RecordId::ReferenceLookup) continue;
    const auto record = read<proto::ReferenceLookupRecord>(recipe.body.data());
    if (modules_.contains(record.module.value)) references_.insert(record.reference.value);
  }
}

bool NeededRecipes::contains(const Recipe& recipe) const {
  if (are_all_) return true;
  const std::byte* const body = recipe.body.data();
  switch (recipe.id) {
    case proto::RecordId::ModuleLoad: return modules_.contains(read<proto::ModuleLoadRecord>(body).module.value);
    case proto::RecordId::FunctionBind: return functions_.contains(read<proto::FunctionBindRecord>(body).function.value);
    case proto::RecordId::FunctionLookup: return functions_.contains(read<proto::FunctionLookupRecord>(body).function.value);
    case proto::RecordId::FunctionSetAttribute: return functions_.contains(read<proto::FunctionSetAttributeRecord>(body).function.value);
    case proto::RecordId::ReferenceLookup: return references_.contains(read<proto::ReferenceLookupRecord>(body).reference.value);
    case proto::RecordId::ReferenceSet: return references_.contains(read<proto::ReferenceSetRecord>(body).reference.value);
    case proto::RecordId::StreamCreate:
    case proto::RecordId::EventCreate:
    case proto::RecordId::GlobalLookup:
    case proto::RecordId::GraphNodes:
    case proto::RecordId::GraphInstantiate:
    case proto::RecordId::GraphSetNodes:
    case proto::RecordId::ConditionCreate:
    case proto::RecordId::GreenContextCreate:
    case proto::RecordId::GreenStreamCreate: return false;
    default: return true;  // memory, arrays: kernels have their addresses and handles
  }
}

template <typename Record>
void NeededRecipes::note_module(const Recipe& recipe) {
  const auto record = read<Record>(recipe.body.data());
  if (functions_.contains(record.function.value)) modules_.insert(record.module.value);
}

RunAgain run_again(const std::vector<std::uint64_t>& launches, Link& old_link, Link& next_link, const FenceMemory& fences, PeerWatch peer) {
  RunAgain run;
  proto::RingProducer& producer = next_link.producer();
  const auto post = [&](const std::byte* record, proto::RecordHeader header) {
    run.end = wait_for_room(next_link, header.size_bytes, peer);
    if (run.end != WaitEnd::ready) return false;
    std::byte* const at = producer.reserve(header.size_bytes);
    std::memcpy(at + sizeof header, record + sizeof header, header.size_bytes - sizeof header);
    header.sequence = producer.next_sequence();
    header.stream = proto::kNullStream;
    std::memcpy(at, &header, sizeof header);
    if (producer.publish(header.size_bytes)) next_link.wake_executor();
    return true;
  };
  const auto until = Clock::now() + kRunLimit;
  for (const std::uint64_t position : launches) {
    const std::byte* const record = old_link.ring_memory() + position % proto::kRingBytes;
    proto::RecordHeader header;
    std::memcpy(&header, record, sizeof header);
    if (!post(record, header)) return run;
    ++run.launches;
  }
  constexpr std::uint32_t kFence = 1;
  proto::FenceRecord fence{};
  fence.fence_value = kFence;
  std::array<std::byte, proto::record_size(proto::FenceRecord::kBodyBytes, 0)> record{};
  std::memcpy(record.data() + sizeof(proto::RecordHeader), &fence, proto::FenceRecord::kBodyBytes);
  if (!post(record.data(), {record.size(), static_cast<std::uint16_t>(proto::RecordId::Fence), proto::kNoReplySlot, 0, 0, proto::kNullStream}))
    return run;
  Wait wait("launches that are run again", next_link.header(), peer, WaitStyle::sleep);
  run.end = wait.until(
      [&] {
        run.has_ended = fences.reached(proto::kNullStream.index(), kFence);
        return run.has_ended || Clock::now() >= until;
      },
      [](std::uint64_t timeout_us) {
        const timespec pause{0, static_cast<long>(std::min(timeout_us, kLookUs) * 1000)};
        nanosleep(&pause, nullptr);
      });
  return run;
}

}  // namespace mpsshim::interposer
