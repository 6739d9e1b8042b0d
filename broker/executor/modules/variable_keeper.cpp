// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/modules/variable_keeper.hpp"

#include <algorithm>
#include <utility>

#include "broker/log.hpp"

namespace mpsshim::broker {

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
  if (under_way_) {
    finish(now);
    return under_way_.has_value();
  }
  for (std::size_t looks = std::min(entries_.size(), kLooksPerTurn); looks > 0 && !under_way_; --looks) {
    if (next_ >= entries_.size()) next_ = 0;
    Entry& entry = entries_[next_++];
    if (entry.look <= now && !entry.variables->are_kept() && is_time(entry, now)) begin(entry, now);
  }
  return under_way_.has_value();
}

// A change is counted behind the stream's `issued`: whoever has seen the count finds the stream busy until that work is done.
bool VariableKeeper::is_idle(std::uint64_t session) const {
  const std::uint32_t used = progress_.used();
  for (std::uint32_t i = 0; i < used; ++i) {
    if (progress_[i].session.load(std::memory_order_relaxed) == session && progress_.is_busy(i)) return false;
  }
  return true;
}

bool VariableKeeper::open() {
  if (buffer_ != nullptr || is_refused_) return !is_refused_;
  CUresult result = driver_->cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING);
  if (result == CUDA_SUCCESS) result = driver_->cuMemHostAlloc(&buffer_, kMaxKeptBytes, CU_MEMHOSTALLOC_PORTABLE);
  is_refused_ = faults_.check(result, 0, "preparing to keep variables") != CUDA_SUCCESS;
  if (is_refused_) log_warning("Variables of modules are not kept ({}): sessions that have any end with this executor", driver_.describe(result));
  return !is_refused_;
}

bool VariableKeeper::is_time(Entry& entry, Clock::time_point now) {
  entry.look = now + kLook;
  const std::uint64_t changes = entry.variables->changes();  // before the look at the streams
  if (!is_idle(entry.variables->session()) || changes != entry.changes) {
    entry.changes = changes;
    entry.rest_since = now;
    return false;
  }
  const Clock::duration rest = now - entry.rest_since;
  return rest >= kLongRest ? entry.due != Clock::time_point::max() : rest >= kShortRest && entry.due <= now;
}

void VariableKeeper::begin(Entry& entry, Clock::time_point now) {
  SessionVariables::Copies copies = entry.variables->copies();  // before the look at the streams
  if (copies.variables.empty() || !is_idle(entry.variables->session()) || !open()) return;
  entry.due = now + entry.interval;
  for (const KeptVariable& variable : copies.variables) {
    const CUresult result = copy(variable);
    if (faults_.check(result, 0, "keeping variables") == CUDA_SUCCESS) continue;
    log_warning("Session {}: its modules' variables cannot be kept: {} bytes at {:#x}, to {} of the copy: {}", entry.variables->session(),
                variable.size_bytes, variable.address, variable.offset, driver_.describe(result));
    entry.due = Clock::time_point::max();
    copies.layout = ~std::uint64_t{0};  // nobody's: what was begun ends in the buffer
    break;
  }
  under_way_ = UnderWay{entry.variables, std::move(copies)};
}

// The lock is for one call: workers go in between.
CUresult VariableKeeper::copy(const KeptVariable& variable) {
  const std::lock_guard lock(issue_lock_);
  return driver_->cuMemcpyDtoHAsync_v2(AddressKey(), static_cast<std::byte*>(buffer_) + variable.offset, variable.address, variable.size_bytes,
                                       stream_);
}

void VariableKeeper::finish(Clock::time_point now) {
  const CUresult result = driver_->cuStreamQuery(stream_);
  if (result == CUDA_ERROR_NOT_READY) return;
  const UnderWay done = std::move(*under_way_);
  under_way_.reset();
  if (faults_.check(result, 0, "keeping variables") != CUDA_SUCCESS) return;
  const bool is_kept = done.variables->keep(done.copies, {static_cast<const std::byte*>(buffer_), kMaxKeptBytes});
  const auto entry = std::ranges::find_if(entries_, [&](const Entry& one) { return one.variables == done.variables; });
  if (entry == entries_.end() || entry->due == Clock::time_point::max()) return;
  entry->interval = is_kept ? kInterval : std::min(2 * entry->interval, kLongestInterval);
  entry->due = now + entry->interval;
}

}  // namespace mpsshim::broker
