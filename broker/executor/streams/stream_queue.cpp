// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/streams/stream_queue.hpp"

#include <algorithm>
#include <array>
#include <mutex>
#include <utility>

#include "broker/executor/graphs/session_graph.hpp"
#include "broker/executor/window/quiet_window.hpp"

namespace mpsshim::broker {

namespace {

std::size_t cost_bytes(const StreamOp& op) {
  if (const auto* launch = std::get_if<LaunchOp>(&op)) return sizeof(StreamOp) + launch->data_bytes();
  const auto* graph = std::get_if<GraphOp>(&op);
  return sizeof(StreamOp) + (graph != nullptr ? graph->update_bytes : 0);
}

// What the quiet window knows an operation's kernels by; nullptr where it launches none.
const void* function_of(const StreamOp& op) {
  if (const auto* launch = std::get_if<LaunchOp>(&op)) return launch->function->handle;
  const auto* graph = std::get_if<GraphOp>(&op);
  return graph != nullptr ? graph->graph->identity() : nullptr;
}

}  // namespace

StreamQueue::StreamQueue(const IssueContext& context, QueuedTotal& total, std::uint32_t fence_index, bool is_blocking,
                         std::unique_ptr<PooledStream> stream)
    : context_(context),
      total_(total),
      fence_index_(fence_index),
      is_blocking_(is_blocking),
      stream_(std::move(stream)),
      chains_(context.parts, stream_->green ? stream_->green->chains() : context.parts.chain_pool),
      account_(word().issued.load(std::memory_order_relaxed), context.parts.first_in_flight),
      owed_(context.channel.fence(fence_index)) {
  probes_ = word().probe_number.load(std::memory_order_relaxed);
  appended_ = account_.issued();
  word().held.store(0, std::memory_order_relaxed);
  word().counts.store(context.counts, std::memory_order_relaxed);
  word().launches.store(0, std::memory_order_relaxed);
  word().chained.store(0, std::memory_order_relaxed);
  word().launched.store(account_.issued(), std::memory_order_relaxed);
  word().wrote.store(account_.issued(), std::memory_order_relaxed);
  word().touched.store(account_.issued(), std::memory_order_relaxed);
  word().probes.store(probes_, std::memory_order_relaxed);
  word().kinds.store(0, std::memory_order_relaxed);
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
  notes.arrows.forget();
  borrowed_ = 0;
  issue_singly_ = 0;
  appended_ = account_.issued() + (in_window_ ? 1 : 0);
}

void StreamQueue::finish() {
  chains_.clear();
  aside_ = nullptr;
  context_.parts.streams.give_back(std::move(stream_));
}

// The driver's refusal leaves it where it is: its work goes on there.
bool StreamQueue::change_place(const GreenContextRef& green, int priority) {
  if (is_finished() || (stream_->priority == priority && stream_->green == green)) return true;
  if (in_window_ || !has_completed(account_.issued()) || is_probing() || has_output() || has_late_fences() || !move_to(nullptr)) return false;
  const GreenContextRef before = stream_->green;  // whose pool the chains go back to
  const CUresult result = context_.parts.streams.change(*stream_, green, priority);
  if (result == CUDA_SUCCESS) {
    if (before != green) chains_.move_to(green != nullptr ? green->chains() : context_.parts.chain_pool);
  } else if (context_.parts.faults.check(result, context_.session, "cuStreamCreateWithPriority") != CUDA_SUCCESS) {
    log_error("Session {}: a stream keeps its multiprocessors and its priority, because the driver makes no other: {}", context_.session,
              context_.parts.driver.describe(result));
  }
  return true;
}

// What the stream it leaves has done has ended, so nothing is to be ordered; what is queued goes into the next one.
bool StreamQueue::move_to(SideContext* side) {
  if (side == (aside_ ? &aside_->context() : nullptr) || is_finished() || stream_->green != nullptr || stream_->priority != 0 ||
      (side != nullptr && stays_))
    return true;
  if (in_window_ || !has_completed(account_.issued()) || is_probing() || has_output() || has_late_fences()) return false;
  std::unique_ptr<SideStream> next = side != nullptr ? side->take() : nullptr;
  if (side != nullptr && !next) return false;
  aside_ = std::move(next);
  chains_.move_to(side != nullptr ? side->chains() : context_.parts.chain_pool);
  return true;
}

bool StreamQueue::has_completed(std::uint32_t position) const {
  return is_finished() || progress_reached(word().completed.load(std::memory_order_acquire), position);
}

// A fence that arrives before its launches are issued goes with them, and the second submission is saved: worth one round of the worker.
bool StreamQueue::expects_fence() {
  if (!rhythm_.is_short() || rhythm_.is_short_and_alone() || has_expected_fence_) return false;
  if (ops_.size() > kLongestExactChain || !std::holds_alternative<LaunchOp>(ops_.back())) return false;
  has_expected_fence_ = true;
  return true;
}

// Not everything is launched aside: what the driver keeps for a context (local memory, what kernels print) and what was made in the executor's own
// (clients' graphs) stays there. False: its stream has yet to leave the side context.
bool StreamQueue::has_left_for(const StreamOp& head) {
  const auto* launch = std::get_if<LaunchOp>(&head);
  const bool may_be_aside = launch != nullptr ? launch->may_be_in_chain() && !launch->function->prints && launch->function->local_bytes == 0
                                              : !std::holds_alternative<GraphOp>(head);
  if (may_be_aside) return true;
  stays_ = true;
  return move_to(nullptr);
}

// Nothing but launches that may be in a chain, and fewer than can be cut where the program is the same again.
bool StreamQueue::gathers() {
  const bool may_grow =
      is_short_of_time_ && ops_.size() <= kLongestExactChain && !account_.is_progress_due() && chained_launches_at_head() == ops_.size();
  return gathering_.waits(may_grow, [] { return Gathering::Clock::now(); });
}

std::optional<StreamQueue::Stop> StreamQueue::blocked_by_head() {
  const StreamOp& head = ops_.front();
  const void* const function = function_of(head);
  if (aside_ && !has_left_for(head)) [[unlikely]]
    return Stop::held;
  if (context_.parts.window.holds(stream_->progress_index, function)) return Stop::held;
  if ((has_output() || may_print(head)) && waits_for_output(head)) [[unlikely]]
    return Stop::output;
  if (const auto* graph = std::get_if<GraphOp>(&head)) {
    if (!graph->graph->is_turn(*graph)) return Stop::event;
  } else if (function != nullptr && expects_fence()) {
    return Stop::fence;
  } else if (function != nullptr && gathers()) {
    return Stop::more;
  } else if (const auto* wait = std::get_if<WaitOp>(&head)) {
    if (!wait->point->is_issued) return Stop::event;
  } else if (const auto* host = std::get_if<HostOp>(&head)) {
    // Acquire: what the function has written is seen by the work behind it. Pairs with FenceMemory::release_host.
    const std::uint32_t returned = context_.channel.fence(fence_index_).host_value.load(std::memory_order_acquire);
    if (!proto::fence_reached(returned, host->number)) return Stop::host;
  } else if (auto* value = std::get_if<ValueWaitOp>(&ops_.front())) {
    if (!has_value(*value)) return Stop::value;
  } else if (const auto* shared = std::get_if<SharedWaitOp>(&head)) {
    if (!shared->is_over()) return Stop::value;
  }
  if (function != nullptr && local_bytes_of(head) > local_bytes_high_water().load(std::memory_order_relaxed)) return Stop::needs_window;
  return std::nullopt;
}

StreamQueue::Stop StreamQueue::issue(std::uint32_t budget, bool is_short_of_time) {
  // Nothing is gained with a client that waits after every few launches.
  is_short_of_time_ = is_short_of_time && (account_.has_long_runs() || context_.parts.stress.gather != 0);
  const std::uint32_t first = account_.submissions();
  while (!in_window_ && !ops_.empty()) {
    if (const std::optional<Stop> stop = blocked_by_head()) {
      if (*stop == Stop::held || *stop == Stop::value || *stop == Stop::output) write_progress();  // what it waits for is to be seen
      return *stop;
    }
    if (!has_credit()) {
      write_progress();  // or the GPU would get on and nobody would know
      return Stop::credit;
    }
    if (account_.submissions() - first >= budget) return Stop::budget;
    issue_head();
    if (account_.is_progress_due()) write_progress();
  }
  return in_window_ ? Stop::in_window : Stop::empty;
}

// Raised before the driver gets the work: whoever reads the table after a crash finds the session busy.
void StreamQueue::begin(std::uint32_t operations) {
  account_.issue(operations);
  word().issued.store(account_.issued(), std::memory_order_release);
}

void StreamQueue::begin_kernel(const LoadedFunction& kernel) {
  begin(1);
  if (!context_.variables.may_write(kernel)) [[likely]]
    return;
  note_writer(account_.issued());
  context_.variables.note_launch(kernel);
}

// Before the work is counted as one that may write to variables (SessionVariables): whoever sees the count finds it under way. Behind begin().
void StreamQueue::note_writer(std::uint32_t position) { word().wrote.store(position, std::memory_order_release); }

void StreamQueue::note_launches(std::span<const LaunchOp* const> launches) {
  for (const LaunchOp* launch : launches) {
    if (!context_.variables.may_write(*launch->function)) continue;
    note_writer(account_.issued());
    context_.variables.note_launch(*launch->function);
  }
}

void StreamQueue::note_write(std::uint64_t address, std::uint64_t size_bytes) {
  if (!context_.variables.may_be_in(address, size_bytes)) return;
  note_writer(account_.issued());
  context_.variables.note_write(address, size_bytes);
}

// Before begin(), whose store makes both seen: for whoever asks after a fault which kernel it may have been.
void StreamQueue::note_kernel(std::uint32_t position, const LoadedFunction& function) {
  word().launched.store(position, std::memory_order_relaxed);
  word().function.store(function.name_offset.load(std::memory_order_relaxed), std::memory_order_relaxed);
  note_kind(WorkKind::kernel);
}

// The same for work without a kernel that reads or writes memory.
void StreamQueue::note_touch(std::uint32_t position) {
  word().touched.store(position, std::memory_order_relaxed);
  note_kind(WorkKind::memory);
}

void StreamQueue::note_kind(std::uint32_t kind) {
  const std::uint32_t known = word().kinds.load(std::memory_order_relaxed);  // written by nobody else
  if ((known & kind) == 0) word().kinds.store(known | kind, std::memory_order_relaxed);
}

void StreamQueue::issue_head() {
  if (std::holds_alternative<LaunchOp>(ops_.front())) return issue_launches();
  StreamOp& head = ops_.front();
  if (const auto* graph = std::get_if<GraphOp>(&head)) {
    issue_graph(*graph);
    return pop_head();
  }
  if (std::holds_alternative<CheckedCopy>(head) || std::holds_alternative<CheckedBoxCopy>(head) || std::holds_alternative<CheckedFill>(head) ||
      std::holds_alternative<ValueWriteOp>(head) || std::holds_alternative<CheckedArrayCopy>(head)) {
    note_touch(account_.issued() + 1);
    begin(1);
    context_.parts.window.note_launch(stream_->progress_index, nullptr);
  } else {
    begin(1);
  }
  if (auto* copy = std::get_if<CheckedCopy>(&head))
    issue_copy(*copy);
  else if (auto* box = std::get_if<CheckedBoxCopy>(&head))
    issue_copy_box(*box);
  else if (auto* fill = std::get_if<CheckedFill>(&head))
    issue_fill(*fill);
  else if (auto* record = std::get_if<RecordOp>(&head))
    issue_record(*record);
  else if (auto* wait = std::get_if<WaitOp>(&head))
    issue_wait(*wait);
  else if (auto* fence = std::get_if<FenceOp>(&head))
    issue_fence(*fence);
  else if (auto* write = std::get_if<ValueWriteOp>(&head))
    issue_write(*write);
  else if (auto* array_copy = std::get_if<CheckedArrayCopy>(&head))
    issue_array_copy(*array_copy);
  pop_head();
}

}  // namespace mpsshim::broker
