// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/stream_queue.hpp"

#include <algorithm>
#include <array>
#include <mutex>
#include <utility>

#include "broker/executor/quiet_window.hpp"
#include "broker/executor/session_graph.hpp"

namespace mpsshim::broker {

namespace {

std::size_t cost_bytes(const StreamOp& op) {
  if (const auto* launch = std::get_if<LaunchOp>(&op)) return sizeof(StreamOp) + launch->data_bytes();
  const auto* graph = std::get_if<GraphOp>(&op);
  return sizeof(StreamOp) + (graph != nullptr ? graph->update_bytes : 0);
}

// What the quiet window knows an operation's kernels by, and the local memory that they need; nullptr where it launches none.
const void* function_of(const StreamOp& op) {
  if (const auto* launch = std::get_if<LaunchOp>(&op)) return launch->function->handle;
  const auto* graph = std::get_if<GraphOp>(&op);
  return graph != nullptr ? graph->graph->identity() : nullptr;
}

std::uint32_t local_bytes_of(const StreamOp& op) {
  if (const auto* launch = std::get_if<LaunchOp>(&op)) return launch->function->local_bytes;
  const auto* graph = std::get_if<GraphOp>(&op);
  return graph != nullptr ? graph->graph->local_bytes() : 0;
}

}  // namespace

StreamQueue::StreamQueue(const IssueContext& context, QueuedTotal& total, std::uint32_t fence_index, bool is_blocking,
                         std::unique_ptr<PooledStream> stream)
    : context_(context),
      total_(total),
      fence_index_(fence_index),
      is_blocking_(is_blocking),
      stream_(std::move(stream)),
      chains_(context.parts),
      limit_(context.parts.first_in_flight) {
  probes_ = word().probe_number.load(std::memory_order_relaxed);
  appended_ = issued_ = written_ = known_done_.position = word().issued.load(std::memory_order_relaxed);
  word().launches.store(0, std::memory_order_relaxed);
  word().chained.store(0, std::memory_order_relaxed);
  word().launched.store(issued_, std::memory_order_relaxed);
  word().function.store(0, std::memory_order_relaxed);
}

void StreamQueue::append(StreamOp op) {
  ++appended_;
  ++total_.records;
  total_.bytes += cost_bytes(op);
  ops_.push_back(std::move(op));
  has_expected_fence_ = false;
  ++borrowed_;
}

void StreamQueue::own_borrowed() {
  for (std::size_t left = std::min(borrowed_, ops_.size()); left > 0; --left) {
    if (auto* launch = std::get_if<LaunchOp>(&ops_[ops_.size() - left])) launch->own();
  }
  borrowed_ = 0;
}

void StreamQueue::pop_head() {
  --total_.records;
  total_.bytes -= cost_bytes(ops_.front());
  ops_.pop_front();
}

void StreamQueue::drop_queued() {
  while (!ops_.empty()) pop_head();
  borrowed_ = 0;
  issue_singly_ = 0;
  appended_ = issued_ + (in_window_ ? 1 : 0);
}

void StreamQueue::finish() {
  chains_.clear();
  context_.parts.streams.give_back(std::move(stream_));
}

bool StreamQueue::has_completed(std::uint32_t position) const {
  return is_finished() || progress_reached(word().completed.load(std::memory_order_acquire), position);
}

void StreamQueue::learn_progress() {
  const std::uint32_t completed = word().completed.load(std::memory_order_acquire);
  Written asked{};
  while (!under_way_.empty() && progress_reached(completed, under_way_.front().position)) {
    known_done_ = under_way_.front();
    under_way_.pop_front();
    if (known_done_.when != FlightLimit::Clock::time_point{}) asked = known_done_;
  }
  // Seen late, where nobody was waiting for it, it would say nothing.
  if (lacked_credit_ && asked.in_flight != 0) limit_.learn(FlightLimit::Clock::now() - asked.when, asked.in_flight);
}

bool StreamQueue::has_credit() {
  limit_.set_crowded(context_.parts.is_crowded.load(std::memory_order_relaxed));
  if (is_within_credit()) return true;
  learn_progress();
  lacked_credit_ = !is_within_credit();
  return !lacked_credit_;
}

// A fence that arrives before its launches are issued goes with them, and the second submission is saved: worth one round of the worker.
bool StreamQueue::expects_fence() {
  if (!rhythm_.is_short() || rhythm_.is_short_and_alone() || has_expected_fence_) return false;
  if (ops_.size() > kLongestExactChain || !std::holds_alternative<LaunchOp>(ops_.back())) return false;
  has_expected_fence_ = true;
  return true;
}

std::optional<StreamQueue::Stop> StreamQueue::blocked_by_head() {
  const StreamOp& head = ops_.front();
  const void* const function = function_of(head);
  if (context_.parts.window.holds(stream_->progress_index, function)) return Stop::held;
  if (const auto* graph = std::get_if<GraphOp>(&head)) {
    if (!graph->graph->is_turn(*graph)) return Stop::event;
  } else if (function != nullptr && expects_fence()) {
    return Stop::fence;
  } else if (const auto* wait = std::get_if<WaitOp>(&head)) {
    if (!wait->point->is_issued) return Stop::event;
  } else if (const auto* host = std::get_if<HostOp>(&head)) {
    // Acquire: what the function has written is seen by the work behind it. Pairs with FenceMemory::release_host.
    const std::uint32_t returned = context_.channel.fence(fence_index_).host_value.load(std::memory_order_acquire);
    if (!proto::fence_reached(returned, host->number)) return Stop::host;
  } else if (auto* value = std::get_if<ValueWaitOp>(&ops_.front())) {
    if (!has_value(*value)) return Stop::value;
  }
  if (function != nullptr && local_bytes_of(head) > context_.parts.local_bytes_high_water.load(std::memory_order_relaxed)) return Stop::needs_window;
  return std::nullopt;
}

StreamQueue::Stop StreamQueue::issue(std::uint32_t budget) {
  const std::uint32_t first = submissions_;
  while (!in_window_ && !ops_.empty()) {
    if (const std::optional<Stop> stop = blocked_by_head()) {
      if (*stop == Stop::held || *stop == Stop::value) write_progress();  // what it waits for is to be seen
      return *stop;
    }
    if (!has_credit()) {
      write_progress();  // or the GPU would get on and nobody would know
      return Stop::credit;
    }
    if (submissions_ - first >= budget) return Stop::budget;
    issue_head();
    if (is_progress_due()) write_progress();
  }
  return in_window_ ? Stop::in_window : Stop::empty;
}

// Raised before the driver gets the work: whoever reads the table after a crash finds the session busy.
void StreamQueue::begin(std::uint32_t operations) {
  issued_ += operations;
  word().issued.store(issued_, std::memory_order_release);
}

// The same for work that may write to memory.
void StreamQueue::begin_change(std::uint32_t operations) {
  begin(operations);
  context_.variables.note_change();
}

// Before begin(), whose store makes both seen: for whoever asks after a fault which kernel it may have been.
void StreamQueue::note_kernel(std::uint32_t position, const LoadedFunction& function) {
  word().launched.store(position, std::memory_order_relaxed);
  word().function.store(function.name_offset.load(std::memory_order_relaxed), std::memory_order_relaxed);
}

void StreamQueue::issue_head() {
  if (std::holds_alternative<LaunchOp>(ops_.front())) return issue_launches();
  StreamOp& head = ops_.front();
  if (const auto* graph = std::get_if<GraphOp>(&head)) {
    issue_graph(*graph);
    return pop_head();
  }
  if (std::holds_alternative<CopyOp>(head) || std::holds_alternative<CopyBoxOp>(head) || std::holds_alternative<FillOp>(head) || std::holds_alternative<ValueWriteOp>(head) ||
      std::holds_alternative<ArrayCopyOp>(head)) {
    begin_change(1);
    context_.parts.window.note_launch(stream_->progress_index, nullptr);
  } else {
    begin(1);
  }
  if (auto* copy = std::get_if<CopyOp>(&head))
    issue_copy(*copy);
  else if (auto* box = std::get_if<CopyBoxOp>(&head))
    issue_copy_box(*box);
  else if (auto* fill = std::get_if<FillOp>(&head))
    issue_fill(*fill);
  else if (auto* record = std::get_if<RecordOp>(&head))
    issue_record(*record);
  else if (auto* wait = std::get_if<WaitOp>(&head))
    issue_wait(*wait);
  else if (auto* fence = std::get_if<FenceOp>(&head))
    issue_fence(*fence);
  else if (auto* write = std::get_if<ValueWriteOp>(&head))
    issue_write(*write);
  else if (auto* array_copy = std::get_if<ArrayCopyOp>(&head))
    issue_array_copy(*array_copy);
  pop_head();
}

std::size_t StreamQueue::plain_launches_at_head() const {
  const std::uint32_t high_water = context_.parts.local_bytes_high_water.load(std::memory_order_relaxed);
  const std::size_t most = limit_.longest_chain();
  if (context_.parts.window.is_very_long(std::get<LaunchOp>(ops_.front()).function->handle)) return 0;  // one at a time
  std::size_t count = 0;
  for (const StreamOp& op : ops_) {
    const auto* launch = std::get_if<LaunchOp>(&op);
    if (launch == nullptr || !launch->is_plain() || launch->function->local_bytes > high_water || ++count == most) break;
  }
  return count;
}

// Launches that may be in a chain try to; one that may not, or whose chain the driver has refused, is issued by itself.
void StreamQueue::issue_launches() {
  if (issue_singly_ == 0) {
    const std::size_t run = plain_launches_at_head();
    if (run > 0 && issue_chain(chain_length(run))) return;
    issue_singly_ = run > 1 ? chain_length(run) : 1;
  }
  --issue_singly_;
  context_.parts.window.note_launch(stream_->progress_index, std::get<LaunchOp>(ops_.front()).function->handle);
  note_kernel(issued_ + 1, *std::get<LaunchOp>(ops_.front()).function);
  begin_change(1);
  context_.check(launch(std::get<LaunchOp>(ops_.front())), "cuLaunchKernel");
  submitted(1);
  count_launches(1, false);
  pop_head();
}

// The fence behind the run goes with its last chain, unless memory operations bring it sooner; progress that is due goes with any. So does
// that of a chain behind which nothing is queued, unless a fence will follow soon: written later, by a graph of its own, it would hold up the
// streams on the same connection until the chain has ended.
bool StreamQueue::issue_chain(std::size_t length) {
  const auto* fence = length < ops_.size() ? std::get_if<FenceOp>(&ops_[length]) : nullptr;
  if (fence != nullptr && prefers_memory_operations()) fence = nullptr;
  std::array<const LaunchOp*, kMaxChain> launches;
  for (std::size_t i = 0; i < length; ++i) launches[i] = &std::get<LaunchOp>(ops_[i]);
  const auto operations = static_cast<std::uint32_t>(length + (fence != nullptr ? 1 : 0));
  const std::uint32_t before = issued_;
  context_.parts.window.note_launch(stream_->progress_index, launches[length - 1]->function->handle);
  note_kernel(before + static_cast<std::uint32_t>(length), *launches[length - 1]->function);
  begin_change(operations);
  const bool is_last = length == ops_.size() && !rhythm_.is_short();
  const bool has_words = fence != nullptr || is_progress_due() || is_last || length > kLongestExactChain;
  if (has_words && fence == nullptr) note_rhythm();
  const WordWrites writes = words(fence != nullptr ? std::optional(fence->value) : std::nullopt);
  const ScopedCall call(context_.session, "cuGraphLaunch", {"launches", length});
  if (!chains_.launch(stream_->handle, std::span(launches.data(), length), has_words ? &writes : nullptr)) {
    issued_ = before;  // the table may stay ahead for the moment: the launches follow at once
    return false;
  }
  submitted(1);
  count_launches(static_cast<std::uint32_t>(length), true);
  if (has_words) progress_submitted();
  for (std::uint32_t i = 0; i < operations; ++i) pop_head();
  return true;
}

void StreamQueue::count_launches(std::uint32_t launches, bool are_chained) {
  StreamProgress& counts = word();  // written by nobody else
  counts.launches.store(counts.launches.load(std::memory_order_relaxed) + launches, std::memory_order_relaxed);
  if (are_chained) counts.chained.store(counts.chained.load(std::memory_order_relaxed) + launches, std::memory_order_relaxed);
}

CUresult StreamQueue::launch(const LaunchOp& launch) {
  const ScopedCall call(context_.session, "cuLaunchKernel");
  const std::lock_guard lock(context_.parts.issue_lock);
  if (launch.attribute_count > 0) return launch_with_attributes(launch);
  void** parameters = parameter_addresses(launch, addresses_);
  const CUfunction function = launch.function->handle;
  const auto& [grid_x, grid_y, grid_z] = launch.grid;
  const auto& [block_x, block_y, block_z] = launch.block;
  if (launch.is_cooperative) {
    return driver()->cuLaunchCooperativeKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, launch.shared_bytes, stream_->handle,
                                               parameters);
  }
  return driver()->cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, launch.shared_bytes, stream_->handle, parameters,
                                  nullptr);
}

