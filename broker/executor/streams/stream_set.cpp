// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/streams/stream_set.hpp"

#include <algorithm>
#include <span>

namespace mpsshim::broker {

namespace {

constexpr std::uint32_t kIssueBudget = 32;  // submissions a stream makes before the next one has its turn
constexpr std::uint64_t kStepsOfOperation = 4;  // of TurnBudget; a stream that is asked in vain is one
constexpr std::size_t kMostReaped = 64;     // streams given back in one turn

// Whether work of a blocking stream comes behind a NULL stream's, or a NULL stream's behind that of others: the session's is to come between.
bool needs_null_stream(const StreamQueue& queue, std::span<const std::shared_ptr<StreamQueue>> with_work) {
  return std::ranges::any_of(with_work, [&](const std::shared_ptr<StreamQueue>& other) {
    return other.get() != &queue && (queue.notes.is_null_stream || other->notes.is_null_stream);
  });
}

}  // namespace

CUresult StreamSet::open() {
  const CUresult result = create(proto::kNullStream, true, 0);
  if (result == CUDA_SUCCESS) null_stream_ = table_.find(proto::kNullStream)->queue;
  return result;
}

CUresult StreamSet::create(proto::StreamId id, bool is_blocking, int priority) {
  if (table_.find(id) || id.index() >= proto::kFenceWords) return CUDA_ERROR_INVALID_HANDLE;
  std::unique_ptr<PooledStream> stream;
  StreamPool& streams = context_.parts.streams;
  const CUresult result = share_ != nullptr ? streams.take_green(context_.session, share_, context_.priority(priority), stream)
                                            : streams.take(context_.session, context_.priority(priority), stream);
  return result == CUDA_SUCCESS ? add(id, std::move(stream), is_blocking, priority) : result;
}

CUresult StreamSet::confine(const GreenContextRef& share) {
  share_ = share;
  if (null_stream_ == nullptr) return CUDA_SUCCESS;
  (void)retire(proto::kNullStream);
  (void)reap();
  return open();
}

CUresult StreamSet::create_green(proto::StreamId id, const GreenContextRef& green, int priority, StreamOrder order) {
  if (table_.find(id) || id.index() >= proto::kFenceWords) return CUDA_ERROR_INVALID_HANDLE;
  std::unique_ptr<PooledStream> stream;
  const CUresult result = context_.parts.streams.take_green(context_.session, green, context_.priority(priority), stream);
  if (result != CUDA_SUCCESS) return result;
  if (const CUresult added = add(id, std::move(stream), order != StreamOrder::none, priority, green); added != CUDA_SUCCESS) return added;
  if (order != StreamOrder::null_stream) return CUDA_SUCCESS;
  table_.find(id)->queue->notes.is_null_stream = true;
  has_null_streams_ = true;
  return CUDA_SUCCESS;
}

CUresult StreamSet::add(proto::StreamId id, std::unique_ptr<PooledStream> stream, bool is_blocking, int asked_priority,
                        const GreenContextRef& own_green) {
  auto entry = std::make_unique<Entry>();
  entry->asked_priority = asked_priority;
  entry->own_green = own_green;
  entry->queue = std::make_shared<StreamQueue>(context_, total_, id.index(), is_blocking, std::move(stream));
  const std::shared_ptr<StreamQueue> queue = entry->queue;
  if (table_.insert(id, std::move(entry))) return CUDA_SUCCESS;
  queue->finish();
  return CUDA_ERROR_INVALID_HANDLE;
}

StreamQueue* StreamSet::find(proto::StreamId id) const {
  const proto::Known<Entry> entry = table_.find(id);
  return entry ? entry->queue.get() : nullptr;
}

bool StreamSet::retire(proto::StreamId id) {
  const std::unique_ptr<Entry> entry = table_.take(id);
  if (!entry) return false;
  retire(std::move(entry->queue));
  return true;
}

// What it holds yet goes where it is.
void StreamSet::retire(std::shared_ptr<StreamQueue> queue) {
  queue->notes.is_to_change = false;
  retiring_.push_back(std::move(queue));
}

void StreamSet::append(StreamQueue& queue, StreamOp op) {
  // A fence is no work: nobody waits for it. In the NULL stream it stands behind the blocking streams' work all the same.
  const bool is_work = !std::holds_alternative<FenceOp>(op);
  ++pace_.operations;
  if (!is_work) ++pace_.fences;
  if (is_work && queue.notes.barrier_version != barrier_version_) order_behind_barriers(queue);
  if (&queue == null_stream_.get()) {
    if (!unordered_.empty()) order_null_stream();
    if (is_work) ++null_version_;
  } else if (queue.is_blocking() && (is_work || queue.notes.is_null_stream)) {
    if (has_null_streams_ && needs_null_stream(queue, unordered_)) [[unlikely]] {
      order_null_stream();
      ++null_version_;
    }
    if (queue.notes.null_version != null_version_) order_blocking_stream(queue);
    if (is_work && !queue.notes.has_new_work) {
      queue.notes.has_new_work = true;
      unordered_.push_back(queue.shared_from_this());
    }
  }
  // Behind whatever the stream had to be ordered behind: the fence says that all of it is done.
  if (const auto* host = std::get_if<HostOp>(&op)) put(queue, FenceOp{host->fence_value});
  put(queue, std::move(op));
}

// Goes on in Worker::issue, which the worker comes to behind the batch.
void StreamSet::put(StreamQueue& queue, StreamOp op) {
  ++appended_;
  queue.append(std::move(op));
  if (!queue.notes.is_active) {
    queue.notes.is_active = true;
    active_.push_back(queue.shared_from_this());
  }
}

// A point behind everything queued in `queue` so far.
PointRef StreamSet::record_point(StreamQueue& queue) {
  PointRef point;
  if (context_.check(context_.parts.events.take(false, point), "cuEventCreate") != CUDA_SUCCESS) return nullptr;
  put(queue, RecordOp{point});
  return point;
}

void StreamSet::order_null_stream() {
  for (const std::shared_ptr<StreamQueue>& queue : unordered_) {
    queue->notes.has_new_work = false;
    if (queue->is_finished() || queue->is_idle()) continue;
    if (PointRef point = record_point(*queue)) put(*null_stream_, WaitOp{std::move(point)});
  }
  unordered_.clear();
}

void StreamSet::order_blocking_stream(StreamQueue& queue) {
  queue.notes.null_version = null_version_;
  if (null_stream_->is_idle()) return;
  if (null_point_version_ != null_version_) {
    null_point_ = record_point(*null_stream_);
    null_point_version_ = null_version_;
  }
  if (null_point_) put(queue, WaitOp{null_point_});
}

// The stream itself is in order anyway.
void StreamSet::order_all_behind(StreamQueue& queue, const GreenContext* of) {
  const auto is_its = [&](const Barrier& barrier) { return barrier.queue.get() == &queue && barrier.of == of; };
  const auto found = std::find_if(barriers_.begin(), barriers_.end(), is_its);
  Barrier& barrier = found != barriers_.end() ? *found : barriers_.emplace_back();
  barrier = Barrier{queue.shared_from_this(), queue.position(), nullptr, of};
  queue.notes.barrier_version = ++barrier_version_;
}

void StreamSet::order_behind_all(StreamQueue& queue, const GreenContext* of) {
  std::vector<std::shared_ptr<StreamQueue>> others = retiring_;
  table_.for_each([&](proto::StreamId, const Entry& entry) { others.push_back(entry.queue); });
  for (const std::shared_ptr<StreamQueue>& other : others) {
    if (other.get() == &queue || other->is_finished() || other->is_idle() || (of != nullptr && other->green() != of)) continue;
    if (PointRef point = record_point(*other)) put(queue, WaitOp{std::move(point)});
  }
}

void StreamSet::order_behind_barriers(StreamQueue& queue) {
  queue.notes.barrier_version = barrier_version_;
  std::erase_if(barriers_, [](const Barrier& barrier) { return barrier.queue->has_completed(barrier.position); });
  for (Barrier& barrier : barriers_) {
    if (barrier.queue.get() == &queue || (barrier.of != nullptr && barrier.of != queue.green())) continue;
    if (!barrier.point) barrier.point = record_point(*barrier.queue);
    if (barrier.point) put(queue, WaitOp{barrier.point});
  }
}

StreamSet::Issue StreamSet::issue(TurnBudget& budget, bool is_short_of_time) {
  if (is_changing_) [[unlikely]]
    take_places();
  Issue issue;
  std::uint64_t steps = 0;
  for (bool again = true; again;) {
    bool waits_for_event = false;
    bool has_more = false;
    again = false;
    const std::size_t count = active_.size();
    const std::size_t first = next_ < count ? next_ : 0;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t at = first + i < count ? first + i : first + i - count;
      const std::shared_ptr<StreamQueue>& queue = active_[at];
      if (queue->is_empty()) continue;
      if (queue->notes.is_to_change) [[unlikely]] {
        queue->write_progress();  // what it waits for is to be seen
        issue.lacks_credit = issue.waits_for_gpu = true;
        continue;
      }
      const std::size_t before = total_.records;
      switch (queue->issue(kIssueBudget, is_short_of_time)) {
        case StreamQueue::Stop::empty:
        case StreamQueue::Stop::in_window: break;
        case StreamQueue::Stop::fence: issue.any = issue.expects_fence = true; break;
        case StreamQueue::Stop::more: issue.gathers = true; break;
        case StreamQueue::Stop::budget: issue.any = has_more = true; break;
        case StreamQueue::Stop::credit: issue.lacks_credit = issue.waits_for_gpu = true; break;
        case StreamQueue::Stop::held: issue.waits_for_gpu = true; break;
        case StreamQueue::Stop::event: waits_for_event = true; break;
        case StreamQueue::Stop::host: break;  // the client's doorbell wakes the worker
        case StreamQueue::Stop::output:
        case StreamQueue::Stop::value: issue.lacks_credit = issue.waits_for_gpu = true; break;
        case StreamQueue::Stop::needs_window: issue.needs_window = queue; break;
      }
      again |= total_.records != before;
      if (queue->has_output()) note_output(queue);
      steps += 1 + kStepsOfOperation * (before - std::min(before, total_.records));
      if (count > 1 && budget.is_spent_after(steps)) {
        next_ = at + 1;
        issue.any = true;
        return issue;
      }
    }
    issue.any |= again;
    again &= waits_for_event;  // a record issued just now may have been what it waits for
    again |= has_more && !budget.look();
  }
  return issue;
}

