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
  if (!post(record.data(), {record.size(), static_cast<std::uint16_t>(proto::RecordId::Fence), proto::kNoReplySlot, 0, 0, proto::kNullStream})) return run;
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
