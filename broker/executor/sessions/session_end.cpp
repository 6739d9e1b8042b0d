// SPDX-License-Identifier: Apache-2.0
// How a session ends: nothing more is read, its work ends, then all that it has goes. Nobody else notices: what waits for no kernel is a helper's,
// the rest goes a little at a time in quiet windows.
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "broker/executor/base/helper_pool.hpp"
#include "broker/executor/memory/application_memory.hpp"
#include "broker/executor/memory/external_memory.hpp"
#include "broker/executor/sessions/session.hpp"
#include "broker/executor/window/quiet_window.hpp"

namespace mpsshim::broker {

namespace {

constexpr std::chrono::milliseconds kLongestSlice{1};  // of a window, for the end of a session

template <proto::HandleKind Kind, typename T>
void clear(proto::HandleTable<Kind, T>& table) {
  std::vector<proto::Id<Kind>> all;
  table.for_each([&](proto::Id<Kind> id, T&) { all.push_back(id); });
  for (const proto::Id<Kind> id : all) (void)table.take(id);
}

}  // namespace

void Session::discard(const std::shared_ptr<Session>& session) {
  session->streams_.retire_all();
  (void)session->streams_.reap();  // never used, so all of them are idle
  session->take_down();
}

// Goes on in advance_close(), at each visit of the worker.
void Session::begin_close(std::function<void()> closed) {
  closing_ = true;
  closed_ = std::move(closed);
  drop_queued();
  streams_.retire_all();
  abandon_jobs();
}

bool Session::advance_close() {
  if (handed_over_) return true;
  if (streams_.reap() || jobs_ > 0) return false;
  handed_over_ = true;
  waiting_.clear();  // what they would release goes with everything else
  take_down();
  return true;
}

// What waits for no kernel needs no window, and is more than anything else: a helper does that, beside everybody's work. The rest goes a little at
// a time.
void Session::take_down() {
  parts_.helpers.submit(HelperPool::kOfNobody, [self = shared_from_this()] {
    self->release_memory();
    self->end_in_window();
  });
}

bool Session::is_releasing() const {
  return memory_.is_releasing() || memory_.application().has_forgotten(0, UINT64_MAX) || arrays_.is_leaving() || !leaving_uses_.empty();
}

// What the session has given back counts as free for it, so that is awaited: its work, the unmapping, arrays' ends, and the control process, which
// holds a handle of each chunk.
void Session::start_after_releases(std::function<void(const std::shared_ptr<Session>&)> job) {
  when_completed([this, job = std::move(job), up_to = memory_.last_given_up()] {
    const auto release = [this, job, up_to] {
      start_job([job, up_to](const std::shared_ptr<Session>& self) {
        self->memory_.application().unmap_forgotten(0, UINT64_MAX, up_to);
        self->memory_.release_leaving(up_to);
        self->parts_.control.settle();
        job(self);
      });
    };
    if (!arrays_.is_leaving()) return release();
    start_window_job("cuArrayDestroy", [this] { arrays_.destroy_ended(); }, release);
  });
}

void Session::end_in_window() {
  const auto is_done = std::make_shared<bool>(false);
  WindowJob job{"taking down a session", id_, true, [self = shared_from_this(), is_done](WindowResult) { *is_done = self->release_some(); }};
  job.expected = graphs_.next_release_time();
  job.after = [self = shared_from_this(), is_done] {
    if (!*is_done) return self->end_in_window();
    self->memory_.segments().unmap_all();
    self->memory_.release_addresses();                           // another session's from now on, perhaps
    if (self->closed_) std::exchange(self->closed_, nullptr)();  // sends SessionClosed
  };
  parts_.window.submit(std::move(job));
}

// Its streams are idle and their chains gone. The store keeps the images for the next client.
void Session::release_modules() {
  parts_.variables.remove(id_);
  clear(modules_);
  leaving_uses_.clear();
  retired_images_.clear();
}

void Session::release_links() {
  clear(links_);
}

// In a quiet window, their streams given back.
void Session::release_greens() {
  parts_.descriptors.forget_session(id_);
  std::vector<proto::GreenContextId> greens;
  greens_.for_each([&](proto::GreenContextId id, GreenContextRef&) { greens.push_back(id); });
  for (const proto::GreenContextId id : greens) {
    const std::unique_ptr<GreenContextRef> green = greens_.take(id);
    if (green->use_count() == 1) (*green)->end();  // else by whoever lets go last, in the next window
  }
  share_ = left_share_ = {};  // likewise, in a window of its own
}

// By a helper: nothing of the session is in flight, and no worker has it.
void Session::release_memory() {
  const ScopedMark mark(id_, "taking down a session", Patience::patient);
  memory_.release_chunks();
  graphs_.release_unheld();
  release_modules();
  release_links();
  clear(functions_);
  clear(references_);
  clear(events_);
  graphs_.forget_names();
}

// In a quiet window. False: there is more.
bool Session::release_some() {
  if (!std::exchange(is_ending_, true)) {
    parts_.completion.remove(id_);
    parts_.bell.forget(channel_.ring_doorbell());
    if (Assertions* const assertions = parts_.modules.assertions(); assertions != nullptr) assertions->remove(id_);
    channel_.unregister(parts_.driver);
  }
  TurnBudget budget(kLongestSlice);
  if (!graphs_.release_some(budget) || !memory_.segments().release_some(budget)) return false;
  conditions_.release_all();
  memory_.external().release_all();
  arrays_.release_all();
  release_greens();
  parts_.persisting_cache.forget(id_);
  parts_.faults.check(parts_.persisting_cache.apply(), id_, "cuCtxSetLimit");
  return true;
}

}  // namespace mpsshim::broker
