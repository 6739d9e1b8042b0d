// SPDX-License-Identifier: Apache-2.0
#include "interposer/channel/recovery.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <optional>

#include "interposer/channel/connection.hpp"
#include "interposer/channel/run_again.hpp"
#include "interposer/channel/session_client.hpp"
#include "interposer/log.hpp"
#include "interposer/settle.hpp"

namespace mpsshim::interposer {

namespace {

unsigned long long number(std::uint64_t value) { return value; }

}  // namespace

CUresult Recovery::run() {
  try {
    if (is_on_trial()) return session_.fail(stand_trial());
    CUresult error = read_old_ring();
    if (error == CUDA_SUCCESS) {
      do error = try_once();
      while (error != CUDA_SUCCESS && may_try_again());
    }
    if (error != CUDA_SUCCESS) return session_.fail(error);
    publish();
    return CUDA_SUCCESS;
  } catch (const std::bad_alloc&) {
    return session_.fail(CUDA_ERROR_OUT_OF_MEMORY);
  }
}

CUresult Recovery::try_once() {
  has_moved_on_ = false;
  posted_.clear();
  carried_to_.reset();
  ++attempts_;
  using Step = CUresult (Recovery::*)();
  for (const Step step : {&Recovery::attach_again, &Recovery::post_recipes, &Recovery::carry_unread}) {
    if (const CUresult error = (this->*step)(); error != CUDA_SUCCESS) return error;
  }
  return CUDA_SUCCESS;
}

// A session that has moved was idle: the executor that has gone has done all that it had read, which was recipes alone.
bool Recovery::may_try_again() const {
  constexpr unsigned kMostAttempts = 16;
  if (!has_moved_on_ || attempts_ >= kMostAttempts) return false;
  return !carried_to_ || next_->header().head.load(std::memory_order_acquire) <= *carried_to_;
}

CUresult Recovery::refuse(const char* what, std::uint64_t which) const {
  if (needed_) {
    debug_line(DebugTopic::channel, "what session %llu had launched is not run again: %s (%llu)", number(old_->header().session), what,
               number(which));
    return CUDA_ERROR_MPS_SERVER_NOT_READY;
  }
  log_line("session %llu cannot go on after its executor was replaced: %s (%llu); start the program again", number(old_->header().session), what,
           number(which));
  return CUDA_ERROR_MPS_SERVER_NOT_READY;
}

CUresult Recovery::read_old_ring() {
  if (session_.fences_.has_kernel_error()) return CUDA_ERROR_ASSERT;
  const auto lost = static_cast<CUresult>(old_->header().lost_work.load(std::memory_order_acquire));
  if (lost != CUDA_SUCCESS) return lost;  // which no call has met yet
  std::optional<Unread> unread = find_unread(*old_);
  if (!unread) return refuse("the old executor's position in the ring is no record's", old_->header().head.load(std::memory_order_relaxed));
  unread_ = std::move(*unread);
  for (std::uint32_t index = 0; index < proto::kFenceWords; ++index) {
    const std::uint32_t first = unread_.first_fence[index];
    const std::uint32_t last_read = first != 0 ? first - 1 : session_.fences_.posted(index).load(std::memory_order_relaxed);
    // A session that may move is idle: all it had handed over is done. A fence that was handed over and not reached is lost work.
    if (!session_.fences_.reached(index, last_read)) return refuse("work was lost on a stream, number", index);
  }
  return CUDA_SUCCESS;
}

CUresult Recovery::attach_again() {
  proto::Attached attached;
  proto::FileDescriptor fences;
  if (const CUresult error = session_.request_link(attached, next_, fences); error != CUDA_SUCCESS) return error;
  if (attached.device_lease.address != session_.device_lease_.address || attached.pinned_lease.address != session_.pinned_lease_.address) {
    return refuse("its memory was given another address", attached.device_lease.address);
  }
  if (!session_.fences_.map(fences)) return CUDA_ERROR_OUT_OF_MEMORY;
  adopt_reply_slots(unread_, *next_);
  return CUDA_SUCCESS;
}

CUresult Recovery::lost_again(WaitEnd end) {
  if (end == WaitEnd::gone) return CUDA_ERROR_MPS_CONNECTION_FAILED;
  if (end == WaitEnd::failed) return static_cast<CUresult>(next_->header().session_error.load(std::memory_order_acquire));
  has_moved_on_ = end == WaitEnd::moved;
  if (may_try_again()) {
    debug_line(DebugTopic::channel, "the executor of epoch %llu has gone as well before the session was back", number(next_->epoch()));
    return CUDA_ERROR_MPS_SERVER_NOT_READY;  // nobody sees it
  }
  return refuse("the next executor ended too while the session was brought back, epoch", next_->epoch());
}

CUresult Recovery::post_recipe(const Recipe& recipe) {
  RecordParts parts{recipe.id, recipe.stream, recipe.body, recipe.trailing};
  proto::ModuleLoadRecord load{};
  if (needed_ && recipe.id == proto::RecordId::ModuleLoad && recipe.has_contents) {
    std::memcpy(&load, recipe.body.data(), proto::ModuleLoadRecord::kBodyBytes);
    load.offers.set(proto::ModuleOffer::anywhere);
    parts.body = std::as_bytes(std::span(&load, 1)).first(proto::ModuleLoadRecord::kBodyBytes);
  }
  const std::uint32_t slot = next_->recovery_slot();
  if (recipe.is_call) next_->arm_slot(slot);
  const std::uint32_t size = proto::record_size(parts.body.size(), parts.trailing.size());
  if (const WaitEnd end = wait_for_room(*next_, size, session_.channel_.peer()); end != WaitEnd::ready) return lost_again(end);
  if (!Channel::write(*next_, parts, recipe.is_call ? static_cast<std::uint16_t>(slot) : proto::kNoReplySlot)) return CUDA_ERROR_UNKNOWN;
  if (!recipe.is_call) return CUDA_SUCCESS;
  Wait wait("an object to be made again", next_->header(), session_.channel_.peer());
  const WaitEnd end = wait.until([&] { return next_->is_answered(slot); }, [&](std::uint64_t timeout_us) { next_->sleep_on_slot(slot, timeout_us); });
  if (end != WaitEnd::ready) return lost_again(end);
  Answer answer;
  Channel::take_answer(*next_, slot, answer);
  next_->release_slot(slot);
  if (answer.status != CUDA_SUCCESS && recipe.has_contents) {
    return refuse("a module has writable variables, or uses the device's heap, whose contents could not be kept, CUresult",
                  static_cast<std::uint64_t>(answer.status));
  }
  if (answer.status != CUDA_SUCCESS) return refuse("an object could not be made again, CUresult", static_cast<std::uint64_t>(answer.status));
  if (answer.payload != recipe.expected_reply) return refuse("an object came back with other values, record", static_cast<std::uint64_t>(recipe.id));
  return CUDA_SUCCESS;
}

CUresult Recovery::post_recipes() {
  for (const auto& [key, recipe] : session_.recipes_.entries()) {
    if (!RecipeBook::is_needed(recipe, unread_.consumed) || (needed_ && !needed_->contains(recipe))) continue;
    posted_.emplace_back(key, next_->producer().position());
    if (const CUresult error = post_recipe(recipe); error != CUDA_SUCCESS) return error;
  }
  return CUDA_SUCCESS;
}

CUresult Recovery::carry_unread() {
  carried_to_ = next_->producer().position();
  const WaitEnd end = carry_over(unread_, *old_, *next_, session_.channel_.peer(), *carried_to_);
  return end == WaitEnd::ready ? CUDA_SUCCESS : lost_again(end);
}

bool Recovery::is_on_trial() const {
  return old_->header().session_state.load(std::memory_order_acquire) == static_cast<std::uint32_t>(proto::SessionState::on_trial);
}

// The program's other threads see nothing of it: they wait for this one, and the words that they look at stay the old link's.
CUresult Recovery::stand_trial() {
  if (session_.fences_.has_kernel_error()) return CUDA_ERROR_ASSERT;
  unread_.consumed = std::min(old_->header().head.load(std::memory_order_acquire), old_->producer().position());
  const std::vector<std::uint64_t> launches = find_launches_in_flight(*old_, unread_.consumed, session_.fences_);
  needed_.emplace(launches, *old_, session_.recipes_.entries());
  proto::TrialEnded ended;
  ended.outcome = proto::TrialOutcome::not_run;
  if (!launches.empty()) {
    proto::Attached attached;
    proto::FileDescriptor file;
    if (const CUresult error = session_.request_link(attached, next_, file); error != CUDA_SUCCESS) return error;
    FenceMemory fences;
    CUresult error = fences.map(file) ? post_recipes() : CUDA_ERROR_OUT_OF_MEMORY;
    if (error == CUDA_SUCCESS) error = run_launches(launches, fences, ended);
    fences.unmap();
    if (error != CUDA_SUCCESS && error != CUDA_ERROR_MPS_SERVER_NOT_READY) return error;  // it has a verdict
  }
  proto::TrialNoted noted;
  // The control process answers in ClientConnection::on.
  (void)connection().ask(ended, noted);
  return CUDA_ERROR_MPS_SERVER_NOT_READY;
}

CUresult Recovery::run_launches(const std::vector<std::uint64_t>& launches, const FenceMemory& fences, proto::TrialEnded& ended) {
  const RunAgain run = run_again(launches, *old_, *next_, fences, session_.channel_.peer());
  ended.launches = run.launches;
  if (run.end != WaitEnd::ready) return lost_again(run.end);
  ended.outcome = run.has_ended ? proto::TrialOutcome::nothing : proto::TrialOutcome::unended;
  return CUDA_SUCCESS;
}

void Recovery::publish() {
  old_->end = Link::End{unread_.consumed, *carried_to_, next_};
  session_.recipes_.carry_over(*old_);
  for (const auto& [key, position] : posted_) {
    if (Recipe* recipe = session_.recipes_.find(key)) recipe->position = position;
  }
  session_.publish_header(next_->header());
  session_.attach_mutex_.assume_held();  // by SessionClient::recover, around all that this class does
  session_.kept_.push_back(next_);
  session_.channel_.set_link(next_);
  debug_line(DebugTopic::channel, "session %llu goes on in epoch %llu: %zu objects made again, %llu bytes of records carried over",
             number(next_->header().session), number(next_->epoch()), posted_.size(), number(unread_.written - unread_.consumed));
}

}  // namespace mpsshim::interposer
