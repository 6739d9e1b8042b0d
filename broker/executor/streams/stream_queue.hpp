// SPDX-License-Identifier: Apache-2.0
// One stream of a session: operations decoded but not yet handed to the driver; of those that were there is an account (StreamAccount).
// Touched by the session's worker alone; the gate of the quiet window is held where issue() is called.
// Longer than other headers: each kind of operation is issued in a file of its own, from the same few counts.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "broker/executor/chains/chain.hpp"
#include "broker/executor/context/issue_context.hpp"
#include "broker/executor/context/stream_pool.hpp"
#include "broker/executor/operations/stream_op.hpp"
#include "broker/executor/streams/gathering.hpp"
#include "broker/executor/streams/owed_fences.hpp"
#include "broker/executor/streams/stream_account.hpp"
#include "broker/executor/streams/stream_state.hpp"
#include "proto/ids.hpp"

namespace mpsshim::broker {

class StreamQueue : public std::enable_shared_from_this<StreamQueue> {
 public:
  using Stop = StreamStop;

  StreamNotes notes;

  StreamQueue(const IssueContext& context, QueuedTotal& total, std::uint32_t fence_index, bool is_blocking, std::unique_ptr<PooledStream> stream);
  StreamQueue(const StreamQueue&) = delete;

  void append(StreamOp op);
  // Copies what operations appended since the last call still borrow from the worker's batch.
  void own_borrowed();
  // Hands operations to the driver, at most `budget` submissions. `is_short_of_time`: of its worker (gathering.hpp).
  [[nodiscard]] Stop issue(std::uint32_t budget, bool is_short_of_time);
  // Has the GPU write the progress word if it does not already stand behind everything issued.
  void write_progress();
  // The same where nobody asks for it: not while words are under way, for each write holds the stream up for some 3 us. False: it is owed.
  [[nodiscard]] bool offer_progress();
  // Passes fences on whose work has ended since; true if none is left that somebody looks for. To be called again and again until then.
  bool settle_fences();
  [[nodiscard]] bool has_late_fences() const { return !late_fences_.empty() || !owed_.is_empty(); }
  // The same of those that are owed, by asking the driver; the gate is held.
  [[nodiscard]] bool has_wanted_fences() const { return owed_.is_any_wanted(); }
  void look_for_owed();
  // Forgets what is queued; what was issued goes on.
  void drop_queued();

  // The launch at the head, to be made by `launch_in_window` in a quiet window; the queue stands still until window_launch_done().
  [[nodiscard]] std::shared_ptr<StreamOp> take_window_launch();
  void launch_in_window(const StreamOp& op);  // the window's thread
  void window_launch_done();

  // A kernel that may print was issued, and the driver has not been made to write since.
  [[nodiscard]] bool has_output() const { return has_output_; }
  // All that was issued has ended, so the driver can be: by flush_output(), between begin_ and end_output() of the worker.
  [[nodiscard]] bool is_output_due() const { return has_output() && !is_flushing_output_ && !in_window_ && has_completed(account_.issued()); }
  void begin_output() { is_flushing_output_ = true; }
  [[nodiscard]] CUresult flush_output() const;
  void end_output();

  void set_held(bool held) {
    const std::uint32_t value = held ? 1 : 0;
    if (!is_finished() && word().held.load(std::memory_order_relaxed) != value) word().held.store(value, std::memory_order_release);
  }

  [[nodiscard]] bool is_blocking() const { return is_blocking_; }
  [[nodiscard]] bool is_empty() const { return ops_.empty() && !in_window_; }
  [[nodiscard]] bool has_unwritten_progress() const { return account_.written() != account_.issued(); }
  [[nodiscard]] bool is_idle() const { return is_empty() && has_completed(appended_) && !is_probing() && !has_output(); }
  [[nodiscard]] std::uint32_t fence_index() const { return fence_index_; }
  [[nodiscard]] CUstream handle() const { return aside_ ? aside_->handle() : stream_->handle; }  // of one that is not finished
  [[nodiscard]] std::uint32_t position() const { return appended_; }                             // of the last operation appended
  [[nodiscard]] bool has_issued(std::uint32_t position) const { return progress_reached(account_.issued(), position) && !in_window_; }
  [[nodiscard]] bool has_completed(std::uint32_t position) const;

  // In a green context, a side context or a client's: no other thread may touch it meanwhile.
  [[nodiscard]] bool is_in_green() const { return chains_.pool().green() != nullptr; }
  // From now on its work goes into a stream of that context; null: of the executor's own. False: what was issued has not ended, or there is no
  // stream for it. A queue that cannot be aside stays where it is, and that is well.
  [[nodiscard]] bool move_to(SideContext* side);

  // Its work goes into that context (null: the executor's, or a side context) with that priority from now on. False: what was issued has not ended.
  [[nodiscard]] bool change_place(const GreenContextRef& green, int priority);

  // Graphs that name functions of a module that goes away.
  void forget_chains() { chains_.clear(); }
  // Gives the driver's stream back; the queue is idle. From then on every position counts as completed.
  void finish();
  [[nodiscard]] bool is_finished() const { return stream_ == nullptr; }
  // Whose multiprocessors it has; null: the whole device's, or it is finished.
  [[nodiscard]] const GreenContext* green() const { return stream_ != nullptr ? stream_->green.get() : nullptr; }