CUresult StreamQueue::launch_with_attributes(const LaunchOp& launch) {
  std::vector<CUlaunchAttribute> attributes(launch.attribute_count);
  std::memcpy(attributes.data(), launch.data + launch.parameter_bytes, attributes.size() * sizeof(CUlaunchAttribute));
  if (launch.is_cooperative) {
    CUlaunchAttribute cooperative{};
    cooperative.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
    cooperative.value.cooperative = 1;
    attributes.push_back(cooperative);
  }
  CUlaunchConfig config{};
  config.gridDimX = launch.grid[0];
  config.gridDimY = launch.grid[1];
  config.gridDimZ = launch.grid[2];
  config.blockDimX = launch.block[0];
  config.blockDimY = launch.block[1];
  config.blockDimZ = launch.block[2];
  config.sharedMemBytes = launch.shared_bytes;
  config.hStream = stream_->handle;
  config.attrs = attributes.data();
  config.numAttrs = static_cast<unsigned>(attributes.size());
  return driver()->cuLaunchKernelEx(&config, launch.function->handle, parameter_addresses(launch, addresses_), nullptr);
}

CUresult StreamQueue::launch_graph(const GraphOp& op) {
  const ScopedCall call(context_.session, "cuGraphLaunch");
  return op.graph->launch(op, stream_->handle);
}