void StreamSet::note_output(const std::shared_ptr<StreamQueue>& queue) {
  if (std::find(printing_.begin(), printing_.end(), queue) == printing_.end()) printing_.push_back(queue);
}

std::shared_ptr<StreamQueue> StreamSet::begin_output() {
  const auto due = std::find_if(printing_.begin(), printing_.end(), [](const auto& queue) { return queue->is_output_due(); });
  if (due == printing_.end()) return nullptr;
  (*due)->begin_output();
  return *due;
}

void StreamSet::end_output(StreamQueue& queue) {
  queue.end_output();
  std::erase_if(printing_, [&](const auto& one) { return one.get() == &queue; });
}

void StreamSet::own_borrowed() {
  for (const std::shared_ptr<StreamQueue>& queue : active_) queue->own_borrowed();
}

// Whoever has not had its turn stays in the list.
template <typename F>
bool StreamSet::for_unwritten(TurnBudget& budget, F&& write) {
  bool all = true;
  for (const std::shared_ptr<StreamQueue>& queue : active_) {
    if (!all) break;
    const bool is_written = queue->is_finished() || !queue->has_unwritten_progress();
    if (!is_written) {
      write(*queue);
      all = !budget.look();
    }
    queue->notes.is_active = !queue->is_empty() || queue->has_late_fences() || (!is_written && queue->has_unwritten_progress());
  }
  std::erase_if(active_, [](const std::shared_ptr<StreamQueue>& queue) { return !queue->notes.is_active; });
  return all;
}

