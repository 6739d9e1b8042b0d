// SPDX-License-Identifier: Apache-2.0
// The executor's decoder on hostile input: the bytes are a ring's contents, read by RingConsumer, dispatched, and issued to a FakeDriver.
// Sequence numbers are filled in, or nothing behind the first record would ever be reached. Whatever comes, no copy or fill may leave the
// session's memory. Jobs for helpers and quiet windows are queued and never run: what they do is not decoding.
#include <cstring>
#include <memory>

#include "broker/log.hpp"
#include "tests/fuzz/support/fuzz_target.hpp"
#include "tests/wire/support/wire_fixture.hpp"

using namespace mpsshim;
using namespace mpsshim::fuzz;

namespace {

constexpr std::uint64_t kChunkBytes = 2u << 20;
constexpr unsigned kInputsPerExecutor = 24;  // queued jobs hold their sessions and streams; a new executor lets them go
constexpr std::uint16_t kFirstRecord = 0x8001;
constexpr std::uint16_t kLastRecord = static_cast<std::uint16_t>(proto::RecordId::LeaseEnd);
constexpr std::uint64_t kFirstChunk = test::kDeviceLease;  // where the session's chunk lies

std::unique_ptr<test::WireExecutor> executor;
unsigned inputs = 0;
std::uint64_t records = 0;
std::vector<std::byte> batch(64 * 1024);

void number_records(std::vector<std::byte>& bytes, std::uint32_t sequence) {
  for (std::size_t at = 0; at + sizeof(proto::RecordHeader) <= bytes.size();) {
    proto::RecordHeader header;
    std::memcpy(&header, bytes.data() + at, sizeof header);
    header.sequence = ++sequence;
    std::memcpy(bytes.data() + at, &header, sizeof header);
    if (header.size_bytes < sizeof header || header.size_bytes % proto::kRecordAlignment != 0 || header.size_bytes > bytes.size() - at) return;
    at += header.size_bytes;
  }
}

// A chunk that was released since is still mapped (jobs do not run), and no longer the session's: then its lease is all that can be asked for.
void check_driver_calls(const broker::MemoryMap& memory) {
  const bool has_released = memory.is_releasing();
  const auto is_own = [&](std::uint64_t address, std::uint64_t bytes) {
    const bool is_leased = address >= test::kDeviceLease && address < test::kDeviceLease + test::kLeaseBytes;
    return memory.owns_device(address, bytes) || (has_released && is_leased);
  };
  for (const test::FakeCall& call : executor->fake.calls()) {
    const bool is_copy = call.kind == test::FakeCall::copy;
    require(!is_copy || (is_own(call.destination, call.bytes_or_value) && is_own(call.source, call.bytes_or_value)),
            "a copy leaves the session's memory");
    require(call.kind != test::FakeCall::fill || is_own(call.destination, 1), "a fill leaves the session's memory");
  }
  executor->fake.forget_calls();
}

// As a worker's visit, but record by record, so that each that was looked at is counted.
void visit(test::WireClient& client) {
  broker::Session& session = client.session();
  if (session.may_read() && session.channel().ring().has_records()) {
    const proto::RingConsumer::Batch read = session.channel().ring().copy_out(batch);
    for (std::span<const std::byte> left(batch.data(), read.bytes); !left.empty() && session.is_reading(); ++records) {
      proto::RecordHeader header;
      std::memcpy(&header, left.data(), sizeof header);
      broker::dispatch_batch(session, left.first(header.size_bytes));
      left = left.subspan(header.size_bytes);
    }
    if (read.fault != proto::RingFault::none) {
      session.fail("the ring", proto::to_string(read.fault));
      ++records;
    }
  }
  (void)client.turn();  // nothing is left in the ring but what a full session has not read
}

// --- inputs as a correct client writes them, nearly ---

template <typename Record>
void add(Input& input, Random& random, const Record& record, proto::StreamId stream, std::size_t trailing_bytes = 0) {
  proto::RecordHeader header{
      proto::record_size(Record::kBodyBytes, trailing_bytes),
      static_cast<std::uint16_t>(Record::kId),
      Record::kIsCall ? static_cast<std::uint16_t>(random() % 64 == 0 ? random() % proto::kReplySlots : random() % 4) : proto::kNoReplySlot,
      0,
      static_cast<std::uint32_t>(trailing_bytes),
      stream};
  append(input, header);
  const std::size_t end = input.size() + header.size_bytes - sizeof header;
  if constexpr (Record::kBodyBytes > 0) append(input, record);
  while (input.size() < end) input.push_back(static_cast<std::uint8_t>(random() % 8));
}

std::uint64_t some_size(Random& random) { return random() % 8 == 0 ? random() : random() % (kChunkBytes + 4096); }
std::uint64_t some_address(Random& random) { return kFirstChunk + (random() % 8 == 0 ? random() : random() % kChunkBytes); }

void add_random(Input& input, Random& random, proto::StreamId stream) {
  const auto event = proto::EventId::make(static_cast<std::uint32_t>(random() % 4), static_cast<std::uint32_t>(1 + random() % 2));
  const auto module = proto::ModuleId::make(static_cast<std::uint32_t>(random() % 3), 1);
  const auto function = proto::FunctionId::make(static_cast<std::uint32_t>(random() % 16 == 0), 1);
  switch (kFirstRecord + random() % (kLastRecord - kFirstRecord + 1)) {
    case 0x8001:
      return add(input, random, proto::StreamCreateRecord{static_cast<std::uint32_t>(random() % 2), 0},
                 proto::StreamId::make(static_cast<std::uint32_t>(random() % 1024), 1));
    case 0x8002:
      return add(input, random, proto::StreamDestroyRecord{}, stream.index() == 0 ? proto::StreamId::make(random() % 64 == 0 ? 0 : 7, 1) : stream);
    case 0x8003:
      return add(
          input, random,
          proto::EventCreateRecord{proto::EventId::make(static_cast<std::uint32_t>(random() % 8192), 1), static_cast<std::uint32_t>(random() % 4), 0},
          {});
    case 0x8004: return add(input, random, proto::EventDestroyRecord{event}, {});
    case 0x8005: return add(input, random, proto::EventRecordRecord{event, static_cast<std::uint32_t>(random()), 0}, stream);
    case 0x8006: return add(input, random, proto::StreamWaitEventRecord{event, 0, 0}, stream);
    case 0x8007: return add(input, random, proto::FenceRecord{static_cast<std::uint32_t>(random()), 0}, stream);
    case 0x8008: {
      proto::LaunchRecord launch{};
      launch.function = function;
      launch.grid_x = launch.grid_y = launch.grid_z = launch.block_x = launch.block_y = launch.block_z = 1;
      launch.parameter_bytes = 16;
      launch.attribute_count = random() % 8 == 0 ? static_cast<std::uint32_t>(random() % 4) : 0;
      return add(input, random, launch, stream, 16 + launch.attribute_count * 64);
    }
    case 0x8009: {
      proto::CopyRecord copy{};
      copy.destination = some_address(random);
      copy.source = some_address(random);
      copy.size_bytes = some_size(random) / 2;
      copy.destination_space = static_cast<std::uint8_t>(random() % 16 == 0 ? random() % 4 : 0);
      copy.source_space = static_cast<std::uint8_t>(random() % 16 == 0 ? random() % 4 : 0);
      copy.flags = static_cast<std::uint16_t>(random() % 2);
      return add(input, random, copy, stream);
    }
    case 0x800a:
      return add(input, random,
                 proto::FillRecord{some_address(random), some_size(random), some_size(random) / 16, 1 + random() % 3, 7, 1u << random() % 3}, stream);
    case 0x800b: return add(input, random, proto::ChunkCreateRecord{random() % 4 == 0 ? random() : kChunkBytes}, {});
    case 0x800c:
      return add(input, random, proto::ChunkReleaseRecord{random() % 2 == 0 ? random() : kFirstChunk + kChunkBytes * (1 + random() % 8)}, {});
    case 0x800d: return add(input, random, proto::SegmentMapRecord{random() % 8, 0, 0}, {});
    case 0x800e: return add(input, random, proto::SegmentUnmapRecord{random() % 8}, {});
    case 0x800f: return add(input, random, proto::ModuleLoadRecord{module, random() % 8, 0, 0}, {});
    case 0x8010: return add(input, random, proto::ModuleUnloadRecord{module}, {});
    case 0x8011: return add(input, random, proto::FunctionLookupRecord{module, function}, {}, random() % 40);
    case 0x8012: return add(input, random, proto::FunctionListRecord{module, static_cast<std::uint32_t>(random() % 100), 0}, {});
    case 0x8013: return add(input, random, proto::GlobalLookupRecord{module}, {}, random() % 40);
    case 0x8014:
      return add(input, random,
                 proto::FunctionSetAttributeRecord{function, static_cast<std::int32_t>(random() % 16), static_cast<std::int32_t>(random() % 100'000)},
                 {});
    case 0x8015: return add(input, random, proto::EventElapsedRecord{event, event}, {});
    case 0x8016: return add(input, random, proto::MemoryInfoRecord{}, {});
    case 0x8017: return add(input, random, proto::OccupancyRecord{function, static_cast<std::uint32_t>(random() % 3), 32, 0, 0, 1}, {});
    case 0x8018: return add(input, random, proto::ReleaseRecord{}, {});
    case 0x801b: return add(input, random, proto::LeaseUseRecord{random()}, {});
    case 0x801c: return add(input, random, proto::LeaseEndRecord{random() % 2 == 0 ? random() : kFirstChunk}, {});
    default: return add(input, random, proto::FenceRecord{1, 0}, stream);
  }
}

}  // namespace

// A session with work still queued holds itself. A real executor takes its sessions down or ends by exit; the one here just goes.
extern "C" __attribute__((visibility("default"), used)) const char* __asan_default_options() { return "detect_leaks=0"; }

namespace mpsshim::fuzz {

Input make_input(Random& random) {
  Input input;
  for (std::uint64_t count = 1 + random() % 2500; count > 0; --count) {
    add_random(input, random, proto::StreamId::make(static_cast<std::uint32_t>(random() % 3), 1));
  }
  return input;
}

std::uint64_t records_so_far() { return records; }
void finish() { executor.reset(); }

}  // namespace mpsshim::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (inputs++ % kInputsPerExecutor == 0) {
    (void)broker::open_log({.path = "", .identity = "Fuzz", .to_standard_error = false, .least = broker::LogLevel::error});
    executor.reset();
    executor = std::make_unique<test::WireExecutor>(0);
    executor->window->shut();
  }
  test::FakeFunction function{"f", {8, 4}};
  test::WireClient client(*executor);
  client.add_function(function);
  client.add_event(1);
  client.add_stream(1);
  client.add_stream(2, CU_STREAM_NON_BLOCKING);
  client.turn();
  (void)client.add_chunk(kChunkBytes);

  std::vector<std::byte> bytes(reinterpret_cast<const std::byte*>(data), reinterpret_cast<const std::byte*>(data) + size);
  number_records(bytes, client.sequence());
  client.write_ring(bytes);
  for (int i = 0; i < 4; ++i) visit(client);
  check_driver_calls(client.session().memory());
  client.session().fail("the input", "it is over");  // what waits would hold the session
  return 0;
}