void StreamQueue::issue_graph(const GraphOp& op) {
  context_.parts.window.note_launch(stream_->progress_index, op.graph->identity());
  if (const LoadedFunction* kernel = op.graph->last_kernel()) note_kernel(issued_ + 1, *kernel);
  begin_change(1);
  context_.check(launch_graph(op), "cuGraphLaunch");
  submitted(1);
  op.graph->note_issued(op);
}

std::shared_ptr<StreamOp> StreamQueue::take_window_launch() {
  window_op_ = std::make_shared<StreamOp>(std::move(ops_.front()));  // what its cost is reckoned by stays behind
  if (auto* launch = std::get_if<LaunchOp>(window_op_.get())) launch->own();
  pop_head();
  in_window_ = true;
  return window_op_;
}

// The queue stands still, so the worker changes nothing that is read here; its account is settled by window_launch_done().
void StreamQueue::launch_in_window(const StreamOp& op) {
  const auto* plain = std::get_if<LaunchOp>(&op);
  const LoadedFunction* kernel = plain != nullptr ? plain->function : std::get<GraphOp>(op).graph->last_kernel();
  note_kernel(issued_ + 1, *kernel);
  word().issued.store(issued_ + 1, std::memory_order_release);
  context_.variables.note_change();
  const CUresult result = plain != nullptr ? launch(*plain) : launch_graph(std::get<GraphOp>(op));
  if (context_.check(result, plain != nullptr ? "cuLaunchKernel" : "cuGraphLaunch") != CUDA_SUCCESS) return;
  std::atomic<std::uint32_t>& high_water = context_.parts.local_bytes_high_water;
  std::uint32_t known = high_water.load(std::memory_order_relaxed);
  while (known < local_bytes_of(op) && !high_water.compare_exchange_weak(known, local_bytes_of(op))) {
  }
}

