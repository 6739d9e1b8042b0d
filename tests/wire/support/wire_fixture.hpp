// SPDX-License-Identifier: Apache-2.0
// Client and executor over one in-memory channel: the client side is a RingProducer, the executor side real sessions over a FakeDriver.
// turn() does what a worker does in a visit, in the test's thread, so that tests say exactly when; start_workers() uses real threads instead.
#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "broker/executor/base/helper_pool.hpp"
#include "broker/executor/link/control_link.hpp"
#include "broker/executor/link/fault.hpp"
#include "broker/executor/memory/external_memory.hpp"
#include "broker/executor/records/dispatch.hpp"
#include "broker/executor/sessions/session.hpp"
#include "broker/executor/window/quiet_window.hpp"
#include "broker/executor/workers/worker_set.hpp"
#include "proto/ring_producer.hpp"
#include "tests/wire/support/fake_driver.hpp"

namespace mpsshim::test {

// A driver and context that the caller has made, in place of the FakeDriver.
struct RealDriver {
  std::unique_ptr<broker::Driver> driver;
  CUcontext context = nullptr;
  CUdevice device = 0;
};

// The parts of an executor over a FakeDriver, or over a real one.
class WireExecutor {
 public:
  explicit WireExecutor(unsigned helper_threads = 1, unsigned worker_threads = 1, RealDriver real = {}, unsigned side_contexts = 0);
  ~WireExecutor();

  FakeDriver fake;
  std::unique_ptr<broker::Driver> driver;
  const unsigned worker_threads;
  proto::Socket control_end;  // the control process's end; nobody reads it
  std::unique_ptr<broker::ControlLink> link;
  std::unique_ptr<broker::ProgressTable> progress;
  std::unique_ptr<broker::FunctionNames> names = std::make_unique<broker::FunctionNames>();
  std::unique_ptr<broker::FaultReporter> faults;
  std::unique_ptr<broker::QuietWindow> window;
  std::unique_ptr<broker::HelperPool> helpers;
  std::unique_ptr<broker::ModuleStore> modules;
  std::unique_ptr<broker::ExecutorParts> parts;
  std::unique_ptr<broker::WorkerSet> workers;  // after start_workers()
  int link_fd = -1;                            // of `link`; does not block

  // Without threads it is the test that says when: by WorkerSet::turn() and its kin.
  void start_workers(bool have_threads = true) { workers = std::make_unique<broker::WorkerSet>(*parts, worker_threads, have_threads); }
};

// One client with its session.
class WireClient {
 public:
  explicit WireClient(WireExecutor& executor, std::uint64_t session = 1, std::uint32_t client_priority = 0, std::uint64_t chunks = 0);
  ~WireClient();

  // --- client side ---
  // Writes a record as a correct client does.
  template <typename Record>
  void post(const Record& record, proto::StreamId stream = proto::kNullStream, std::span<const std::byte> trailing = {},
            std::uint16_t reply_slot = proto::kNoReplySlot) {
    std::span<const std::byte> body;
    if constexpr (Record::kBodyBytes > 0) body = std::as_bytes(std::span(&record, 1));
    post_raw({proto::record_size(body.size(), trailing.size()), static_cast<std::uint16_t>(Record::kId), reply_slot, 0,
              static_cast<std::uint32_t>(trailing.size()), stream},
             body, trailing);
  }
  // Any header; the sequence is filled in unless `keep_sequence`. The bytes are as many as the header's size says.
  void post_raw(proto::RecordHeader header, std::span<const std::byte> body, std::span<const std::byte> trailing = {}, bool keep_sequence = false);
  template <typename Record>
  void call(const Record& record, std::uint16_t slot = 0, std::span<const std::byte> trailing = {}) {
    auto& reply = slot_of(slot);
    reply.state.store(proto::ReplySlot::pending);
    post(record, proto::kNullStream, trailing, slot);
  }
  [[nodiscard]] proto::ReplySlot& slot_of(std::uint16_t slot) const;
  [[nodiscard]] bool is_answered(std::uint16_t slot) const { return slot_of(slot).state.load() == proto::ReplySlot::done; }
  [[nodiscard]] CUresult status(std::uint16_t slot) const { return static_cast<CUresult>(slot_of(slot).status); }
  template <typename Body>
  [[nodiscard]] Body body(std::uint16_t slot) const {
    Body result;
    std::memcpy(&result, reinterpret_cast<const std::byte*>(&slot_of(slot)) + sizeof(proto::ReplySlot), sizeof result);
    return result;
  }
  [[nodiscard]] std::uint32_t fence(std::uint32_t index = 0) const { return channel().fence(index).value.load(); }
  [[nodiscard]] CUresult take_async_error() { return static_cast<CUresult>(channel().header().async_error.exchange(0)); }
  [[nodiscard]] bool has_failed() const { return channel().header().session_state.load() == static_cast<std::uint32_t>(proto::SessionState::failed); }