bool StreamSet::write_progress(TurnBudget& budget) {
  return for_unwritten(budget, [](StreamQueue& queue) { queue.write_progress(); });
}

bool StreamSet::offer_progress(TurnBudget& budget, bool& is_owed) {
  return for_unwritten(budget, [&](StreamQueue& queue) { is_owed |= !queue.offer_progress(); });
}

void StreamSet::look_for_owed() {
  for (const std::shared_ptr<StreamQueue>& queue : active_) {
    if (queue->has_wanted_fences()) queue->look_for_owed();
  }
}

bool StreamSet::has_wanted_fences() const {
  return std::ranges::any_of(active_, [](const std::shared_ptr<StreamQueue>& queue) { return queue->has_wanted_fences(); });
}

bool StreamSet::settle_fences() {
  bool all = true;
  for (const std::shared_ptr<StreamQueue>& queue : active_) all &= queue->settle_fences();
  return all;
}

bool StreamSet::reap() {
  if (retiring_.empty()) return false;
  std::size_t reaped = 0;
  std::erase_if(retiring_, [&](const std::shared_ptr<StreamQueue>& queue) {
    if (reaped == kMostReaped || !queue->is_idle()) return false;
    ++reaped;
    queue->finish();
    if (queue->notes.has_new_work) std::erase(unordered_, queue);
    return true;
  });
  return !retiring_.empty();
}