void StreamQueue::window_launch_done() {
  begin(1);
  submitted(1);
  in_window_ = false;
  if (const auto* graph = std::get_if<GraphOp>(window_op_.get())) graph->graph->note_issued(*graph);
  window_op_ = nullptr;
}

void StreamQueue::issue_copy(const CopyOp& copy) {
  const ScopedCall call(context_.session, "cuMemcpyAsync", {"bytes", copy.size_bytes});
  const std::lock_guard lock(context_.parts.issue_lock);
  const CUstream stream = stream_->handle;
  CUresult result = CUDA_SUCCESS;
  switch (copy.kind) {
    case CopyKind::device_to_device: result = driver()->cuMemcpyDtoDAsync_v2(copy.destination, copy.source, copy.size_bytes, stream); break;
    case CopyKind::host_to_device:
      result = driver()->cuMemcpyHtoDAsync_v2(copy.destination, reinterpret_cast<const void*>(copy.source), copy.size_bytes, stream);
      break;
    case CopyKind::device_to_host:
      result = driver()->cuMemcpyDtoHAsync_v2(reinterpret_cast<void*>(copy.destination), copy.source, copy.size_bytes, stream);
      break;
    case CopyKind::host_to_host: result = driver()->cuMemcpyAsync(copy.destination, copy.source, copy.size_bytes, stream); break;
  }
  context_.check(result, "cuMemcpyAsync");
  submitted(1);
}

