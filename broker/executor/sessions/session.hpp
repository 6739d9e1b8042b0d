// SPDX-License-Identifier: Apache-2.0
// One client in the executor: its channel and its streams, besides what it has (session_objects.hpp). Held by shared_ptr: its worker, jobs out of
// line and unanswered replies keep it alive; what belongs to the device is given back by begin_close(), not by the destructor.
// Longer than other headers: reading, jobs, pauses and the end look at the same few counts, and each would need the others' members.
//
// Threads: one worker at a time owns a session and alone touches tables, queues and counters. Other threads reach it through
// run_on_worker(). memory(), channel() and the ids are safe anywhere.
// Trust: nothing that comes through the channel is; see dispatch.hpp. A client's failure ends this session and no other.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "broker/control_messages.hpp"
#include "broker/executor/base/helper_pool.hpp"
#include "broker/executor/context/parts.hpp"
#include "broker/executor/link/client_channel.hpp"
#include "broker/executor/modules/session_variables.hpp"
#include "broker/executor/sessions/arrival_forecast.hpp"
#include "broker/executor/sessions/session_home.hpp"
#include "broker/executor/sessions/session_objects.hpp"
#include "broker/executor/sessions/session_owner.hpp"
#include "broker/executor/sessions/session_waits.hpp"
#include "broker/executor/streams/stream_set.hpp"
#include "broker/executor/window/window_job.hpp"

namespace mpsshim::broker {

class Session : public SessionObjects, public std::enable_shared_from_this<Session> {
 public:
  // Maps and registers everything of a SessionOpen packet. nullptr and the reason in `result` if the session cannot be served.
  [[nodiscard]] static std::shared_ptr<Session> open(ExecutorParts& parts, Received<message::SessionOpen> received, CUresult& result);
  // For a session that open() returned and no worker got: takes down what it has in the driver.
  static void discard(const std::shared_ptr<Session>& session);
  Session(const Session&) = delete;
  ~Session();

  [[nodiscard]] std::uint32_t client_pid() const { return client_pid_; }
  [[nodiscard]] ClientChannel& channel() { return channel_; }
  [[nodiscard]] SessionVariables& variables() { return *variables_; }

  // --- the owning worker only, from here on ---
  [[nodiscard]] StreamSet& streams() { return streams_; }

  // Ends this session because its client broke the protocol. `record` names what was read, `reason` is a clause ("its id is unknown").
  void fail(const char* record, const std::string& reason);
  // A kernel that may take memory of the device's heap is queued: what it leaves there stays when the session has ended.
  void note_heap_use();
  // Before it has its first module whose kernels may do so, on a heap where clients that have ended may have left something: the control process may
  // have the session served elsewhere. `act` otherwise, at once or later; until then the call that it belongs to is under way.
  void seek_blank_heap(std::function<void()> act);
  void heap_given();  // it stays here
  // A session that is to have a share of the multiprocessors gets it, before anything is read: once its worker has it.
  void await_share();
  // In place of what it was opened with; `answer` is called once all that comes from then on goes by it, unless the session ends before. It gets
  // the percentage that the session has then.
  using ProvisionAnswer = std::function<void(CUresult, std::uint32_t)>;
  void provision(const message::SessionProvision& wanted, ProvisionAnswer answer);
  // Kernels of a graph that was made meanwhile are to be where the session's are. `done`, if given: when they are, or cannot be.
  void confine_graphs(std::function<void()> done = {});
  // For results of driver calls made on behalf of posts.
  [[nodiscard]] const IssueContext& context() const { return context_; }
  [[nodiscard]] bool is_reading() const { return !failed_ && !closing_; }
  // Also false while too much is under way: a client cannot make the executor hold more than its share.
  [[nodiscard]] bool may_read() const;
  [[nodiscard]] bool has_room() const;
  // The head of `queue` is a launch that would wait for every running kernel: made by a quiet window, while the queue stands still.
  void launch_in_window(const std::shared_ptr<StreamQueue>& queue);
  // Visits of the worker since something was read or issued; it decides when progress is written.
  unsigned dry_visits = 0;
  // Turns it has taken to their end, of late, and the time in which its worker had something to do for it (placement).
  std::uint64_t full_turns = 0;
  std::chrono::nanoseconds turn_time{0};

