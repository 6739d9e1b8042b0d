// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/sessions/session.hpp"

#include <algorithm>
#include <utility>

#include "broker/executor/base/helper_pool.hpp"
#include "broker/executor/link/control_link.hpp"
#include "broker/executor/memory/external_memory.hpp"
#include "broker/executor/window/quiet_window.hpp"
#include "broker/log.hpp"
#include "proto/provision.hpp"

namespace mpsshim::broker {

namespace {

constexpr std::size_t kMaxQueuedRecords = 4'096;
constexpr std::size_t kMaxQueuedBytes = 4u << 20;
constexpr std::size_t kMaxRetiredImages = 16;
constexpr std::size_t kMaxUnderWay = 1'024;   // jobs elsewhere and acts that wait
constexpr unsigned kOutputTimeoutMs = 1'000;  // for the control process to take text; later it comes all the same

}  // namespace

Session::Session(ExecutorParts& parts, const message::SessionOpen& open)
    : SessionObjects(parts, open),
      client_pid_(open.client_pid),
      client_uid_(open.client_uid),
      wish_(ShareWish::of(open)),
      variables_(std::make_shared<SessionVariables>(id_, parts.control)),
      context_{parts, channel_, id_, *variables_, parts.counts.index_of(id_), priority_rank_},
      streams_(context_),
      home_(streams_, parts) {
  parts_.ranks.enter(priority_rank_);
}

Session::~Session() { parts_.ranks.leave(priority_rank_); }

std::shared_ptr<Session> Session::open(ExecutorParts& parts, Received<message::SessionOpen> received, CUresult& result) {
  const std::shared_ptr<Session> session(new Session(parts, received.message));
  result = session->channel_.open(parts.driver, std::move(received));
  Assertions* const assertions = parts.modules.assertions();
  if (result == CUDA_SUCCESS && assertions != nullptr) result = assertions->add(session->id_, session->channel_.kernel_error_address());
  if (result == CUDA_SUCCESS) result = session->memory_.open();
  if (!session->wish_.is_whole()) {
    session->awaits_share_ = !parts.shares.find(session->wish_, session->share_);
    if (!session->awaits_share_) result = session->streams_.confine(session->share());
    if (!session->awaits_share_) session->share_wish_ = session->wish_;
  }
  if (result == CUDA_SUCCESS) result = session->streams_.open();
  if (result == CUDA_SUCCESS) return session;
  parts.faults.check(result, session->id_, "opening a session");
  discard(session);
  return nullptr;
}

void Session::set_owner(SessionOwner* owner) {
  if (owner_.exchange(owner, std::memory_order_acq_rel) != nullptr) return;
  parts_.completion.add(id_, channel_, parts_.counts[context_.counts],
                        [this] { run_on_worker([] {}); });  // until remove(), which this session's end waits for
  parts_.bell.listen(channel_.ring_doorbell());
}

bool Session::may_read() const {
  // A GPU that does not get on may have met a fault: an idle session keeps its records in the ring, from where they move with it.
  if (parts_.engine_stalled.load(std::memory_order_relaxed) && streams_.is_idle()) return false;
  return is_reading() && !paused_ && !awaits_share_ && !parts_.draining.load(std::memory_order_relaxed) && has_room();
}

bool Session::has_room() const {
  const QueuedTotal& queued = streams_.queued();
  return queued.records < kMaxQueuedRecords && queued.bytes < kMaxQueuedBytes && waiting_.size() + jobs_ < kMaxUnderWay;
}

void Session::fail(const char* record, const std::string& reason) {
  if (std::exchange(failed_, true)) return;
  log_error("Session {} (pid {}): {} is malformed: {}. The session ends; its client gets CUDA_ERROR_MPS_RPC_FAILURE. Other sessions go on", id_,
            client_pid_, record, reason);
  channel_.set_failed(CUDA_ERROR_MPS_RPC_FAILURE);
  drop_queued();
  waiting_.clear();  // never looked at again; its calls are answered by that
  abandon_jobs();
}

void Session::abandon_jobs() {
  is_gone_.store(true, std::memory_order_relaxed);
  jobs_ -= static_cast<unsigned>(heap_waits_.size());
  heap_waits_.clear();
  parts_.control.look_again();
}

bool Session::poll_waiting(TurnBudget& budget) {
  end_unheld_arrays();
  if (waiting_.empty() || failed_) return false;
  if (!waiting_.act(budget)) return true;
  end_unheld_arrays();
  return !waiting_.empty();
}

// Processes of a pid namespace that we do not see have no number: each of their sessions stands for itself.
HelperPool::Client Session::helper_client() const {
  const bool is_seen = static_cast<std::int32_t>(client_pid_) > 0;
  return {id_, is_seen ? std::uint64_t{client_pid_} : ~id_, client_uid_};
}

// Goes on in a helper's thread (HelperPool::loop), and ends there with finish_job().
void Session::start_job(std::function<void(const std::shared_ptr<Session>&)> job) {
  ++jobs_;
  parts_.helpers.submit(helper_client(), [self = shared_from_this(), job = std::move(job)]() mutable {
    const ScopedMark mark(self->id(), "a call out of line", Patience::patient);  // it may wait for the control process
    if (!self->is_gone()) return job(self);
    job = nullptr;  // nobody waits for it, and what it was to do, and holds, ends with the session
    self->finish_job();
  });
}

void Session::go_on_later(std::function<void()> act) {
  ++jobs_;
  finish_job([this, act = std::move(act)] {
    if (is_reading()) act();
  });
}

void Session::start_window_job(const char* what, std::function<void()> job, std::function<void()> done, std::chrono::microseconds expected) {
  ++jobs_;
  const auto run = [self = shared_from_this(), job = std::move(job), done = std::move(done)](WindowResult) {
    job();
    self->finish_job(done);
  };
  parts_.window.submit({.what = what, .session = id_, .deferrable = true, .run = run, .expected = expected});
}

void Session::start_window_call(const char* what, std::function<void(WindowResult)> job, std::chrono::microseconds expected) {
  ++jobs_;
  const auto run = [self = shared_from_this(), job = std::move(job)](WindowResult window) {
    job(window);
    self->finish_job();
  };
  parts_.window.submit({.what = what, .session = id_, .run = run, .expected = expected});
}

void Session::end_unheld_arrays() {
  if (!arrays_.has_ended() || arrays_.has_job || closing_) return;
  arrays_.has_job = true;
  start_window_job(
      "cuArrayDestroy", [this] { arrays_.destroy_ended(); }, [this] { arrays_.has_job = false; });
}

// Whoever waited for it may be gone: the text must not become another client's.
void Session::start_output(const std::shared_ptr<StreamQueue>& queue) {
  ++jobs_;
  parts_.helpers.submit(helper_client(), [self = shared_from_this(), queue] {
    {
      const ScopedMark mark(self->id(), "a call out of line");  // its work has ended: this is for the driver to write what was printed
      self->parts_.faults.check(queue->flush_output(), self->id(), "cuStreamSynchronize");
    }
    // The client looks for its text when its fence comes, which is behind this.
    if (self->parts_.output.deliver()) self->parts_.control.settle(kOutputTimeoutMs);
    self->finish_job([self, queue] {
      self->streams_.end_output(*queue);
      if (!self->streams_.has_output()) self->parts_.output.leave(self->id());
    });
  });
}

bool Session::poll_output() {
  while (const std::shared_ptr<StreamQueue> queue = streams_.begin_output()) start_output(queue);
  return streams_.has_output();
}

void Session::drop_queued() {
  streams_.drop_queued();
  if (!streams_.has_output()) parts_.output.leave(id_);
}

// Goes on in the session's worker (Worker::run_mailbox).
void Session::finish_job(std::function<void()> act) {
  run_on_worker([self = shared_from_this(), act = std::move(act)] {
    if (act) act();
    --self->jobs_;
  });
}

void Session::launch_in_window(const std::shared_ptr<StreamQueue>& queue) {
  ++jobs_;
  ++window_launches_;
  const std::shared_ptr<StreamOp> launch = queue->take_window_launch();
  if (queue->has_output()) streams_.note_output(queue);
  parts_.window.submit({"a launch that needs more local memory", id_, false,
                        [self = shared_from_this(), queue, launch](WindowResult window) {
                          if (window == WindowResult::open) {
                            queue->launch_in_window(*launch);
                          } else {
                            self->channel_.set_async_error(CUDA_ERROR_MPS_SERVER_NOT_READY);
                          }
                          self->finish_job([self, queue] {
                            queue->window_launch_done();
                            --self->window_launches_;
                          });
                        },
                        true});
}

// The session may be given away before its worker gets to the act: then that one sends it on.
void Session::run_on_worker(std::function<void()> act) {
  SessionOwner* const owner = owner_.load(std::memory_order_acquire);
  owner->post([self = shared_from_this(), owner, act = std::move(act)]() mutable {
    if (self->owner_.load(std::memory_order_acquire) == owner) return act();
    self->run_on_worker(std::move(act));
  });
}

StreamSet::Pace Session::take_pace() {
  const StreamSet::Pace now = streams_.pace();
  const StreamSet::Pace seen = std::exchange(pace_seen_, now);
  return {now.operations - seen.operations, now.fences - seen.fences};
}

// What arrays hold, or the device's heap, or external memory, or variables that are not kept: the client would have to be told so, and would end.
bool Session::would_lose_something() { return arrays_.holds_any() || memory_.external().holds_any() || !variables_->can_be_kept(); }

void Session::rest(std::uint32_t flags, std::function<void(CUresult)> answer) {
  const bool loses_variables = (flags & kPauseWithoutVariables) != 0 && variables_->is_any();
  if ((flags & kPauseDespiteVariables) == 0 && (loses_variables || would_lose_something())) return answer(CUDA_ERROR_NOT_PERMITTED);
  ++pause_number_;
  paused_ = true;
  times_are_left_ = false;
  rest_answer_ = std::move(answer);
}

bool Session::poll_rest() {
  if (!rest_answer_) return false;
  if (!streams_.is_idle() || jobs_ > 0 || !waiting_.empty()) return true;
  if (!variables_->are_kept() && variables_->can_be_kept()) return true;  // the keeper sees to it
  if (!times_are_left_) {
    leave_times([this, number = pause_number_] { times_are_left_ = number == pause_number_; });
    return true;
  }
  std::exchange(rest_answer_, nullptr)(CUDA_SUCCESS);
  return false;
}

// A launch that waits for a window is work that does not end before. What has a number of the driver's (conditions, textures) may have another one
// elsewhere.
bool Session::is_movable() const {
  return is_reading() && window_launches_ == 0 && variables_->can_be_kept() && !arrays_.holds_any() && !arrays_.holds_samplers() &&
         !memory_.external().holds_any() && conditions_.is_empty();
}

void Session::pause(bool without_variables, std::function<void(CUresult)> answer) {
  if (!is_movable()) return answer(CUDA_ERROR_NOT_PERMITTED);
  ++pause_number_;
  paused_ = true;
  answer_pause(without_variables, answer);
}

// What its modules' variables hold has to be where the next executor finds it.
void Session::answer_pause(bool without_variables, const std::function<void(CUresult)>& answer) {
  when_streams_completed([this, without_variables, answer, number = pause_number_] {
    if (number != pause_number_) return;
    if (without_variables && variables_->is_any()) return answer(CUDA_ERROR_NOT_PERMITTED);
    if (!variables_->are_kept()) return answer_pause(without_variables, answer);
    leave_times([this, answer, number] {
      if (number == pause_number_) answer(CUDA_SUCCESS);
    });
  });
}

// Of its events, read by a helper: nothing is in flight and nothing is read. `left` then runs on the worker, the file under way before it.
void Session::leave_times(std::function<void()> left) {
  std::vector<EventTime> kept;
  std::vector<RecordedEvent> recorded;
  events_.for_each([&](proto::EventId id, SessionEvent& event) {
    if (event.last && event.last->has_timing && event.last->is_issued) recorded.push_back({id, event.last});
    if (!event.last && event.kept_ns) kept.push_back({id.value, *event.kept_ns});
  });
  if (kept.empty() && recorded.empty()) return left();
  start_job([kept = std::move(kept), recorded = std::move(recorded), left = std::move(left)](const std::shared_ptr<Session>& session) mutable {
    ExecutorParts& parts = session->parts();
    const TimeBase base = recorded.empty() ? TimeBase{} : parts.host_clock.base();
    for (const EventTime& time : read_event_times(parts.driver, base, recorded)) kept.push_back(time);
    send_event_times(parts.control, session->id(), kept);
    session->finish_job(std::move(left));
  });
}

void Session::resume() {
  ++pause_number_;
  paused_ = false;
  times_are_left_ = false;
  rest_answer_ = nullptr;
  if (awaits_share_ || share_wish_ != wish_) seek_share();
}

void Session::add_variables(proto::ModuleId module, const ImageRef& image, bool are_restored) {
  if (are_restored)
    variables_->restored(module, image);
  else
    variables_->add(module, image);
  parts_.variables.add(variables_);
}

// Not in the act alone: a session that fails drops its acts, while what it has issued goes on.
void Session::retire_module(const SessionModule& module) {
  for (const std::uint64_t address : module.globals) memory_.remove_global(address);
  leaving_uses_.insert(module.use);
  when_completed([this, image = module.image, use = module.use.get()] {
    retire_image(image);
    std::erase_if(leaving_uses_, [&](const ImageUse& one) { return one.get() == use; });
  });
}

void Session::retire_image(ImageRef image) {
  if (std::find(retired_images_.begin(), retired_images_.end(), image) != retired_images_.end()) return;
  if (retired_images_.size() >= kMaxRetiredImages) {
    streams_.forget_chains();
    retired_images_.clear();
  }
  retired_images_.push_back(std::move(image));
}

void Session::seek_blank_heap(std::function<void()> act) {
  if (has_heap_ || is_gone()) return act();  // nobody is asked for who ends: there would be no answer
  ++jobs_;
  heap_waits_.push_back(std::move(act));
  if (heap_waits_.size() == 1) parts_.control.send(message::HeapWanted{.session = id_, .flags = is_movable() ? 0 : kStarvesInPlace});
}

void Session::heap_given() {
  has_heap_ = true;
  for (const std::function<void()>& act : std::exchange(heap_waits_, {})) {
    act();
    --jobs_;
  }
}

// Nobody can say what its kernels leave there, nor give it back.
void Session::note_heap_use() {
  if (std::exchange(uses_heap_, true)) return;
  parts_.control.send(message::HeapUsed{.session = id_});
}

}  // namespace mpsshim::broker