void StreamQueue::issue_copy_box(const CopyBoxOp& copy) {
  const ScopedCall call(context_.session, "cuMemcpy3DAsync", {"bytes", copy.width * copy.height * copy.depth});
  const auto describe = [&](auto& description) {
    const auto host = [](const CopyBoxOp::Side& side) { return side.is_host ? reinterpret_cast<void*>(side.address) : nullptr; };
    const auto type = [](const CopyBoxOp::Side& side) { return side.is_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE; };
    description.srcMemoryType = type(copy.source);
    description.srcHost = host(copy.source);
    description.srcDevice = copy.source.is_host ? 0 : copy.source.address;
    description.srcPitch = copy.source.pitch;
    description.dstMemoryType = type(copy.destination);
    description.dstHost = host(copy.destination);
    description.dstDevice = copy.destination.is_host ? 0 : copy.destination.address;
    description.dstPitch = copy.destination.pitch;
    description.WidthInBytes = copy.width;
    description.Height = copy.height;
  };
  CUresult result = CUDA_SUCCESS;
  const std::lock_guard lock(context_.parts.issue_lock);
  if (copy.depth == 1) {
    CUDA_MEMCPY2D plane{};
    describe(plane);
    result = driver()->cuMemcpy2DAsync_v2(&plane, stream_->handle);
  } else {
    CUDA_MEMCPY3D volume{};
    describe(volume);
    volume.srcHeight = copy.source.rows;
    volume.dstHeight = copy.destination.rows;
    volume.Depth = copy.depth;
    result = driver()->cuMemcpy3DAsync_v2(&volume, stream_->handle);
  }
  context_.check(result, "cuMemcpy3DAsync");
  submitted(1);
}

