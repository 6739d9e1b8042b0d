// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "proto/ring_consumer.hpp"
#include "proto/ring_producer.hpp"
#include "proto/segment.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::proto;

namespace {

// A channel as client and executor see it, in one process.
struct Channel {
  FileDescriptor file = create_memory_file("ring test", kChannelBytes);
  Mapping page = Mapping::map(file, 0, kPageBytes, Access::read_write);
  Mapping ring = Mapping::map_twice(file, kRingOffset, kRingBytes, Access::read_write);
  ChannelHeader* header = reinterpret_cast<ChannelHeader*>(page.data());
  RingProducer producer{header, ring.data()};
  RingConsumer consumer{header, ring.data()};
  std::vector<std::byte> buffer = std::vector<std::byte>(2 * kMaxRecordBytes);

  // Writes one record with `trailing` bytes of value `fill`; false if there is no room.
  bool push(std::uint32_t trailing, std::uint8_t fill) {
    const std::uint32_t size = record_size(0, trailing);
    std::byte* at = producer.reserve(size);
    if (at == nullptr) return false;
    const RecordHeader record{size, 1, kNoReplySlot, producer.next_sequence(), trailing, kNullStream};
    std::memcpy(at, &record, sizeof record);
    std::memset(at + sizeof record, fill, trailing);
    (void)producer.publish(size);
    return true;
  }
  void push_raw(const RecordHeader& record) {
    std::byte* at = producer.reserve(64);
    REQUIRE(at != nullptr);
    std::memcpy(at, &record, sizeof record);
    (void)producer.publish(64);
  }
};

}  // namespace