bool StreamSet::is_idle() const {
  if (total_.records != 0) return false;
  bool idle = true;
  table_.for_each([&](proto::StreamId, const Entry& entry) { idle = idle && entry.queue->is_idle(); });
  for (const auto& queue : retiring_) idle = idle && queue->is_idle();
  return idle;
}

const StreamQueue* StreamSet::find_busy(std::uint32_t fence) const {
  const StreamQueue* found = nullptr;
  table_.for_each([&](proto::StreamId, const Entry& entry) {
    if (entry.queue->fence_index() == fence && !entry.queue->is_finished() && !entry.queue->is_idle()) found = entry.queue.get();
  });
  return found;
}

StreamSet::Mark StreamSet::mark() const {
  Mark mark;
  const auto note = [&](const std::shared_ptr<StreamQueue>& queue) {
    if (!queue->is_idle()) mark.positions.emplace_back(queue, queue->position());
  };
  table_.for_each([&](proto::StreamId, Entry& entry) { note(entry.queue); });
  for (const std::shared_ptr<StreamQueue>& queue : retiring_) note(queue);
  return mark;
}

bool StreamSet::has_issued(Mark& mark) {
  while (!mark.positions.empty() && mark.positions.back().first->has_issued(mark.positions.back().second)) mark.positions.pop_back();
  return mark.positions.empty();
}

bool StreamSet::has_completed(Mark& mark) {
  while (!mark.positions.empty() && mark.positions.back().first->has_completed(mark.positions.back().second)) mark.positions.pop_back();
  return mark.positions.empty();
}

bool StreamSet::move_to(SideContext* side) {
  bool all = true;
  table_.for_each([&](proto::StreamId, Entry& entry) { all &= entry.queue->move_to(side); });
  return all;
}

void StreamSet::change_places(const GreenContextRef& share) {
  share_ = share;
  is_changing_ = true;
  table_.for_each([](proto::StreamId, Entry& entry) { entry.queue->notes.is_to_change = true; });
  take_places();
}

void StreamSet::take_places() {
  const int ranks_behind = context_.parts.ranks.ranks_behind(context_.priority_rank);
  bool all = true;
  table_.for_each([&](proto::StreamId, Entry& entry) {
    const GreenContextRef& green = entry.own_green != nullptr ? entry.own_green : share_;
    const bool has_place = entry.queue->change_place(green, context_.priority(entry.asked_priority));
    if (has_place) entry.queue->notes.is_to_change = false;
    all &= has_place;
  });
  is_changing_ &= !all;
  if (all) ranks_behind_ = ranks_behind;
}

std::size_t StreamSet::count() const {
  std::size_t count = 0;
  table_.for_each([&](proto::StreamId, const Entry&) { ++count; });
  return count;
}

void StreamSet::forget_chains() {
  table_.for_each([](proto::StreamId, Entry& entry) { entry.queue->forget_chains(); });
  for (const std::shared_ptr<StreamQueue>& queue : retiring_) queue->forget_chains();
}

void StreamSet::drop_queued() {
  for (const std::shared_ptr<StreamQueue>& queue : active_) queue->drop_queued();
  set_held(false);
}

void StreamSet::retire_all() {
  std::vector<proto::StreamId> ids;
  table_.for_each([&](proto::StreamId id, Entry&) { ids.push_back(id); });
  for (const proto::StreamId id : ids) (void)retire(id);
}

}  // namespace mpsshim::broker