void StreamQueue::issue_fill(const FillOp& fill) {
  const ScopedCall call(context_.session, "cuMemsetAsync", {"bytes", fill.width * fill.height * fill.element_bytes});
  const std::lock_guard lock(context_.parts.issue_lock);
  const CUstream stream = stream_->handle;
  const bool is_flat = fill.height == 1;
  CUresult result = CUDA_SUCCESS;
  switch (fill.element_bytes) {
    case 1: {
      const auto value = static_cast<unsigned char>(fill.value);
      result = is_flat ? driver()->cuMemsetD8Async(fill.destination, value, fill.width, stream)
                       : driver()->cuMemsetD2D8Async(fill.destination, fill.pitch_bytes, value, fill.width, fill.height, stream);
      break;
    }
    case 2: {
      const auto value = static_cast<unsigned short>(fill.value);
      result = is_flat ? driver()->cuMemsetD16Async(fill.destination, value, fill.width, stream)
                       : driver()->cuMemsetD2D16Async(fill.destination, fill.pitch_bytes, value, fill.width, fill.height, stream);
      break;
    }
    default:
      result = is_flat ? driver()->cuMemsetD32Async(fill.destination, fill.value, fill.width, stream)
                       : driver()->cuMemsetD2D32Async(fill.destination, fill.pitch_bytes, fill.value, fill.width, fill.height, stream);
  }
  context_.check(result, "cuMemsetAsync");
  submitted(1);
}

// Waits on the GPU come behind the fence: what the host learns from work that has waited, it finds in the stream's word as well. The time is
// that of the work, so a timed event has a second one behind the fence.
void StreamQueue::issue_record(RecordOp& record) {
  EventPoint* const point = record.point.get();
  const bool is_timed = point != nullptr && point->has_timing && record.has_fence;
  if (is_timed) record_event(point->handle);
  if (record.has_fence) write_fence(record.fence_value);
  if (point == nullptr) return;
  if (is_timed && !point->behind) context_.check(context_.parts.events.take(false, point->behind), "cuEventCreate");
  if (!is_timed || point->behind) record_event(point->awaited());
  point->is_issued = true;  // even if it failed: who waits for it must not wait for ever
}

void StreamQueue::record_event(CUevent event) {
  const std::lock_guard lock(context_.parts.issue_lock);
  context_.check(driver()->cuEventRecord(event, stream_->handle), "cuEventRecord");
  submitted(1);
}

void StreamQueue::issue_wait(const WaitOp& wait) {
  const std::lock_guard lock(context_.parts.issue_lock);
  context_.check(driver()->cuStreamWaitEvent(stream_->handle, wait.point->awaited(), CU_EVENT_WAIT_DEFAULT), "cuStreamWaitEvent");
  submitted(1);
}

// Where words that cover all of the work are under way or there, the fence waits for them here: the GPU has nothing to do for it. Not so for
// short work, whose client hears from the GPU sooner than from this thread, which has others to serve.
void StreamQueue::issue_fence(const FenceOp& fence) {
  const bool is_covered = written_ + 1 == issued_;
  if (!is_covered || (rhythm_.is_short() && !has_completed(written_))) return write_fence(fence.value);
  late_fences_.push_back({issued_, fence.value});
  progress_submitted();
  settle_fences();
}

void StreamQueue::write_fence(std::uint32_t value) {
  context_.check(write_words(value), "writing a fence");
  progress_submitted();
}

