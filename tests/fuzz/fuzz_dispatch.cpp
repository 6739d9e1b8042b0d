// SPDX-License-Identifier: Apache-2.0
// The executor's decoder on hostile input: the bytes are a ring's contents, read by RingConsumer, dispatched, and issued to a FakeDriver.
// Sequence numbers are filled in, or nothing behind the first record would ever be reached. Whatever comes, every address that the driver is given
// is the session's own (tests/wire/support/address_oracle.hpp), another client's memory lies beside it. Jobs for helpers and quiet windows are
// queued and never run: what they do is not decoding. Graphs are made all the same, since their nodes have addresses.
#include <cstring>
#include <memory>

#include "broker/executor/memory/checked_calls.hpp"
#include "broker/executor/memory/checked_memory.hpp"
#include "broker/log.hpp"
#include "tests/fuzz/support/record_maker.hpp"
#include "tests/wire/support/wire_fixture.hpp"

using namespace mpsshim;
using namespace mpsshim::fuzz;

namespace {

constexpr unsigned kInputsPerExecutor = 24;                      // queued jobs hold their sessions and streams; a new executor lets them go
constexpr std::uint64_t kForeignBuffer = test::kExternalMemory;  // the other client's external memory lies before this one's
constexpr std::uint64_t kBuffer = kForeignBuffer + kExternalBytes;
constexpr std::uint64_t kSession = 1;
constexpr std::uint64_t kVictim = 2;

std::unique_ptr<test::WireExecutor> executor;
std::unique_ptr<test::WireClient> victim;  // has memory, and does nothing
unsigned inputs = 0;
std::uint64_t records = 0;
std::vector<std::byte> batch(64 * 1024);

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
  const broker::CheckedMemory memory = session.checked();
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

}  // namespace

// A session with work still queued holds itself. A real executor takes its sessions down or ends by exit; the one here just goes.
extern "C" __attribute__((visibility("default"), used)) const char* __asan_default_options() { return "detect_leaks=0"; }

namespace mpsshim::fuzz {

Input make_input(Random& random) {
  Input input;
  Made made;
  RecordMaker maker(input, random, {test::kDeviceLease, test::kDeviceLease + test::kLeaseBytes, test::kPinnedLease, kBuffer, kForeignBuffer}, made);
  for (std::uint64_t count = 1 + random() % 2500; count > 0; --count) {
    const auto stream = maker.some_stream();
    if (random() % 2 == 0)
      maker.add_plain(stream);
    else
      maker.add_memory(stream);
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
    executor = std::make_unique<test::WireExecutor>(broker::HelperPool::kByHand);
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
  (void)client.write_records(bytes);
  for (int i = 0; i < 4; ++i) visit(client);
  check_driver_calls();
  oracle.act_as(0);
  client.session().fail("the input", "it is over");  // what waits would hold the session
  client.release_segments();
  client.release_external();
  return 0;
}
