// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/support/executor_stage.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "broker/log.hpp"

namespace mpsshim::fuzz {

namespace {

constexpr std::uint64_t kBystander = ExecutorStage::kSessions + 1;
constexpr unsigned kMostRounds = 2'000;           // until what has to end has ended
constexpr std::uint64_t kFirstAnnounced = 4;      // of their ids
constexpr std::uint32_t kBystandersMost = 2'000;  // launches between two waits

std::uint64_t device_lease(std::uint64_t session) { return test::kDeviceLease + (session - 1) * test::kLeaseBytes; }
std::uint64_t pinned_lease(std::uint64_t session) { return test::kPinnedLease + (session - 1) * test::kLeaseBytes; }

enum Step : unsigned { ring = 0, ring_too = 1, turns = 2, jobs = 3, window = 4, work = 5, sessions = 6, bystander = 7 };
constexpr std::uint8_t step(Step what, std::uint64_t which) { return static_cast<std::uint8_t>(what | (which & 31) << 3); }

}  // namespace

ExecutorStage::ExecutorStage()
    : is_silent_(broker::open_log({.path = "", .identity = "Fuzz", .to_standard_error = false, .least = broker::LogLevel::error})) {
  executor_.fake.keeps_event_order = true;
  executor_.window->shut();
  executor_.window->set_used_streams([this] { return executor_.parts->progress.used(); });
  executor_.start_workers(false);
  bystander_ = std::make_unique<test::WireClient>(executor_, kBystander);
  bystanders_function_ = bystander_->add_function(bystanders_);
  bystanders_chunk_ = bystander_->add_chunk(kChunkBytes);
  executor_.workers->add(bystander_->shared_session());
  executor_.fake.oracle.follow_marks();
}

ExecutorStage::~ExecutorStage() {
  bool is_closed = false;
  executor_.workers->close(kBystander, [&] { is_closed = true; });
  for (unsigned i = 0; i < kMostRounds && !is_closed; ++i) go_on();
  require(is_closed, "the bystander's session does not end");
  bystander_.reset();
}

void ExecutorStage::open(unsigned index) {
  Client& client = clients_[index];
  const std::uint64_t session = index + 1;
  client = {};
  client.wire = std::make_unique<test::WireClient>(executor_, session);
  test::WireClient& wire = *client.wire;
  wire.add_function(function_);
  wire.add_event(1);
  wire.add_stream(1);
  wire.add_stream(2, CU_STREAM_NON_BLOCKING);
  (void)wire.add_chunk(kChunkBytes);
  wire.add_segment(proto::SegmentPurpose::pinned, kSegmentBytes);
  wire.add_segment(proto::SegmentPurpose::staging, kSegmentBytes);
  (void)wire.map_external(wire.add_external(0, kExternalBytes), kExternalBytes);
  executor_.workers->add(wire.shared_session());
  for (const std::uint32_t i : {0u, 1u}) {
    proto::ArrayCreateRecord array{};
    array.array = proto::ArrayId::make(i, 1);
    array.width = 64;
    array.height = 8;
    array.channels = 1;
    array.format = CU_AD_FORMAT_UNSIGNED_INT8;
    wire.call(array, 0);
  }
  turn();
}

void ExecutorStage::close(unsigned index) {
  Client& client = clients_[index];
  if (!client.wire || client.is_closing) return;
  client.is_closing = true;
  executor_.workers->close(index + 1, [&client] { client.is_closed = true; });
}

// Those whose session has ended; their memory, leases and ids may be given to others.
void ExecutorStage::bury() {
  for (unsigned i = 0; i < kSessions; ++i) {
    Client& client = clients_[i];
    if (!client.wire || !client.is_closed) continue;
    executor_.link->forget_session(i + 1);
    const std::weak_ptr<broker::Session> session = client.wire->shared_session();
    client = {};
    require(session.expired(), "somebody holds a session that has ended");
  }
}

// A client knows its textures' handles from the answers; here a small number says which of them.
void ExecutorStage::name_samplers(test::WireClient& client, std::span<std::byte> bytes) {
  constexpr std::size_t kRecordBytes = sizeof(proto::RecordHeader) + sizeof(proto::ArrayObjectDestroyRecord);
  for (std::span<std::byte> left = bytes; left.size() >= kRecordBytes;) {
    proto::RecordHeader header;
    std::memcpy(&header, left.data(), sizeof header);
    if (header.size_bytes < sizeof header || header.size_bytes > left.size()) return;
    proto::ArrayObjectDestroyRecord record;
    std::memcpy(&record, left.data() + sizeof header, sizeof record);
    const bool is_sampler = header.id == static_cast<std::uint16_t>(proto::RecordId::ArrayObjectDestroy) && is_known(record.kind) &&
                            record.kind != proto::ArrayObject::array;
    const auto& known = client.session().arrays().samplers(record.kind == proto::ArrayObject::surface);
    if (is_sampler && record.object < known.size()) {
      record.object = std::next(known.begin(), static_cast<std::ptrdiff_t>(record.object))->first;
      std::memcpy(left.data() + sizeof header, &record, sizeof record);
    }
    left = left.subspan(header.size_bytes);
  }
}

void ExecutorStage::write(unsigned index, std::span<const std::uint8_t> bytes) {
  Client& client = clients_[index];
  if (!client.wire || client.is_closing || bytes.empty()) return;
  std::vector<std::byte> copy(bytes.size());
  std::memcpy(copy.data(), bytes.data(), bytes.size());
  name_samplers(*client.wire, copy);
  client.unread += client.wire->write_records(copy);
}

void ExecutorStage::turn() {
  executor_.workers->turn();
  for (Client& client : clients_) {
    if (client.unread == 0) continue;
    const bool is_reading = client.wire->session().is_reading();
    if (is_reading && client.wire->channel().ring().has_records()) continue;
    const std::size_t read = std::exchange(client.unread, 0);
    records_ += is_reading ? read : 1;  // of one that has failed it is not known how many were looked at
  }
}

void ExecutorStage::hold(unsigned amount) {
  if (amount == 0) return executor_.fake.hold_work();
  if (amount == 31) return executor_.fake.resume_work();
  executor_.fake.complete(amount);
}

void ExecutorStage::announce(unsigned index) {
  if (!clients_[index].wire || clients_[index].is_closing) return;
  const std::uint64_t session = index + 1;
  for (std::uint64_t i = 0; i < 2; ++i)
    peer_.announce_segment(session, kFirstAnnounced + i, pinned_lease(session) + (1 + i) * kSegmentBytes, kSegmentBytes);
  peer_.announce_external(session, proto::ExternalMemoryId::make(1, 1), kExternalBytes);
}

void ExecutorStage::change(unsigned which) {
  const unsigned index = which % kSessions;
  if (which >= 24) return announce(index);
  if (which >= 12) return close(index);
  bury();
  if (!clients_[index].wire) open(index);
}

void ExecutorStage::run(std::span<const std::uint8_t> input) {
  executor_.fake.last_condition = 0x100;
  for (unsigned i = 0; i < kSessions; ++i) open(i);
  Reader reader(input.data(), input.size());
  while (!reader.empty()) {
    const std::uint8_t byte = reader.byte();
    const unsigned which = byte >> 3;
    switch (static_cast<Step>(byte & 7)) {
      case Step::ring:
      case Step::ring_too: {
        std::size_t length = reader.word();
        const std::uint8_t* const bytes = reader.take(length);
        write(which % kSessions, {bytes, length});
        break;
      }
      case Step::turns:
        for (unsigned i = 0; i <= which % 4; ++i) turn();
        break;
      case Step::jobs:
        for (unsigned i = 0; i <= which && executor_.helpers->run_next(); ++i) {
        }
        break;
      case Step::window: (void)executor_.window->open_by_hand(); break;
      case Step::work: hold(which); break;
      case Step::sessions: change(which); break;
      case Step::bystander: which % 2 == 0 ? post_bystanders_work() : await_bystander(); break;
    }
  }
  end_all();
  check();
}

// Everything that can, once.
void ExecutorStage::go_on() {
  turn();
  while (executor_.helpers->run_next()) {
  }
  executor_.fake.complete(1);
  (void)executor_.window->open_by_hand();
}

void ExecutorStage::post_bystanders_work() {
  if (posted_ - launched_ >= kBystandersMost || !bystander_->has_room()) return;
  bystander_->post(proto::CopyRecord{bystanders_chunk_, bystanders_chunk_ + kChunkBytes / 2, 256, {}, {}, {}, 0});
  bystander_->post_launch(bystanders_function_, ++posted_);
  bystander_->post_fence(posted_);
}

// Whatever the others do, within so many turns of all parts.
void ExecutorStage::await_bystander() {
  for (unsigned i = 0; i < kMostRounds && bystander_->fence() != posted_; ++i) go_on();
  require(bystander_->fence() == posted_, "the bystander's work does not end");
  for (const test::FakeCall& call : executor_.fake.calls(test::FakeCall::launch)) {
    if (call.function != &bystanders_) continue;
    std::uint64_t argument = 0;
    require(call.parameters.size() == sizeof argument, "the bystander's kernel has other parameters");
    std::memcpy(&argument, call.parameters.data(), sizeof argument);
    require(argument == ++launched_, "the bystander's kernels are not launched one by one, in order");
  }
  executor_.fake.forget_calls();
  require(launched_ == posted_, "a launch of the bystander's is lost");
  require(!bystander_->has_failed() && bystander_->take_async_error() == CUDA_SUCCESS, "the bystander has an error");
}

void ExecutorStage::end_all() {
  for (unsigned i = 0; i < kSessions; ++i) close(i);
  const auto is_over = [](const Client& client) { return !client.wire || client.is_closed; };
  for (unsigned i = 0; i < kMostRounds && !std::ranges::all_of(clients_, is_over); ++i) go_on();
  require(std::ranges::all_of(clients_, is_over), "a session does not end");
  executor_.fake.resume_work();
  while (executor_.helpers->run_next()) {
  }
  (void)executor_.window->open_by_hand();
  turn();
  bury();
  post_bystanders_work();
  await_bystander();
}

void ExecutorStage::check() {
  test::FakeDriver& fake = executor_.fake;
  for (const std::string& violation : fake.oracle.take_violations()) require(false, violation.c_str());
  require(fake.dead_uses == 0, "an array or texture was used that had ended");
  const std::string left = fake.oracle.what_is_left(kBystander);
  require(left.empty(), left.c_str());
  require(fake.arrays == 0 && fake.textures == 0, "arrays or textures are left");
  require(fake.externals == 0 && fake.buffers == 0, "external memory is left");
  require(fake.conditioned_graphs == 0, "a graph with conditions is left");
}

Input ExecutorStage::make_input(Random& random, unsigned sessions_count, const Fill& fill) {
  Input input;
  const std::uint64_t tameness = random() % 4 == 0 ? 1 : 64;
  std::array<Made, kSessions> made;
  for (std::uint64_t steps = 32 + random() % 256; steps > 0; --steps) {
    const unsigned index = static_cast<unsigned>(random() % sessions_count);
    const std::uint64_t session = index + 1;
    const std::uint64_t other = session % kSessions + 1;
    const Scenery scenery{device_lease(session),
                          device_lease(other),
                          pinned_lease(session),
                          test::kExternalMemory + index * kExternalBytes,
                          test::kExternalMemory + (other - 1) * kExternalBytes,
                          tameness};
    const std::uint64_t kind = random() % 64;
    if (kind < 40) {
      Input records;
      RecordMaker maker(records, random, scenery, made[index]);
      for (std::uint64_t count = 1 + random() % 12; count > 0; --count) fill(maker);
      input.push_back(step(Step::ring, index));
      append(input, static_cast<std::uint16_t>(std::min<std::size_t>(records.size(), 0xfff8)));
      input.insert(input.end(), records.begin(), records.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(records.size(), 0xfff8)));
      if (random() % 4 != 0) input.push_back(step(Step::turns, 0));
    } else if (kind < 46) {
      input.push_back(step(Step::turns, random() % 4));
    } else if (kind < 51) {
      input.push_back(step(Step::jobs, random()));
    } else if (kind < 54) {
      input.push_back(step(Step::window, 0));
    } else if (kind < 58) {
      const std::uint64_t amount = random() % 4;
      input.push_back(step(Step::work, amount == 3 ? 31 : amount == 0 ? 0 : 1 + random() % 30));
    } else if (kind < 60) {
      input.push_back(step(Step::sessions, random() % 4 == 0 ? random() : random() % 2 == 0 ? 24 + random() % 8 : random() % 12));
    } else {
      input.push_back(step(Step::bystander, random() % 4 == 0 ? 1 : 0));
    }
  }
  return input;
}

}  // namespace mpsshim::fuzz
