// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/modules/variable_keeper.hpp"

#include <algorithm>
#include <utility>

#include "broker/executor/link/completion.hpp"
#include "broker/log.hpp"

namespace mpsshim::broker {

namespace {

// By how much copies of so much are rarer than those of a counter.
unsigned weight_of(std::size_t bytes) {
  if (bytes <= VariableKeeper::kCheapBytes) return 1;
  const auto takes = std::chrono::microseconds(bytes / VariableKeeper::kBytesPerMicrosecond);
  return static_cast<unsigned>(1 + 10 * takes / VariableKeeper::kInterval);
}

}  // namespace

void VariableKeeper::add(std::shared_ptr<SessionVariables> variables) {
  const std::lock_guard lock(mutex_);
  const bool is_known = std::ranges::any_of(entries_, [&](const Entry& entry) { return entry.variables == variables; });
  if (!is_known) entries_.push_back({std::move(variables)});
}

void VariableKeeper::remove(std::uint64_t session) {
  const std::lock_guard lock(mutex_);
  std::erase_if(entries_, [&](const Entry& entry) { return entry.variables->session() == session; });
}

bool VariableKeeper::turn(Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  if (under_way_) finish(now);
  bool is_any_stale = false;
  for (std::size_t looks = std::min(entries_.size(), kLooksPerTurn); looks > 0 && !under_way_; --looks) {
    if (next_ >= entries_.size()) next_ = 0;
    Entry& entry = entries_[next_++];
    if (!entry.variables->may_be_copied()) continue;
    if (entry.look <= now && is_time(entry, now)) begin(entry);
    is_any_stale |= entry.is_waiting;
  }
  if (under_way_) await_cheap_copy(now);
  return under_way_.has_value() || is_any_stale;
}

// So that even a short rest is long enough.
void VariableKeeper::await_cheap_copy(Clock::time_point now) {
  if (under_way_->copies.bytes > kCheapBytes || !has_spare_cores()) return;
  for (const Clock::time_point end = Clock::now() + kRoundTrip; under_way_ && Clock::now() < end;) finish(now);
}

// What may write is noted in `wrote` before it is counted as a change: whoever has seen the count finds it under way until it is done. Once some
// kernel may have an address that its code does not name, so may those that were issued before.
bool VariableKeeper::has_written(const SessionVariables& variables) const {
  const bool must_be_idle = variables.are_any_out();
  const std::uint32_t used = progress_.used();
  for (std::uint32_t i = 0; i < used; ++i) {
    if (progress_[i].session.load(std::memory_order_relaxed) != variables.session()) continue;
    const std::uint32_t completed = progress_[i].completed.load(std::memory_order_acquire);
    if (must_be_idle ? progress_.is_busy(i) : !progress_reached(completed, progress_[i].wrote.load(std::memory_order_acquire))) return false;
  }
  return true;
}

bool VariableKeeper::open() {
  if (buffer_ != nullptr || is_refused_) return !is_refused_;
  CUresult result = driver_->cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING);
  if (result == CUDA_SUCCESS) result = driver_->cuMemHostAlloc(&buffer_, kBufferBytes, CU_MEMHOSTALLOC_PORTABLE);
  is_refused_ = faults_.check(result, 0, "preparing to keep variables") != CUDA_SUCCESS;
  if (is_refused_) log_warning("Variables of modules are not kept ({}): sessions that have any end with this executor", driver_.describe(result));
  return !is_refused_;
}

bool VariableKeeper::is_time(Entry& entry, Clock::time_point now) {
  entry.look = now + kLook;
  const std::uint64_t changes = entry.variables->changes();  // before the look at the streams
  if (changes != entry.changes || entry.rest_since == Clock::time_point{}) {
    entry.changes = changes;
    entry.rest_since = {};
  }
  entry.is_waiting = has_written(*entry.variables) && entry.due != Clock::time_point::max();
  if (!entry.is_waiting) return false;
  if (entry.rest_since == Clock::time_point{}) entry.rest_since = now;
  if (entry.is_halfway || entry.due <= now) return true;
  return now - entry.rest_since >= kLongRest * weight_of(entry.variables->stale_bytes());
}

void VariableKeeper::begin(Entry& entry) {
  SessionVariables::Copies copies = entry.variables->copies(kBufferBytes);  // before the look at the streams
  if (copies.pieces.empty() || !has_written(*entry.variables)) return;
  bool is_good = open();
  for (const SessionVariables::Piece& piece : copies.pieces) {
    if (!is_good) break;
    const CUresult result = copy(piece);
    is_good = faults_.check(result, 0, "keeping variables") == CUDA_SUCCESS;
    if (is_good) continue;
    log_warning("Session {}: its modules' variables cannot be kept: {} bytes at {:#x}, to {} of the copy: {}", entry.variables->session(),
                piece.size_bytes, piece.address, piece.at, driver_.describe(result));
    copies.layout = ~std::uint64_t{0};  // nobody's: what was begun ends in the buffer
  }
  if (!is_good) {
    entry.due = Clock::time_point::max();
    entry.variables->give_up();
  }
  if (!is_refused_) under_way_ = UnderWay{entry.variables, std::move(copies)};
}

// The lock is for one call: workers go in between.
CUresult VariableKeeper::copy(const SessionVariables::Piece& piece) {
  const std::lock_guard lock(issue_lock_);
  return driver_->cuMemcpyDtoHAsync_v2(AddressKey(), static_cast<std::byte*>(buffer_) + piece.at, piece.address, piece.size_bytes, stream_);
}

void VariableKeeper::finish(Clock::time_point now) {
  const CUresult result = driver_->cuStreamQuery(stream_);
  if (result == CUDA_ERROR_NOT_READY) return;
  const UnderWay done = std::move(*under_way_);
  under_way_.reset();
  if (faults_.check(result, 0, "keeping variables") != CUDA_SUCCESS) return;
  const bool is_kept = done.variables->keep(done.copies, {static_cast<const std::byte*>(buffer_), kBufferBytes});
  const auto entry = std::ranges::find_if(entries_, [&](const Entry& one) { return one.variables == done.variables; });
  if (entry == entries_.end() || entry->due == Clock::time_point::max()) return;
  entry->overtaken = is_kept ? 0 : std::min(entry->overtaken + 1, 16U);
  entry->is_halfway = is_kept && !done.copies.is_last;
  if (entry->is_halfway) entry->look = now;
  const Clock::duration interval = std::min<Clock::duration>(kInterval * (1 << entry->overtaken), kLongestInterval);
  entry->due = now + interval * weight_of(std::max(done.copies.bytes, entry->variables->stale_bytes()));
}

}  // namespace mpsshim::broker
