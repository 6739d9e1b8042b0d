// SPDX-License-Identifier: Apache-2.0
#include "tests/wire/support/wire_fixture.hpp"

#include <new>
#include <string>
#include <string_view>

#include <sys/eventfd.h>

#include "broker/executor/chains/flight_limit.hpp"
#include "broker/executor/memory/checked_memory.hpp"

namespace mpsshim::test {

namespace {

constexpr std::size_t kModuleCacheBytes = 64u << 20;
constexpr std::string_view kVariableName = "variable";

}  // namespace

WireExecutor::WireExecutor(unsigned helper_threads, unsigned threads, RealDriver real, unsigned side_contexts)
    : driver(real.driver ? std::move(real.driver) : fake.driver()), worker_threads(threads) {
  auto sockets = proto::Socket::pair();
  control_end = std::move(sockets[0]);
  sockets[1].set_blocking(false);  // what executors report is not read here
  link_fd = sockets[1].fd();
  link = std::make_unique<broker::ControlLink>(std::move(sockets[1]));
  progress = std::make_unique<broker::ProgressTable>();
  CUdeviceptr progress_address = 0;
  bool is_registered = false;
  if (broker::OwnMemory::enroll(*driver, std::as_writable_bytes(std::span(progress.get(), 1)),
                                CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_PORTABLE, progress_address, is_registered) != CUDA_SUCCESS) {
    throw std::bad_alloc();
  }
  const auto enter = [this, context = real.context] { (*driver)->cuCtxSetCurrent(context); };
  faults = std::make_unique<broker::FaultReporter>(*driver, *link);
  window = std::make_unique<broker::QuietWindow>(*progress, threads, broker::QuietWindow::Limits{}, enter);
  helpers = std::make_unique<broker::HelperPool>(helper_threads, enter);
  modules = std::make_unique<broker::ModuleStore>(*driver, *link, *window, *faults, real.device, kModuleCacheBytes);
  broker::ExecutorInput input{*driver, *link, *window, *modules, *faults, *helpers, real.context, real.device, *progress, progress_address, *names};
  input.latency = proto::Latency::low;  // the same on any number of cores
  parts = std::make_unique<broker::ExecutorParts>(input);
  parts->side_contexts = side_contexts;
  if (parts->start() != CUDA_SUCCESS) throw std::bad_alloc();
  if (side_contexts != 0) parts->sides.make_up_to(side_contexts);
  parts->first_in_flight = broker::FlightLimit::kMost;  // limits other than that one are looked at
  fake.forget_calls();
}

WireExecutor::~WireExecutor() {
  fake.resume_work();
  workers.reset();
  helpers.reset();
  window.reset();
}

WireClient::WireClient(WireExecutor& executor, std::uint64_t session, std::uint32_t client_priority, std::uint64_t chunks)
    : executor_(executor), batch_(64 * 1024) {
  proto::FileDescriptor channel = proto::create_memory_file("channel", proto::kChannelBytes);
  proto::FileDescriptor fences = proto::create_memory_file("fences", proto::kFenceSegmentBytes);
  if (!proto::seal(channel, proto::Seal::size) || !proto::seal(fences, proto::Seal::size)) throw std::bad_alloc();
  control_ = proto::Mapping::map(channel, 0, proto::kRingOffset, proto::Access::read_write);
  ring_ = proto::Mapping::map_twice(channel, proto::kRingOffset, proto::kRingBytes, proto::Access::read_write);
  auto* header = new (control_.data()) proto::ChannelHeader{};
  header->magic = proto::kChannelMagic;
  header->layout_major = proto::kLayoutMajor;
  producer_ = proto::RingProducer(header, ring_.data());
  ring_doorbell_ = proto::FileDescriptor(eventfd(0, EFD_CLOEXEC));

  broker::Received<broker::message::SessionOpen> open;
  open.message.session = session;
  open.message.client_priority = client_priority;
  open.message.chunks = chunks;
  open.message.device_lease = {kDeviceLease + (session - 1) * kLeaseBytes, kLeaseBytes};
  open.message.pinned_lease = {kPinnedLease + (session - 1) * kLeaseBytes, kLeaseBytes};
  open.fds.channel = std::move(channel);
  open.fds.fences = std::move(fences);
  open.fds.ring_doorbell = ring_doorbell_.duplicate();
  open.fds.completion_doorbell = proto::FileDescriptor(eventfd(0, EFD_CLOEXEC));
  CUresult result = CUDA_SUCCESS;
  session_ = broker::Session::open(*executor.parts, std::move(open), result);
  if (!session_) throw std::bad_alloc();
}

// A worker's session is the worker's to take down.
WireClient::~WireClient() {
  executor_.fake.resume_work();
  if (executor_.workers) return;
  release_external();
  session_->begin_close({});
}

proto::ReplySlot& WireClient::slot_of(std::uint16_t slot) const {
  return *reinterpret_cast<proto::ReplySlot*>(control_.data() + proto::kReplyOffset + slot * proto::kReplySlotBytes);
}

void WireClient::post_raw(proto::RecordHeader header, std::span<const std::byte> body, std::span<const std::byte> trailing, bool keep_sequence) {
  ++sequence_;
  if (!keep_sequence) header.sequence = sequence_;
  const std::uint32_t room = std::max<std::uint32_t>(proto::record_size(body.size(), trailing.size()), sizeof header);
  std::byte* at = producer_.reserve(room);
  if (at == nullptr) throw std::bad_alloc();
  std::memset(at, 0, room);
  std::memcpy(at, &header, sizeof header);
  if (!body.empty()) std::memcpy(at + sizeof header, body.data(), body.size());
  if (!trailing.empty()) std::memcpy(at + sizeof header + body.size(), trailing.data(), trailing.size());
  if (producer_.publish(room)) eventfd_write(ring_doorbell_.get(), 1);
}

std::size_t WireClient::write_records(std::span<std::byte> bytes) {
  proto::ChannelHeader& header = session_->channel().header();
  const std::uint64_t tail = header.tail.load();
  bytes =
      bytes.first(std::min<std::uint64_t>(bytes.size(), proto::kRingBytes - std::min<std::uint64_t>(tail - header.head.load(), proto::kRingBytes)));
  std::size_t records = 0;
  for (std::span<std::byte> left = bytes; left.size() >= sizeof(proto::RecordHeader); ++records) {
    proto::RecordHeader record;
    std::memcpy(&record, left.data(), sizeof record);
    record.sequence = ++sequence_;
    std::memcpy(left.data(), &record, sizeof record);
    if (record.size_bytes < sizeof record || record.size_bytes % proto::kRecordAlignment != 0 || record.size_bytes > left.size()) break;
    left = left.subspan(record.size_bytes);
  }
  if (!bytes.empty()) std::memcpy(ring_.data() + tail % proto::kRingBytes, bytes.data(), bytes.size());
  header.tail.store(tail + bytes.size());
  return records;
}

broker::StreamSet::Issue WireClient::turn(bool dry) {
  if (session_->streams().has_other_places()) session_->streams().take_places();
  if (session_->may_read() && session_->channel().ring().has_records()) {
    const proto::RingConsumer::Batch batch = session_->channel().ring().copy_out(batch_);
    broker::dispatch_batch(*session_, std::span<const std::byte>(batch_.data(), batch.bytes));
    if (batch.fault != proto::RingFault::none) session_->fail("the ring", proto::to_string(batch.fault));
  }
  const bool gathers = is_short_of_time || session_->parts().stress.gather != 0;
  broker::StreamSet::Issue issue = session_->streams().issue(gathers);
  if (issue.expects_fence) issue = session_->streams().issue(gathers);
  session_->streams().own_borrowed();
  std::memset(batch_.data(), 0xee, batch_.size());  // whoever still looks into the batch is found out
  if (!session_->streams().settle_fences() && session_->streams().has_wanted_fences()) session_->streams().look_for_owed();
  if (dry) session_->streams().write_progress();
  (void)session_->streams().reap();
  (void)session_->poll_waiting();
  return issue;
}

proto::FunctionId WireClient::add_function(FakeFunction& function, std::uint32_t local_bytes) {
  auto loaded = std::make_unique<broker::LoadedFunction>();
  loaded->handle = reinterpret_cast<CUfunction>(&function);
  loaded->local_bytes = local_bytes;
  for (const auto& [offset, size] : function.layout()) {
    loaded->parameters.push_back({static_cast<std::uint32_t>(offset), static_cast<std::uint32_t>(size)});
    loaded->parameter_bytes = static_cast<std::uint32_t>(offset + size);
  }
  return add_function(std::move(loaded));
}

proto::FunctionId WireClient::add_function(std::unique_ptr<broker::LoadedFunction> loaded) {
  const auto id = proto::FunctionId::make(functions_++, 1);
  if (!session_->functions().insert(id, std::make_unique<broker::SessionFunction>(broker::SessionFunction{loaded.get()}))) throw std::bad_alloc();
  loaded_.push_back(std::move(loaded));
  return id;
}

proto::FunctionId WireClient::share_function(WireClient& other, proto::FunctionId function) {
  const auto id = proto::FunctionId::make(functions_++, 1);
  const proto::Known<broker::SessionFunction> known = other.session_->functions().find(function);
  if (!known || !session_->functions().insert(id, std::make_unique<broker::SessionFunction>(broker::SessionFunction{known->loaded})))
    throw std::bad_alloc();
  return id;
}

std::uint64_t WireClient::add_chunk(std::uint64_t size_bytes) {
  broker::MemoryMap::Chunk chunk;
  if (session_->memory().create_chunk(size_bytes, chunk) != CUDA_SUCCESS) throw std::bad_alloc();
  return chunk.address;
}

void WireClient::add_segment(proto::SegmentPurpose purpose, std::uint64_t size_bytes) {
  const std::uint64_t pinned = kPinnedLease + (session_->id() - 1) * kLeaseBytes;
  proto::FileDescriptor file = proto::create_memory_file("segment", size_bytes);
  std::uint64_t address = 0;
  if (!proto::seal(file, proto::Seal::size) ||
      session_->memory().segments().map(++segments_, {purpose, proto::has_own_address(purpose) ? pinned : 0}, 0, file, address) != CUDA_SUCCESS) {
    throw std::bad_alloc();
  }
  if (!proto::has_own_address(purpose)) executor_.fake.oracle.give(address, session_->id());
}

proto::ExternalMemoryId WireClient::add_external(std::uint32_t index, std::uint64_t size_bytes) {
  const auto id = proto::ExternalMemoryId::make(index, 1);
  proto::FileDescriptor file = proto::create_memory_file("external", size_bytes);
  executor_.fake.oracle.give_file(file.get(), session_->id());
  const broker::ExternalMemory::Request request{size_bytes, size_bytes, CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, 0};
  if (session_->memory().external().import(id, request, std::move(file)) != CUDA_SUCCESS) throw std::bad_alloc();
  return id;
}

std::uint64_t WireClient::map_external(proto::ExternalMemoryId memory, std::uint64_t size_bytes) {
  auto part = session_->checked().part(proto::ExternalMapRecord{memory, 0, size_bytes, 0, 0});
  std::uint64_t address = 0;
  if (!part || session_->memory().external().map(*part, address) != CUDA_SUCCESS) throw std::bad_alloc();
  return address;
}

proto::ModuleId WireClient::add_module(std::uint32_t index, std::uint64_t variable, std::uint64_t size_bytes, bool is_shared) {
  const auto id = proto::ModuleId::make(index, 1);
  const auto image = std::make_shared<broker::LoadedImage>();
  image->has_writable_globals = !is_shared;
  image->globals[std::string(kVariableName)] = {variable, size_bytes};
  AddressOracle& oracle = executor_.fake.oracle;
  if (!is_shared) oracle.give_variable(variable, size_bytes, session_->id());
  auto module = std::make_unique<broker::SessionModule>();
  module->image = image;
  module->use = broker::ImageUse(new broker::ImageRef(image), [&oracle, variable](const broker::ImageRef* used) {
    delete used;
    oracle.take_variable(variable);
  });
  if (!session_->modules().insert(id, std::move(module))) throw std::bad_alloc();
  return id;
}

void WireClient::post_lookup(proto::ModuleId module, std::uint16_t slot) {
  call(proto::GlobalLookupRecord{module}, slot, std::as_bytes(std::span(kVariableName)));
}

proto::ArrayId WireClient::add_array(std::uint32_t index, const CUDA_ARRAY3D_DESCRIPTOR& descriptor) {
  const auto id = proto::ArrayId::make(index, 1);
  broker::SessionArray array;
  array.array = executor_.fake.make_array(descriptor);
  array.shape = descriptor;
  if (!session_->arrays().add(id, array)) throw std::bad_alloc();
  return id;
}

proto::StreamId WireClient::add_stream(std::uint32_t index, unsigned flags) {
  const auto id = proto::StreamId::make(index, 1);
  post(proto::StreamCreateRecord{flags, 0}, id);
  return id;
}

proto::EventId WireClient::add_event(std::uint32_t index, unsigned flags) {
  const auto id = proto::EventId::make(index, 1);
  post(proto::EventCreateRecord{id, flags, 0});
  return id;
}

void WireClient::post_launch(proto::FunctionId function, std::uint64_t argument, proto::StreamId stream, std::uint32_t grid_x) {
  proto::LaunchRecord launch{};
  launch.function = function;
  launch.grid_x = grid_x;
  launch.grid_y = launch.grid_z = launch.block_x = launch.block_y = launch.block_z = 1;
  launch.parameter_bytes = 8;
  post(launch, stream, std::as_bytes(std::span(&argument, 1)));
}

bool eventually(const std::function<bool()>& holds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (std::chrono::steady_clock::now() < end) {
    if (holds()) return true;
    usleep(200);
  }
  return holds();
}

}  // namespace mpsshim::test