  // `act` runs on the worker once all work queued so far has been issued, and with `completed` has ended by private progress; jobs that were
  // given addresses by then have ended, too.
  void when_issued(std::function<void()> act) { waiting_.add({streams_.mark(), false, {}, std::move(act)}); }
  void when_completed(std::function<void()> act) { waiting_.add({streams_.mark(), true, memory_uses_.live(), std::move(act)}); }
  // As when_completed(), whatever jobs there are: one of them may be waiting for just that.
  void when_streams_completed(std::function<void()> act) { waiting_.add({streams_.mark(), true, {}, std::move(act)}); }
  [[nodiscard]] MemoryUses& memory_uses() { return memory_uses_; }
  // Runs what has become due, as far as the budget goes. True while something still waits.
  bool poll_waiting(TurnBudget& budget);
  bool poll_waiting() {
    TurnBudget all = TurnBudget::unlimited();
    return poll_waiting(all);
  }

  // Runs `act` in a later turn of the worker's, unless the session fails or closes by then; until then it is under way, as a job is.
  void go_on_later(std::function<void()> act);
  // Whether some of the device memory that it has given up is still to become the device's, or its user's.
  [[nodiscard]] bool is_releasing() const;
  // As start_job(), once all that was given up by now is free, where nobody's kernel holds up what ends it.
  void start_after_releases(std::function<void(const std::shared_ptr<Session>&)> job);
  // Has `job` done by a helper. It gets the session, and comes back through finish_job(): until then the session is not taken down.
  void start_job(std::function<void(const std::shared_ptr<Session>&)> job);
  // The same in a quiet window, whenever one comes.
  // `done`: then, on the worker. `expected`: as in WindowJob.
  void start_window_job(const char* what, std::function<void()> job, std::function<void()> done = {}, std::chrono::microseconds expected = {});
  // The same for a call that somebody waits for: `job` is also run where no window came, and is told so.
  void start_window_call(const char* what, std::function<void(WindowResult)> job, std::chrono::microseconds expected = {});
  // Any thread: `act`, then the end of the job, on the worker.
  void finish_job(std::function<void()> act = {});

  // On the worker: a module whose image has variables is there, as it was loaded or with what an earlier executor had kept of them.
  void add_variables(proto::ModuleId module, const ImageRef& image, bool are_restored);
  // Its module has gone: the copy is nobody else's until all that was queued by now has ended, whatever becomes of the session meanwhile.
  void retire_module(const SessionModule& module);

  // Whether its client could go on elsewhere with what it has.
  [[nodiscard]] bool is_movable() const;
  // Its client is to be served by another executor: nothing more is read, and `answer` gets CUDA_SUCCESS once all that was read has ended by
  // private progress. Another answer: the client could not go on elsewhere with what it has, which is
  // nothing in modules' variables if it is to go `without_variables`.
  void pause(bool without_variables, std::function<void(CUresult)> answer);
  // It stays after all, whatever pause() or rest() has answered. An answer that has not come does not come any more.
  void resume();
  // Its executor is to be replaced: as pause(), but calls under way are waited for too. A second one takes the place of the first.
  // `flags`: kPauseDespiteVariables, whatever would be lost; kPauseWithoutVariables, which could not come with it.
  void rest(std::uint32_t flags, std::function<void(CUresult)> answer);
  // Has helpers see to what kernels have printed. True while there is such a stream.
  bool poll_output();
  // Answers rest() once it is so. True while that is awaited.
  bool poll_rest();