  [[nodiscard]] std::uint32_t sequence() const { return sequence_; }
  // False while the ring is full.
  [[nodiscard]] bool has_room() { return producer_.reserve(proto::kMaxRecordBytes) != nullptr; }
  // Bytes as they are, as many as there is room for behind what is there, those that are records numbered as they have to be. Returns how many these
  // are. From then on nothing else may write to the ring.
  std::size_t write_records(std::span<std::byte> bytes);

  // --- executor side ---
  broker::Session& session() { return *session_; }
  [[nodiscard]] broker::ClientChannel& channel() const { return session_->channel(); }
  std::shared_ptr<broker::Session> shared_session() { return session_; }
  // Reads, dispatches and issues once. With `dry` also writes progress, as a worker does when a ring stays dry.
  broker::StreamSet::Issue turn(bool dry = true);
  bool is_short_of_time = false;  // the worker's part of turn()

  // A function known to the session, without a module.
  proto::FunctionId add_function(FakeFunction& function, std::uint32_t local_bytes = 0);
  proto::FunctionId add_function(std::unique_ptr<broker::LoadedFunction> loaded);
  // One that another client has, as of an image that both have loaded. The other is there as long.
  proto::FunctionId share_function(WireClient& other, proto::FunctionId function);
  // Device memory known to the session.
  std::uint64_t add_chunk(std::uint64_t size_bytes);
  // Host memory known to the session: pinned at the beginning of its lease, or staging memory. Released with release_segments(), before the client.
  void add_segment(proto::SegmentPurpose purpose, std::uint64_t size_bytes);
  void release_segments() {
    broker::TurnBudget all = broker::TurnBudget::unlimited();
    (void)session_->memory().segments().release_some(all);
    session_->memory().segments().unmap_all();
  }
  // External memory known to the session, and a buffer of it: its first bytes. release_external() ends both; the client's end does, without workers.
  proto::ExternalMemoryId add_external(std::uint32_t index, std::uint64_t size_bytes);
  std::uint64_t map_external(proto::ExternalMemoryId memory, std::uint64_t size_bytes);
  void release_external() { session_->memory().external().release_all(); }
  // A module with one variable, called "variable". With `is_shared` others run the same copy. The address oracle knows the variable as this
  // session's until the executor may give the copy to another.
  proto::ModuleId add_module(std::uint32_t index, std::uint64_t variable, std::uint64_t size_bytes, bool is_shared = false);
  void post_lookup(proto::ModuleId module, std::uint16_t slot);
  // An array known to the session.
  proto::ArrayId add_array(std::uint32_t index, const CUDA_ARRAY3D_DESCRIPTOR& descriptor);
  proto::StreamId add_stream(std::uint32_t index, unsigned flags = CU_STREAM_DEFAULT);
  proto::EventId add_event(std::uint32_t index, unsigned flags = CU_EVENT_DISABLE_TIMING);

  // A launch of `function` with one 8-byte parameter.
  void post_launch(proto::FunctionId function, std::uint64_t argument, proto::StreamId stream = proto::kNullStream, std::uint32_t grid_x = 1);
  void post_fence(std::uint32_t value, proto::StreamId stream = proto::kNullStream) { post(proto::FenceRecord{value, 0}, stream); }

 private:
  WireExecutor& executor_;
  proto::Mapping control_;
  proto::Mapping ring_;
  proto::RingProducer producer_;
  std::shared_ptr<broker::Session> session_;
  std::vector<std::unique_ptr<broker::LoadedFunction>> loaded_;
  std::vector<std::byte> batch_;
  proto::FileDescriptor ring_doorbell_;
  std::uint32_t sequence_ = 0;
  std::uint32_t functions_ = 0;
  std::uint64_t segments_ = 0;
};

// Whether it comes to hold within ten seconds.
[[nodiscard]] bool eventually(const std::function<bool()>& holds);

}  // namespace mpsshim::test
