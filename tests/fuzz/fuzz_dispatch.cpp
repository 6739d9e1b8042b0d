// SPDX-License-Identifier: Apache-2.0
// The executor's decoder on hostile input: the bytes are a ring's contents, read by RingConsumer, dispatched, and issued to a FakeDriver.
// Sequence numbers are filled in, or nothing behind the first record would ever be reached. Whatever comes, every address that the driver is given
// is the session's own (tests/wire/support/address_oracle.hpp), another client's memory lies beside it. Jobs for helpers and quiet windows are
// queued and never run: what they do is not decoding. Graphs are made all the same, since their nodes have addresses.
#include <cstring>
#include <memory>

#include "broker/executor/checked_calls.hpp"
#include "broker/executor/checked_memory.hpp"
#include "broker/log.hpp"
#include "tests/fuzz/support/fuzz_target.hpp"
#include "tests/wire/support/wire_fixture.hpp"

using namespace mpsshim;
using namespace mpsshim::fuzz;

namespace {

constexpr std::uint64_t kChunkBytes = 2u << 20;
constexpr unsigned kInputsPerExecutor = 24;  // queued jobs hold their sessions and streams; a new executor lets them go
constexpr std::uint16_t kFirstRecord = 0x8001;
constexpr std::uint16_t kLastRecord = static_cast<std::uint16_t>(proto::RecordId::LeaseEnd);  // of those that add_random() knows one by one
constexpr std::uint64_t kFirstChunk = test::kDeviceLease;                                     // where the session's chunk lies
constexpr std::uint64_t kForeignChunk = kFirstChunk + test::kLeaseBytes;
constexpr std::uint64_t kSegmentBytes = 64u << 10;   // of pinned and of staging memory
constexpr std::uint32_t kExecs = 3;                  // ids of executable graphs
constexpr std::uint64_t kExternalBytes = 64u << 10;  // of external memory, of which a buffer is mapped; the other client's lies before it
constexpr std::uint64_t kForeignBuffer = test::kExternalMemory;
constexpr std::uint64_t kBuffer = kForeignBuffer + kExternalBytes;
constexpr std::uint64_t kSession = 1;
constexpr std::uint64_t kVictim = 2;

std::unique_ptr<test::WireExecutor> executor;
std::unique_ptr<test::WireClient> victim;  // has memory, and does nothing
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

// Chunks that were released are still mapped (jobs do not run); they are no other session's.
void check_driver_calls() {
  for (const std::string& violation : executor->fake.oracle.take_violations()) require(false, violation.c_str());
  executor->fake.forget_calls();
}

// What a helper and a window do for graphs that are being made.
void make_graphs(broker::Session& session) {
  for (std::uint32_t i = 0; i < kExecs; ++i) {
    const broker::GraphSet::Entry* const entry = session.graphs().find(proto::GraphExecId::make(i, 1));
    if (entry == nullptr || !entry->graph->is_being_made() || entry->graph->conditioned() != nullptr) continue;
    std::uint32_t failed_node = 0;
    const bool is_made = entry->graph->build(failed_node) == CUDA_SUCCESS && entry->graph->instantiate(0) == CUDA_SUCCESS;
    entry->graph->set_state(is_made ? broker::SessionGraph::State::ready : broker::SessionGraph::State::failed);
  }
}

// What a helper does for external memory.
void map_external(broker::Session& session, const proto::RecordHeader& header, std::span<const std::byte> body) {
  const broker::CheckedMemory memory(session);
  if (header.id == static_cast<std::uint16_t>(proto::RecordId::ExternalMap) && body.size() >= proto::ExternalMapRecord::kBodyBytes) {
    proto::ExternalMapRecord record;
    std::memcpy(&record, body.data(), sizeof record);
    auto part = memory.part(record);
    std::uint64_t address = 0;
    if (part) (void)session.memory().external().map(*part, address);
  }
  if (header.id == static_cast<std::uint16_t>(proto::RecordId::ExternalMapArray) && body.size() >= proto::ExternalMapArrayRecord::kBodyBytes) {
    proto::ExternalMapArrayRecord record;
    std::memcpy(&record, body.data(), sizeof record);
    auto part = memory.part(record);
    CUmipmappedArray made = nullptr;
    if (part) (void)broker::CheckedCalls(*executor->driver).map(made, *part);
  }
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
      if (header.id == static_cast<std::uint16_t>(proto::RecordId::GraphInstantiate) && session.is_reading()) make_graphs(session);
      // At once: what is queued when a later record ends the session goes to nobody.
      if (session.is_reading()) (void)session.streams().issue();
      if (session.is_reading()) map_external(session, header, left.subspan(sizeof header, header.size_bytes - sizeof header));
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

// An address in one of its own kinds of memory, and rarely one that is not.
std::uint64_t some_place(Random& random, std::uint64_t space) {
  const std::uint64_t own = space == 0 ? kFirstChunk : space == 1 ? test::kPinnedLease : 0;
  switch (random() % 32) {
    case 0: return random();
    case 1: return kForeignChunk + random() % kChunkBytes;
    case 2: return kForeignChunk - own;
    case 3: return own - 1;
    case 4: return kForeignBuffer + random() % kExternalBytes;
    case 5:
    case 6: return kBuffer + random() % kExternalBytes;
    default: return own + random() % (space == 0 ? kChunkBytes : kSegmentBytes);
  }
}

// Sizes, pitches and counts of rows: small ones, with which much fits, and such as overflow.
std::uint64_t some_count(Random& random, std::uint64_t usual) {
  switch (random() % 24) {
    case 0: return 0;
    case 1: return 1;
    case 2: return random();
    case 3: return ~std::uint64_t{0} - random() % 4;
    case 4: return std::uint64_t{1} << random() % 64;
    case 5: return kForeignChunk - kFirstChunk;
    default: return random() % 2 == 0 ? usual : 1 + random() % usual;
  }
}

void add_graph(Input& input, Random& random) {
  const auto exec = proto::GraphExecId::make(static_cast<std::uint32_t>(random() % kExecs), 1);
  const auto add_node = [&](Input& nodes, std::uint32_t index, bool has_dependency) {
    proto::GraphCopy copy{};
    copy.destination_space = static_cast<std::uint8_t>(random() % 16 == 0 ? random() % 4 : random() % 2);
    copy.source_space = static_cast<std::uint8_t>(random() % 2);
    copy.destination = some_place(random, copy.destination_space);
    copy.source = some_place(random, copy.source_space);
    copy.width_bytes = some_count(random, 64);
    copy.height = some_count(random, 8);
    copy.depth = some_count(random, 2);
    copy.destination_pitch_bytes = some_count(random, 128);
    copy.destination_rows = some_count(random, 16);
    copy.source_pitch_bytes = some_count(random, 128);
    copy.source_rows = some_count(random, 16);
    const proto::FillRecord fill{
        some_place(random, random() % 2), some_count(random, 256), some_count(random, 64), some_count(random, 8), 7, 1u << random() % 3};
    const bool is_copy = random() % 2 == 0;
    proto::GraphNodeHeader header;
    header.index = index;
    header.kind = is_copy ? proto::GraphNodeKind::copy : proto::GraphNodeKind::fill;
    header.dependency_count = has_dependency ? 1 : 0;
    header.payload_bytes = is_copy ? sizeof copy : proto::FillRecord::kBodyBytes;
    append(nodes, header);
    if (has_dependency) append(nodes, std::uint64_t{index - 1});
    if (is_copy) append(nodes, copy);
    if (!is_copy) append(nodes, fill);
  };
  const auto add_with = [&](const auto& record, const Input& trailing) {
    const std::size_t at = input.size() + sizeof(proto::RecordHeader) + sizeof record;
    add(input, random, record, {}, trailing.size());
    std::memcpy(input.data() + at, trailing.data(), trailing.size());
  };
  Input nodes;
  const auto count = static_cast<std::uint32_t>(1 + random() % 3);
  switch (random() % 4) {
    case 0: add_node(nodes, static_cast<std::uint32_t>(random() % 3), false); return add_with(proto::GraphSetNodesRecord{exec, 0, 0}, nodes);
    case 1: return add(input, random, proto::GraphLaunchRecord{exec}, proto::StreamId::make(1, 1));
    case 2: return add(input, random, proto::GraphExecDestroyRecord{exec}, {});
    default:
      for (std::uint32_t i = 0; i < count; ++i) add_node(nodes, i, i != 0);
      add_with(proto::GraphNodesRecord{exec}, nodes);
      return add(input, random, proto::GraphInstantiateRecord{exec, 0, count, 0}, {});
  }
}

void add_external(Input& input, Random& random) {
  const auto memory = proto::ExternalMemoryId::make(static_cast<std::uint32_t>(random() % 4 == 0 ? random() % 3 : 0), 1);
  const std::uint64_t offset = random() % 2 == 0 ? 0 : some_count(random, kExternalBytes);
  switch (random() % 16) {
    case 0: return add(input, random, proto::ExternalReleaseRecord{memory}, {});
    case 1: return add(input, random, proto::ExternalUnmapRecord{random() % 4 == 0 ? some_place(random, 0) : kBuffer}, {});
    case 2:
    case 3:
    case 4: {
      proto::ExternalMapArrayRecord map{};
      map.memory = memory;
      map.array = proto::ArrayId::make(static_cast<std::uint32_t>(3 + random() % 8), 1);
      map.offset = offset;
      map.width = some_count(random, 64);
      map.height = some_count(random, 64);
      map.depth = some_count(random, 4);
      map.format = random() % 4 == 0 ? static_cast<std::uint32_t>(random() % 40) : static_cast<std::uint32_t>(CU_AD_FORMAT_FLOAT);
      map.channels = static_cast<std::uint32_t>(random() % 8 == 0 ? random() : 1 + random() % 4);
      map.flags = static_cast<std::uint32_t>(random() % 4 == 0 ? random() : 0);
      map.levels = static_cast<std::uint32_t>(random() % 8 == 0 ? random() : random() % 8);
      return add(input, random, map, {});
    }
    case 5: return add(input, random, proto::ExternalImportRecord{memory, some_count(random, kExternalBytes), 0, 0}, {});
    default: return add(input, random, proto::ExternalMapRecord{memory, offset, some_count(random, kExternalBytes), 0, 0}, {});
  }
}

// Records with addresses, pitches, offsets and sizes.
void add_memory(Input& input, Random& random, proto::StreamId stream) {
  const auto space = [&] { return static_cast<std::uint8_t>(random() % 32 == 0 ? random() % 5 : random() % 3); };
  const auto memory = proto::MemoryId::make(static_cast<std::uint32_t>(random() % 3), 1);
  const std::uint64_t range = kFirstChunk + kChunkBytes * (1 + random() % 8);
  switch (random() % 13) {
    case 12: return add_external(input, random);
    case 0: {
      proto::CopyRecord copy{};
      copy.destination_space = space();
      copy.source_space = space();
      copy.destination = some_place(random, copy.destination_space);
      copy.source = some_place(random, copy.source_space);
      copy.size_bytes = some_count(random, 4096);
      return add(input, random, copy, stream);
    }
    case 1: {
      proto::CopyBoxRecord box{};
      box.destination_space = space();
      box.source_space = space();
      box.destination = some_place(random, box.destination_space);
      box.source = some_place(random, box.source_space);
      box.width = some_count(random, 64);
      box.height = some_count(random, 8);
      box.depth = some_count(random, 2);
      box.destination_pitch = some_count(random, 128);
      box.source_pitch = some_count(random, 128);
      box.destination_rows = some_count(random, 16);
      box.source_rows = some_count(random, 16);
      return add(input, random, box, stream);
    }
    case 2:
    case 3: {
      proto::ArrayCopyRecord copy{};
      const bool is_upload = random() % 2 == 0;
      copy.destination_space = is_upload ? 3 : static_cast<std::uint32_t>(random() % 2);
      copy.source_space = !is_upload || random() % 8 == 0 ? 3 : static_cast<std::uint32_t>(random() % 2);
      if (random() % 64 == 0) copy.destination_space = static_cast<std::uint32_t>(random() % 5);  // neither end, or none
      if (random() % 64 == 0) copy.source_space = static_cast<std::uint32_t>(random() % 5);
      const auto end = [&](std::uint32_t in) {
        return in == 3 ? proto::ArrayId::make(static_cast<std::uint32_t>(random() % 3), 1).value : some_place(random, in);
      };
      copy.destination = end(copy.destination_space);
      copy.source = end(copy.source_space);
      const auto set_offsets = [&](std::uint32_t in, std::uint64_t(&offset)[3]) {
        if (in != 3 && random() % 32 == 0) offset[random() % 3] = random() % 2 == 0 ? kForeignChunk - kFirstChunk : some_count(random, 4);
        if (in == 3 && random() % 4 == 0) offset[random() % 3] = some_count(random, 4);
      };
      set_offsets(copy.destination_space, copy.destination_offset);
      set_offsets(copy.source_space, copy.source_offset);
      copy.width = some_count(random, 32);
      copy.height = some_count(random, 4);
      copy.depth = some_count(random, 1);
      copy.destination_pitch = some_count(random, 128);
      copy.source_pitch = some_count(random, 128);
      copy.destination_rows = some_count(random, 16);
      copy.source_rows = some_count(random, 16);
      return add(input, random, copy, stream);
    }
    case 4:
      return add(input, random,
                 proto::FillRecord{some_place(random, random() % 2), some_count(random, 256), some_count(random, 64), some_count(random, 8), 7,
                                   1u << random() % 3},
                 stream);
    case 5:
      return add(input, random,
                 proto::StreamWaitValueRecord{some_place(random, random() % 2) & ~std::uint64_t{7}, 0, random() % 2 == 0 ? 4u : 8u,
                                              static_cast<std::uint32_t>(random() % 4)},
                 stream);
    case 6:
      return add(input, random,
                 proto::StreamWriteValueRecord{
                     some_place(random, random() % 2) & ~std::uint64_t{random() % 8}, random(),
                     random() % 2 == 0 ? static_cast<std::uint32_t>(CU_STREAM_MEM_OP_WRITE_VALUE_32) : static_cast<std::uint32_t>(random() % 6), 0},
                 stream);
    case 7: return add(input, random, proto::RangeReserveRecord{some_count(random, 4) * kChunkBytes, kChunkBytes, random() % 2 == 0 ? 0 : range}, {});
    case 8: return add(input, random, proto::MemoryCreateRecord{memory, kChunkBytes}, {});
    case 9: return add(input, random, proto::MappingCreateRecord{random() % 8 == 0 ? random() : range, kChunkBytes, memory, 1, 0}, {});
    case 10: {
      const std::uint64_t place = random() % 8 == 0 ? random() : range;
      switch (random() % 3) {
        case 0:
          return add(input, random,
                     proto::MappingAccessRecord{place, some_count(random, 2) * kChunkBytes, static_cast<std::uint32_t>(random() % 2), 0}, {});
        case 1: return add(input, random, proto::MappingEndRecord{place}, {});
        default: return add(input, random, proto::RangeFreeRecord{place, some_count(random, 4) * kChunkBytes}, {});
      }
    }
    default: return add_graph(input, random);
  }
}

}  // namespace

// A session with work still queued holds itself. A real executor takes its sessions down or ends by exit; the one here just goes.
extern "C" __attribute__((visibility("default"), used)) const char* __asan_default_options() { return "detect_leaks=0"; }

namespace mpsshim::fuzz {

Input make_input(Random& random) {
  Input input;
  for (std::uint64_t count = 1 + random() % 2500; count > 0; --count) {
    const auto stream = proto::StreamId::make(static_cast<std::uint32_t>(random() % 3), 1);
    if (random() % 2 == 0)
      add_random(input, random, stream);
    else
      add_memory(input, random, stream);
  }
  return input;
}

std::uint64_t records_so_far() { return records; }
void finish() {
  victim.reset();
  executor.reset();
}

}  // namespace mpsshim::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (inputs++ % kInputsPerExecutor == 0) {
    (void)broker::open_log({.path = "", .identity = "Fuzz", .to_standard_error = false, .least = broker::LogLevel::error});
    finish();
    executor = std::make_unique<test::WireExecutor>(0);
    executor->window->shut();
    victim = std::make_unique<test::WireClient>(*executor, kVictim);
    (void)victim->add_chunk(kChunkBytes);
    require(victim->map_external(victim->add_external(0, kExternalBytes), kExternalBytes) == kForeignBuffer, "external memory lies elsewhere");
  }
  test::AddressOracle& oracle = executor->fake.oracle;
  oracle.act_as(0);
  oracle.forget(kSession);  // of the input before
  test::FakeFunction function{"f", {8, 4}};
  test::WireClient client(*executor, kSession);
  client.add_function(function);
  client.add_event(1);
  client.add_stream(1);
  client.add_stream(2, CU_STREAM_NON_BLOCKING);
  client.turn();
  (void)client.add_chunk(kChunkBytes);
  client.add_segment(proto::SegmentPurpose::pinned, kSegmentBytes);
  client.add_segment(proto::SegmentPurpose::staging, kSegmentBytes);
  (void)client.add_array(0, {64, 8, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0});
  (void)client.add_array(1, {16, 8, 4, CU_AD_FORMAT_FLOAT, 2, 0});
  require(client.map_external(client.add_external(0, kExternalBytes), kExternalBytes) == kBuffer, "external memory lies elsewhere");
  oracle.act_as(kSession);

  std::vector<std::byte> bytes(reinterpret_cast<const std::byte*>(data), reinterpret_cast<const std::byte*>(data) + size);
  number_records(bytes, client.sequence());
  client.write_ring(bytes);
  for (int i = 0; i < 4; ++i) visit(client);
  check_driver_calls();
  oracle.act_as(0);
  client.session().fail("the input", "it is over");  // what waits would hold the session
  client.release_segments();
  client.release_external();
  return 0;
}