// The GPU may write both words at any moment, for work behind the fence; what it writes then covers the fence, and stays.
bool StreamQueue::settle_fences() {
  while (!late_fences_.empty() && !is_finished()) {
    const LateFence& late = late_fences_.front();
    std::uint32_t before = word().completed.load(std::memory_order_acquire);
    if (!progress_reached(before, late.position - 1)) return false;
    std::atomic<std::uint32_t>& fence = context_.channel.fence(fence_index_).value;
    std::uint32_t seen = fence.load(std::memory_order_relaxed);
    while (!proto::fence_reached(seen, late.value) && !fence.compare_exchange_weak(seen, late.value, std::memory_order_release)) {
    }
    if (before == late.position - 1) word().completed.compare_exchange_strong(before, late.position, std::memory_order_release);
    late_fences_.pop_front();
  }
  return true;
}

void StreamQueue::write_progress() {
  if (!has_unwritten_progress() || is_finished()) return;
  context_.check(write_words(std::nullopt), "writing progress");
  progress_submitted();
}

// The clock is read for a stream with much in flight only: others never come near the limit.
void StreamQueue::progress_submitted() {
  const std::uint32_t in_flight = issued_ - known_done_.position;
  written_ = issued_;
  if (in_flight < (limit_.operations() + 1) / 2) {
    under_way_.push_back({written_, submissions_});
  } else {
    under_way_.push_back({written_, submissions_, in_flight, FlightLimit::Clock::now()});
  }
}

WordWrites StreamQueue::words(std::optional<std::uint32_t> fence_value) const {
  WordWrites words;
  words.progress = context_.parts.progress.completed_address(stream_->progress_index);
  words.progress_value = issued_;
  if (fence_value) {
    words.fence = context_.channel.fence_address(fence_index_);
    words.fence_value = *fence_value;
  }
  return words;
}

void StreamQueue::note_rhythm() {
  rhythm_.note(context_.parts.last_writer.again(stream_->progress_index), [this] { return has_completed(written_); });
}

bool StreamQueue::prefers_memory_operations() {
  ExecutorParts& parts = context_.parts;
  if (parts.writer_function == nullptr || parts.chains_refused.load(std::memory_order_relaxed)) return true;
  note_rhythm();
  return rhythm_.is_short_and_alone();
}

CUresult StreamQueue::write_words(std::optional<std::uint32_t> fence_value) {
  const WordWrites writes = words(fence_value);
  if (!prefers_memory_operations() && chains_.launch(stream_->handle, {}, &writes)) {
    submitted(1);
    return CUDA_SUCCESS;
  }
  return write_by_memory_operations(writes);
}

CUresult StreamQueue::write_by_memory_operations(const WordWrites& words) {
  ExecutorParts& parts = context_.parts;
  const std::lock_guard lock(parts.issue_lock);
  const auto write = [&](CUdeviceptr address, std::uint32_t value) {
    submitted(1);
    return driver()->cuStreamWriteValue32_v2(stream_->handle, address, value, CU_STREAM_WRITE_VALUE_DEFAULT);
  };
  if (words.fence == 0) return write(words.progress, words.progress_value);
  if (!parts.batches_refused.load(std::memory_order_relaxed)) {
    CUstreamBatchMemOpParams writes[2] = {};
    for (CUstreamBatchMemOpParams& one : writes) one.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    writes[0].writeValue.address = words.fence;
    writes[0].writeValue.value = words.fence_value;
    writes[1].writeValue.address = words.progress;
    writes[1].writeValue.value = words.progress_value;
    const CUresult result = driver()->cuStreamBatchMemOp_v2(stream_->handle, 2, writes, 0);
    if (result != CUDA_ERROR_NOT_SUPPORTED) {
      submitted(1);
      return result;
    }
    parts.batches_refused.store(true, std::memory_order_relaxed);
  }
  const CUresult result = write(words.fence, words.fence_value);
  return result != CUDA_SUCCESS ? result : write(words.progress, words.progress_value);
}

}  // namespace mpsshim::broker
