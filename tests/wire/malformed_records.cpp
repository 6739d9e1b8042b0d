// SPDX-License-Identifier: Apache-2.0
// What no correct client can send ends its session, and only its session.
#include "tests/support/catch.hpp"
#include "tests/wire/support/wire_fixture.hpp"

namespace mpsshim::test {
namespace {

using broker::Session;

proto::RecordHeader header_of(std::uint16_t id, std::size_t body, std::size_t trailing = 0) {
  return {proto::record_size(body, trailing), id, proto::kNoReplySlot, 0, static_cast<std::uint32_t>(trailing), proto::kNullStream};
}

template <typename Record>
proto::RecordHeader header_for(std::size_t body = Record::kBodyBytes, std::size_t trailing = 0) {
  return header_of(static_cast<std::uint16_t>(Record::kId), body, trailing);
}

struct Fixture {
  WireExecutor executor;
  WireClient client{executor};
  WireClient bystander{executor, 2};
  std::vector<std::byte> zeros = std::vector<std::byte>(256);

  std::span<const std::byte> some(std::size_t bytes) { return std::span(zeros).first(bytes); }
  void check_ended() {
    client.turn();
    CHECK(client.has_failed());
    CHECK(client.channel().header().session_error.load() == CUDA_ERROR_MPS_RPC_FAILURE);
    CHECK(executor.fake.calls(FakeCall::launch).empty());
    // Nothing is read any more, and the other session goes on.
    client.post_fence(7);
    client.turn();
    CHECK(client.fence() == 0);
    bystander.post_fence(1);
    bystander.turn();
    CHECK(bystander.fence() == 1);
    CHECK_FALSE(bystander.has_failed());
  }
};

}  // namespace

TEST_CASE("a record with an unknown id ends the session") {
  Fixture f;
  f.client.post_raw(header_of(0x7777, 0), {});
  f.check_ended();
}

// Every record: one byte of its structure missing, and a reply slot that does not fit its kind.
template <typename Record>
void check_record() {
  if constexpr (Record::kBodyBytes > 0) {
    Fixture f;
    proto::RecordHeader header = header_for<Record>(Record::kBodyBytes - 8);
    if (Record::kIsCall) header.reply_slot = 0;
    INFO("short " << static_cast<int>(Record::kId));
    f.client.post_raw(header, f.some(Record::kBodyBytes - 8));
    f.check_ended();
  }
  {
    Fixture f;
    proto::RecordHeader header = header_for<Record>();
    header.reply_slot = Record::kIsCall ? proto::kReplySlots : 0;
    INFO("slot " << static_cast<int>(Record::kId));
    f.client.post_raw(header, f.some(Record::kBodyBytes));
    f.check_ended();
  }
  if constexpr (!Record::kHasTrailing) {
    Fixture f;
    proto::RecordHeader header = header_for<Record>(Record::kBodyBytes, 8);
    if (Record::kIsCall) header.reply_slot = 0;
    INFO("trailing " << static_cast<int>(Record::kId));
    f.client.post_raw(header, f.some(Record::kBodyBytes), f.some(8));
    f.check_ended();
  }
}

TEST_CASE("a record that is short, has bytes it must not have, or the wrong reply slot ends the session") {
#define MPSSHIM_RECORD(enumerator, structure) check_record<proto::structure>();
#include "gen/record_names.inc"
#undef MPSSHIM_RECORD
}

TEST_CASE("a longer structure, as a later minor version may send, is accepted") {
  Fixture f;
  struct Longer {
    proto::FenceRecord known{5, 0};
    std::uint64_t unknown = ~0ull;
  } record;
  f.client.post_raw(header_for<proto::FenceRecord>(sizeof record), std::as_bytes(std::span(&record, 1)));
  f.client.turn();
  CHECK_FALSE(f.client.has_failed());
  CHECK(f.client.fence() == 5);
}

TEST_CASE("trailing bytes that exceed the record end the session") {
  Fixture f;
  proto::RecordHeader header = header_for<proto::LaunchRecord>(proto::LaunchRecord::kBodyBytes, 8);
  header.trailing_bytes = 4096;
  f.client.post_raw(header, f.some(proto::LaunchRecord::kBodyBytes), f.some(8));
  f.check_ended();
}

TEST_CASE("a sequence gap ends the session") {
  Fixture f;
  proto::RecordHeader header = header_for<proto::FenceRecord>();
  header.sequence = 99;
  f.client.post_raw(header, f.some(8), {}, true);
  f.check_ended();
}

TEST_CASE("a size beyond what was written, beyond a record's limit, or unaligned ends the session") {
  const auto size = GENERATE(std::uint32_t{8}, std::uint32_t{33}, std::uint32_t{4096}, std::uint32_t{proto::kMaxRecordBytes + 8}, 0xffff'fff8u);
  Fixture f;
  proto::RecordHeader header = header_for<proto::FenceRecord>();
  header.size_bytes = size;
  f.client.post_raw(header, f.some(8));
  f.check_ended();
}

TEST_CASE("a tail beyond the ring ends the session") {
  Fixture f;
  f.client.channel().header().tail.store(proto::kRingBytes + 8);
  f.check_ended();
}

TEST_CASE("an id of another kind ends the session") {
  Fixture f;
  const auto forged = [](proto::HandleKind kind) { return (static_cast<std::uint64_t>(kind) << 56) | (1ull << 32); };
  SECTION("a stream") { f.client.post(proto::FenceRecord{1, 0}, proto::StreamId{forged(proto::HandleKind::event)}); }
  SECTION("an event to record") { f.client.post(proto::EventRecordRecord{{forged(proto::HandleKind::stream)}, 1, 0}); }
  SECTION("an event to wait for") { f.client.post(proto::StreamWaitEventRecord{{forged(proto::HandleKind::module)}, 0, 0}); }
  SECTION("an event to make") { f.client.post(proto::EventCreateRecord{{forged(proto::HandleKind::module)}, 0, 0}); }
  SECTION("an event to end") { f.client.post(proto::EventDestroyRecord{{0}}); }
  SECTION("a function") {
    proto::LaunchRecord launch{};
    launch.function.value = forged(proto::HandleKind::kernel);
    f.client.post(launch);
  }
  SECTION("a module to unload") { f.client.post(proto::ModuleUnloadRecord{{forged(proto::HandleKind::event)}}); }
  SECTION("a module to load") { f.client.call(proto::ModuleLoadRecord{{forged(proto::HandleKind::event)}, 1, false, {}}); }
  SECTION("generation 0") { f.client.post(proto::FenceRecord{1, 0}, proto::StreamId{static_cast<std::uint64_t>(proto::HandleKind::stream) << 56}); }
  f.check_ended();
}

TEST_CASE("ids in use and ids out of range end the session") {
  Fixture f;
  SECTION("a stream twice") {
    f.client.add_stream(3);
    f.client.add_stream(3);
  }
  SECTION("a stream without a fence word") { f.client.add_stream(proto::kFenceWords); }
  SECTION("an event twice") {
    f.client.add_event(3);
    f.client.add_event(3);
  }
  SECTION("an event beyond the table") { f.client.add_event(0xffff'ffff); }
  SECTION("the NULL stream destroyed") { f.client.post(proto::StreamDestroyRecord{}); }
  f.check_ended();
}

TEST_CASE("lengths inside a launch are checked") {
  Fixture f;
  FakeFunction function{"f", {8, 8}};
  proto::LaunchRecord launch{};
  launch.function = f.client.add_function(function);
  launch.parameter_bytes = 16;
  SECTION("parameters longer than the record") { f.client.post(launch, proto::kNullStream, f.some(8)); }
  SECTION("parameters shorter than the function's") {
    launch.parameter_bytes = 8;
    f.client.post(launch, proto::kNullStream, f.some(8));
  }
  SECTION("parameters whose padding overflows") {
    launch.parameter_bytes = 0xffff'ffff;
    f.client.post(launch, proto::kNullStream, f.some(16));
  }
  SECTION("attributes longer than the record") {
    launch.attribute_count = 1;
    f.client.post(launch, proto::kNullStream, f.some(16 + sizeof(CUlaunchAttribute) - 8));
  }
  SECTION("more attributes than exist") {
    launch.attribute_count = 0x1000'0000;
    f.client.post(launch, proto::kNullStream, f.some(16));
  }
  f.check_ended();
}

namespace {

struct Range {
  proto::RecordId record;
  const char* field;
  std::size_t offset, size;
  std::uint64_t good;
  std::vector<std::uint64_t> bad;
};

// gen/ranges.inc follows from proto/spec: what a new enum, flag or limit lets through no field can have.
std::vector<Range> all_ranges() {
  std::vector<Range> ranges;
#define MPSSHIM_VALUES(...) \
  { __VA_ARGS__ }
#define MPSSHIM_RANGE(structure, name, value, others) \
  ranges.push_back({proto::structure::kId, #name, offsetof(proto::structure, name), sizeof(proto::structure::name), value, MPSSHIM_VALUES others});
#include "gen/ranges.inc"
#undef MPSSHIM_RANGE
#undef MPSSHIM_VALUES
  return ranges;
}

template <typename Record>
void check_ranges() {
  std::vector<std::byte> body(Record::kBodyBytes);
  const auto put = [&](const Range& range, std::uint64_t value) { std::memcpy(body.data() + range.offset, &value, range.size); };
  std::vector<Range> own = all_ranges();
  std::erase_if(own, [](const Range& range) { return range.record != Record::kId; });
  for (const Range& range : own) put(range, range.good);
  const auto out_of_range = [&] {
    Record record{};
    if (!body.empty()) std::memcpy(static_cast<void*>(&record), body.data(), std::min(body.size(), sizeof record));
    return record.out_of_range();
  };
  CHECK(out_of_range() == nullptr);
  for (const Range& range : own) {
    for (const std::uint64_t value : range.bad) {
      INFO(static_cast<int>(Record::kId) << " " << range.field << " " << value);
      put(range, value);
      REQUIRE(out_of_range() != nullptr);
      CHECK(out_of_range() == std::string_view(range.field));
      Fixture f;
      proto::RecordHeader header = header_for<Record>();
      if (Record::kIsCall) header.reply_slot = 0;
      f.client.post_raw(header, body);
      f.check_ended();
    }
    put(range, range.good);
  }
}

}  // namespace

TEST_CASE("a field with a number that it cannot have ends the session") {
#define MPSSHIM_RECORD(enumerator, structure) check_ranges<proto::structure>();
#include "gen/record_names.inc"
#undef MPSSHIM_RECORD
  CHECK(all_ranges().size() > 30);
}

TEST_CASE("records before the bad one are done, those behind it are not") {
  Fixture f;
  f.client.post_fence(1);
  f.client.turn();
  f.client.post_raw(header_of(0x7777, 0), {});
  f.client.post_fence(2);
  f.client.turn();
  CHECK(f.client.has_failed());
  CHECK(f.client.fence() == 1);
}

}  // namespace mpsshim::test