 private:
  // A fence that came when the words of the work before it were under way already; it has the position behind them.
  struct LateFence {
    std::uint32_t position = 0;
    std::uint32_t value = 0;
  };

  [[nodiscard]] bool has_credit() { return account_.has_credit(context_.parts.is_crowded.load(std::memory_order_relaxed), word().completed); }
  [[nodiscard]] bool expects_fence();
  [[nodiscard]] bool may_owe_progress() const;
  [[nodiscard]] bool may_owe(const RecordOp& record) const;
  void owe(RecordOp& record);
  [[nodiscard]] std::optional<std::uint32_t> fence_behind(std::size_t launches);
  [[nodiscard]] bool has_left_for(const StreamOp& head);
  [[nodiscard]] std::optional<Stop> blocked_by_head();
  [[nodiscard]] bool gathers();
  [[nodiscard]] bool waits_for_output(const StreamOp& head);
  void note_output();
  void issue_head();
  [[nodiscard]] std::size_t chained_launches_at_head() const;
  [[nodiscard]] std::size_t chain_at_head() const;
  void issue_launches();
  [[nodiscard]] bool issue_chain(std::size_t length);
  void count_launches(std::uint32_t launches, bool are_chained);
  void count_for_session(std::uint32_t launches);  // a graph is one
  [[nodiscard]] CUresult launch(const LaunchOp& launch);
  [[nodiscard]] CUresult launch_with_attributes(const LaunchOp& launch);
  void issue_graph(const GraphOp& op);
  [[nodiscard]] CUresult launch_graph(const GraphOp& op);
  void issue_copy(const CheckedCopy& copy);
  void issue_copy_box(const CheckedBoxCopy& copy);
  void issue_fill(const CheckedFill& fill);
  void issue_record(RecordOp& record);
  void record_event(CUevent event);
  void issue_wait(const WaitOp& wait);
  void issue_fence(const FenceOp& fence);
  void issue_write(const ValueWriteOp& write);
  void issue_array_copy(const CheckedArrayCopy& copy);
  [[nodiscard]] bool has_value(ValueWaitOp& wait);
  void send_probe(ValueWaitOp& wait);
  [[nodiscard]] bool is_probing() const;
  void write_fence(std::uint32_t value);
  void note_words();  // are on their way
  void begin(std::uint32_t operations);
  void begin_kernel(const LoadedFunction& kernel);
  void note_writer(std::uint32_t position);
  void note_launches(std::span<const LaunchOp* const> launches);
  void note_write(std::uint64_t address, std::uint64_t size_bytes);
  void note_kernel(std::uint32_t position, const LoadedFunction& function);
  void note_touch(std::uint32_t position);
  void note_kind(std::uint32_t kind);
  void pop_head();
  [[nodiscard]] WordWrites words(std::optional<std::uint32_t> fence_value) const;
  void note_rhythm();  // words are about to be written
  [[nodiscard]] bool prefers_memory_operations();
  [[nodiscard]] CUresult write_words(std::optional<std::uint32_t> fence_value);
  [[nodiscard]] CUresult write_by_memory_operations(const WordWrites& words);
  [[nodiscard]] const Driver& driver() const { return context_.parts.driver; }
  [[nodiscard]] std::atomic<std::uint32_t>& local_bytes_high_water() const;  // of its context
  [[nodiscard]] DrawnArrows drawn_arrows() { return {notes.arrows, in_window_ ? std::nullopt : std::optional(account_.issued())}; }
  // Held around every call that names the driver's stream.
  [[nodiscard]] IssueLock& issue_lock() const { return chains_.pool().issue_lock(); }
  [[nodiscard]] StreamProgress& word() const { return context_.parts.progress[stream_->progress_index]; }

  const IssueContext& context_;
  QueuedTotal& total_;
  const std::uint32_t fence_index_;
  const bool is_blocking_;
  std::unique_ptr<PooledStream> stream_;
  std::unique_ptr<SideStream> aside_;  // takes the place of stream_'s
  bool stays_ = false;                 // in the executor's own context, for what it has launched
  ChainCache chains_;
  std::deque<StreamOp> ops_;
  std::size_t borrowed_ = 0;      // so many operations at the back may point into the batch
  std::size_t issue_singly_ = 0;  // so many launches at the head go out plainly: their chain was refused
  bool has_expected_fence_ = false;
  bool is_short_of_time_ = false;
  Gathering gathering_;
  std::uint32_t probes_ = 0;  // sent: see send_probe()
  bool has_output_ = false;
  bool is_flushing_output_ = false;
  bool window_graph_writes_ = false, in_window_ = false;  // what is in the window may write to variables of modules
  std::shared_ptr<StreamOp> window_op_;  // meanwhile
  StreamAccount account_;
  std::uint32_t appended_ = 0;
  std::deque<LateFence> late_fences_;
  OwedFences owed_;
  Rhythm rhythm_;
  std::vector<void*> addresses_;  // scratch
};

}  // namespace mpsshim::broker