TEST_CASE("records come out whole and in order, many times around the ring") {
  Channel channel;
  std::uint64_t sent = 0;
  std::uint64_t got = 0;
  std::uint32_t random = 1;
  while (got < 20'000) {
    while (sent < 20'000) {
      random = random * 1664525u + 1013904223u;
      if (!channel.push(random % 3'000, static_cast<std::uint8_t>(sent))) break;
      ++sent;
    }
    const RingConsumer::Batch batch = channel.consumer.copy_out(channel.buffer);
    REQUIRE(batch.fault == RingFault::none);
    std::size_t at = 0;
    for (std::uint32_t i = 0; i < batch.records; ++i) {
      RecordHeader record;
      std::memcpy(&record, channel.buffer.data() + at, sizeof record);
      REQUIRE(record.sequence == static_cast<std::uint32_t>(++got));
      for (std::uint32_t byte = 0; byte < record.trailing_bytes; ++byte) {
        if (channel.buffer[at + sizeof record + byte] != static_cast<std::byte>(got - 1)) FAIL("byte " << byte << " of record " << got);
      }
      at += record.size_bytes;
    }
    REQUIRE(at == batch.bytes);
  }
  CHECK_FALSE(channel.consumer.has_records());
}

TEST_CASE("a full ring refuses the record that does not fit and takes it after reading") {
  Channel channel;
  std::size_t bytes = 0;
  while (channel.push(1'000, 1)) bytes += record_size(0, 1'000);
  CHECK(bytes <= kRingBytes);
  CHECK(bytes + record_size(0, 1'000) > kRingBytes);
  REQUIRE(channel.consumer.copy_out(channel.buffer).records > 0);
  CHECK(channel.push(1'000, 1));
}

TEST_CASE("what a reader has not dealt with stays in the ring and is read again, as it is then") {
  Channel channel;
  for (std::uint8_t i = 1; i <= 3; ++i) REQUIRE(channel.push(8, i));
  const RingConsumer::Batch all = channel.consumer.peek(channel.buffer);
  REQUIRE(all.records == 3);
  CHECK(channel.header->head.load() == 0);
  channel.consumer.release(record_size(0, 8), 1);
  CHECK(channel.header->head.load() == record_size(0, 8));
  REQUIRE(channel.consumer.has_records());
  channel.ring.data()[record_size(0, 8) + sizeof(RecordHeader)] = std::byte{9};  // by the client
  const RingConsumer::Batch rest = channel.consumer.peek(channel.buffer);
  CHECK(rest.fault == RingFault::none);
  CHECK(rest.records == 2);
  CHECK(channel.buffer[sizeof(RecordHeader)] == std::byte{9});
  channel.consumer.release(rest.bytes, rest.records);
  CHECK_FALSE(channel.consumer.has_records());
  REQUIRE(channel.push(8, 4));
  CHECK(channel.consumer.copy_out(channel.buffer).fault == RingFault::none);
}

TEST_CASE("inconsistent records end the channel at that record") {
  Channel channel;
  REQUIRE(channel.push(8, 1));  // a good one first: it is still delivered
  RecordHeader record{64, 1, kNoReplySlot, channel.producer.next_sequence(), 8, kNullStream};
  RingFault expected = RingFault::none;
  SECTION("shorter than its header") { record.size_bytes = 16, expected = RingFault::size_out_of_range; }
  SECTION("longer than allowed") { record.size_bytes = kMaxRecordBytes + 8, expected = RingFault::size_out_of_range; }
  SECTION("size 2^32 - 1") { record.size_bytes = 0xffffffffu, expected = RingFault::size_out_of_range; }
  SECTION("unaligned") { record.size_bytes = 60, expected = RingFault::size_unaligned; }
  SECTION("more trailing bytes than size") { record.trailing_bytes = 41, expected = RingFault::trailing_too_long; }
  SECTION("trailing 2^32 - 1") { record.trailing_bytes = 0xffffffffu, expected = RingFault::trailing_too_long; }
  SECTION("sequence repeated") { record.sequence -= 1, expected = RingFault::sequence_gap; }
  SECTION("sequence skipped") { record.sequence += 1, expected = RingFault::sequence_gap; }
  SECTION("longer than what was published") { record.size_bytes = 128, expected = RingFault::tail_out_of_range; }
  channel.push_raw(record);
  const RingConsumer::Batch batch = channel.consumer.copy_out(channel.buffer);
  CHECK(batch.fault == expected);
  CHECK(batch.records == 1);
  CHECK(std::string(to_string(batch.fault)) != "unknown");
}

TEST_CASE("a forged tail is noticed") {
  Channel channel;
  SECTION("beyond the ring") { channel.header->tail.store(kRingBytes + 8); }
  SECTION("backwards") { channel.header->tail.store(~std::uint64_t{0}); }
  SECTION("not at a record's end") { channel.header->tail.store(8); }
  CHECK(channel.consumer.copy_out(channel.buffer).fault == RingFault::tail_out_of_range);
}

TEST_CASE("the consumer does not fall asleep over a record") {
  Channel channel;
  CHECK(channel.consumer.prepare_sleep());
  const std::uint32_t size = record_size(0, 0);
  std::byte* at = channel.producer.reserve(size);
  const RecordHeader record{size, 1, kNoReplySlot, 1, 0, kNullStream};
  std::memcpy(at, &record, sizeof record);
  CHECK(channel.producer.publish(size));  // it sleeps: the doorbell is due, once
  CHECK_FALSE(channel.consumer.prepare_sleep());
  CHECK(channel.consumer.copy_out(channel.buffer).records == 1);
}

TEST_CASE("producer and consumer in two threads lose nothing, with a full ring and sleeps between") {
  Channel channel;
  constexpr std::uint32_t kRecords = 60'000;
  std::thread consumer([&] {
    std::uint32_t got = 0;
    std::vector<std::byte> buffer(kMaxRecordBytes);
    while (got < kRecords) {
      const RingConsumer::Batch batch = channel.consumer.copy_out(buffer);
      if (batch.fault != RingFault::none && channel.consumer.has_records()) break;
      got += batch.records;
      if (batch.records == 0) std::this_thread::yield();
    }
    CHECK(got == kRecords);
  });
  for (std::uint32_t i = 0; i < kRecords; ++i) {
    while (!channel.push(i % 400, static_cast<std::uint8_t>(i))) channel.producer.wait_for_room(1'000);
  }
  consumer.join();
  CHECK(channel.producer.empty());
}

TEST_CASE("the oldest record that is still there is a record's beginning, and not half overwritten") {
  Channel channel;
  std::vector<std::uint64_t> begins;
  std::uint32_t random = 1;
  bool has_wrapped = false;
  for (int i = 0; i < 20'000; ++i) {
    random = random * 1664525u + 1013904223u;
    // Short ones, long ones, and the longest that there are, in spells.
    const std::uint32_t room = kMaxRecordBytes - static_cast<std::uint32_t>(sizeof(RecordHeader));
    const std::uint32_t trailing = i / 100 % 3 == 0 ? random % 300 : i / 100 % 3 == 1 ? random % room : room;
    begins.push_back(channel.producer.position());
    if (!channel.push(trailing, 0)) {
      begins.pop_back();
      while (channel.consumer.copy_out(channel.buffer).records != 0) {
      }
      continue;
    }
    const std::uint64_t oldest = channel.producer.oldest_record();
    REQUIRE(std::binary_search(begins.begin(), begins.end(), oldest));
    REQUIRE(channel.producer.position() + kMaxRecordBytes <= oldest + kRingBytes);
    // All but two blocks' worth of the ring is there to look back at.
    if (oldest == 0) continue;
    has_wrapped = true;
    REQUIRE(channel.producer.position() - oldest >= kRingBytes - 3 * std::uint64_t{kMaxRecordBytes});
  }
  CHECK(has_wrapped);
}