  // What it has done since the last call.
  [[nodiscard]] StreamSet::Pace take_pace();

  [[nodiscard]] SessionHome& home() { return home_; }
  [[nodiscard]] ArrivalForecast& arrivals() { return arrivals_; }

  // --- any thread ---
  // Failed or closing: what waits on its behalf has no one to wait for.
  [[nodiscard]] bool is_gone() const { return is_gone_.load(std::memory_order_relaxed); }
  // Runs `act` on the owning worker; dropped if the executor ends first.
  void run_on_worker(std::function<void()> act);
  // From now on `owner` owns it. By the one that owned it before, if there was one.
  void set_owner(SessionOwner* owner);

  // Owner only. Starts taking down: no more reading, queued work dropped. Then advance_close() until it returns true, which hands the rest
  // to a helper and to quiet windows; `closed` is called from there when nothing of the session is left in the driver.
  void begin_close(std::function<void()> closed);
  [[nodiscard]] bool is_closing() const { return closing_; }
  [[nodiscard]] bool advance_close();

 private:
  Session(ExecutorParts& parts, const message::SessionOpen& open);
  void answer_pause(bool without_variables, const std::function<void(CUresult)>& answer);
  void leave_times(std::function<void()> left);
  void abandon_jobs();
  [[nodiscard]] HelperPool::Client helper_client() const;
  void end_unheld_arrays();
  void start_output(const std::shared_ptr<StreamQueue>& queue);
  void drop_queued();
  // Prepared graphs may still name functions of the image, so it is kept until they are forgotten.
  void retire_image(ImageRef image);
  void release_modules();
  void release_links();
  void release_greens();
  void seek_share();
  void take_share(CUresult result, SessionShare share, const ShareWish& wish);
  void take_first_share(CUresult result);
  void change_share(SessionShare share, const ShareWish& wish);
  void set_priority_rank(unsigned rank);
  void provisioned(CUresult result);
  void take_down();
  void release_memory();
  void end_in_window();
  [[nodiscard]] bool release_some();
  [[nodiscard]] bool would_lose_something();

  const std::uint32_t client_pid_;
  const std::uint32_t client_uid_;
  ShareWish wish_;        // what it is to have of the multiprocessors
  ShareWish share_wish_;  // what share_ is for
  std::vector<ProvisionAnswer> provision_answers_;
  ClientChannel channel_;
  const std::shared_ptr<SessionVariables> variables_;
  IssueContext context_;
  StreamSet streams_;
  SessionHome home_;
  ArrivalForecast arrivals_;
  SessionWaits waiting_;
  MemoryUses memory_uses_;
  std::vector<ImageRef> retired_images_;
  std::set<ImageUse> leaving_uses_;  // of modules that have gone, whose work has not ended
  std::function<void()> closed_;
  std::function<void(CUresult)> rest_answer_;
  std::atomic<SessionOwner*> owner_{nullptr};
  StreamSet::Pace pace_seen_;
  unsigned jobs_ = 0;
  unsigned window_launches_ = 0;      // those of jobs_ that are work of its streams
  std::atomic<bool> is_gone_{false};  // stored by the worker, loaded by helpers: a late look costs a wait, nothing else
  std::vector<std::function<void()>> heap_waits_;  // counted in jobs_
  bool has_heap_ = false;
  bool uses_heap_ = false;
  bool failed_ = false;
  bool closing_ = false;
  bool paused_ = false;
  bool awaits_share_ = false;
  bool has_asked_share_ = false;
  bool has_changed_share_ = false;     // since it was opened
  std::size_t graphs_to_confine_ = 0;  // under way
  std::uint64_t pause_number_ = 0;  // of the last pause(), rest() or resume(): what an earlier one has begun ends without an answer
  bool times_are_left_ = false;     // for the next executor, since it rests
  bool handed_over_ = false;
  bool is_ending_ = false;  // in a window
};

}  // namespace mpsshim::broker
