// SPDX-License-Identifier: Apache-2.0
// All streams of one session: which id is which queue, who has work, and legacy ordering of the session's NULL stream.
//
// Legacy order is made where operations are queued, with events of our own: work of the NULL stream waits for what blocking streams have queued
// since it last did, theirs for the NULL stream's before it. Who uses one stream pays nothing. The NULL stream of a context with a part of the
// multiprocessors is a blocking stream to the session's, which comes between where it orders. In the same way all streams come behind a barrier:
// a synchronous copy to the device, which its client does not wait for. A destroyed stream stays here until its work has ended. Touched by the
// session's worker alone.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "broker/executor/base/turn_budget.hpp"
#include "broker/executor/streams/stream_queue.hpp"
#include "proto/handle_table.hpp"

namespace mpsshim::broker {

class StreamSet {
 public:
  // How far every stream had been filled at some moment; those that have come so far are taken out as they are found.
  struct Mark {
    std::vector<std::pair<std::shared_ptr<StreamQueue>, std::uint32_t>> positions;
  };
  struct Issue {
    bool any = false;            // something was handed to the driver
    bool waits_for_gpu = false;  // credit, or a window: look again before long
    bool lacks_credit = false;
    bool expects_fence = false;                 // asked again, it issues
    bool gathers = false;                       // asked again before long, it issues
    std::shared_ptr<StreamQueue> needs_window;  // its head is a launch for a quiet window
  };

  explicit StreamSet(const IssueContext& context) : context_(context) {}
  StreamSet(const StreamSet&) = delete;

  [[nodiscard]] CUresult open();  // the NULL stream
  [[nodiscard]] CUresult create(proto::StreamId id, bool is_blocking, int priority);
  // All streams that are made without a green context are this one's from now on, the NULL stream too. Nothing was ever queued.
  [[nodiscard]] CUresult confine(const GreenContextRef& share);
  // On the multiprocessors of a green context.
  [[nodiscard]] CUresult create_green(proto::StreamId id, const GreenContextRef& green, int priority, StreamOrder order);
  // The id is free from now on; the queue goes on until its work has ended. False if there is no such stream.
  [[nodiscard]] bool retire(proto::StreamId id);
  [[nodiscard]] StreamQueue* find(proto::StreamId id) const;

  void append(StreamQueue& queue, StreamOp op);
  // Work appended from now on, to whatever stream, or to those of a green context, comes after what `queue` holds now.
  void order_all_behind(StreamQueue& queue, const GreenContext* of = nullptr);
  // `queue` goes on once all that other streams, or those of a green context, hold now has ended, destroyed ones included.
  void order_behind_all(StreamQueue& queue, const GreenContext* of = nullptr);
  [[nodiscard]] const QueuedTotal& queued() const { return total_; }
  // All operations ever appended, and the fences among them.
  struct Pace {
    std::uint64_t operations = 0;
    std::uint64_t fences = 0;
  };
  [[nodiscard]] const Pace& pace() const { return pace_; }
  // The same, and what was put between them for their order.
  [[nodiscard]] std::uint64_t appended() const { return appended_; }

  // With the quiet window's gate held: lets every stream with work issue, in turn. Where the budget ends, the next call begins with the stream
  // behind; `any` is true then.
  [[nodiscard]] Issue issue(TurnBudget& budget, bool is_short_of_time = false);
  [[nodiscard]] Issue issue(bool is_short_of_time = false) {
    TurnBudget all = TurnBudget::unlimited();
    return issue(all, is_short_of_time);
  }
  // Copies what queues still borrow from the worker's batch, which is about to be overwritten.
  void own_borrowed();
  // Progress of all streams that lack it. Needs no gate: a closing window waits for exactly these writes. False: the budget has ended before.
  [[nodiscard]] bool write_progress(TurnBudget& budget);
  // The same as StreamQueue::offer_progress(), of all. `is_owed`: of some it is.
  [[nodiscard]] bool offer_progress(TurnBudget& budget, bool& is_owed);
  void write_progress() {
    TurnBudget all = TurnBudget::unlimited();
    (void)write_progress(all);
  }
  // Passes on fences whose work has ended since they were issued; true if none is left. To be called again and again until then.
  bool settle_fences();
  // Some of them are owed, and somebody looks for them: to be looked for, with the gate held.
  [[nodiscard]] bool has_wanted_fences() const;
  void look_for_owed();
  // Streams whose kernels may have printed what the driver has not written yet.
  [[nodiscard]] bool has_output() const { return !printing_.empty(); }
  void note_output(const std::shared_ptr<StreamQueue>& queue);
  // One whose output is due, which is begun; null: none.
  [[nodiscard]] std::shared_ptr<StreamQueue> begin_output();
  void end_output(StreamQueue& queue);
  // Gives streams of destroyed queues back whose work has ended. True while some are left.
  bool reap();

  // Nothing queued, nothing in flight.
  [[nodiscard]] bool is_idle() const;
  // Says in the progress table that records were taken out of the ring whose work is not all issued: should the executor end now, they are lost.
  void set_held(bool held) { null_stream_->set_held(held); }

  // The stream whose work that fence stands behind; nullptr: all of it has ended.
  [[nodiscard]] const StreamQueue* find_busy(std::uint32_t fence) const;
  [[nodiscard]] Mark mark() const;
  [[nodiscard]] static bool has_issued(Mark& mark);
  [[nodiscard]] static bool has_completed(Mark& mark);

  // Streams that are idle go on in that context (StreamQueue::move_to). True if all of them are there.
  [[nodiscard]] bool move_to(SideContext* side);
  [[nodiscard]] std::size_t count() const;
  // The session has another part of the device from now on (null: all of it), or another priority. What comes now goes there: a stream at work issues
  // nothing more until that has ended. Its order would make the work wait anyway.
  void change_places(const GreenContextRef& share);
  // Streams do not have the place yet that they should: besides that, clients' priorities have come apart, or together again (PriorityRanks), where
  // one that is never idle keeps what it has. Those that are idle get it.
  [[nodiscard]] bool has_other_places() const { return is_changing_ || context_.parts.ranks.ranks_behind(context_.priority_rank) != ranks_behind_; }
  void take_places();

  void forget_chains();
  void drop_queued();
  void retire_all();

 private:
  struct Entry {
    std::shared_ptr<StreamQueue> queue;
    int asked_priority = 0;
    GreenContextRef own_green{};  // the client's, which it stays in
  };
  using Table = proto::HandleTable<proto::HandleKind::stream, Entry>;

  // What order_all_behind() was called for in a stream, until it has ended.
  struct Barrier {
    std::shared_ptr<StreamQueue> queue;
    std::uint32_t position = 0;
    PointRef point;                    // once somebody waits for it
    const GreenContext* of = nullptr;  // whose streams come behind it; null: all. Compared, never used
  };

  [[nodiscard]] CUresult add(proto::StreamId id, std::unique_ptr<PooledStream> stream, bool is_blocking, int asked_priority,
                             const GreenContextRef& own_green = nullptr);
  void order_null_stream();
  void order_behind_barriers(StreamQueue& queue);
  void order_blocking_stream(StreamQueue& queue);
  void retire(std::shared_ptr<StreamQueue> queue);
  [[nodiscard]] PointRef record_point(StreamQueue& queue);
  void put(StreamQueue& queue, StreamOp op);
  template <typename F>
  bool for_unwritten(TurnBudget& budget, F&& write);

  const IssueContext& context_;
  QueuedTotal total_;
  Pace pace_;
  std::uint64_t appended_ = 0;
  int ranks_behind_ = 0;           // when streams were given their priorities
  bool is_changing_ = false;       // change_places(), and not all of them have
  bool has_null_streams_ = false;  // others than the session's
  Table table_;
  std::shared_ptr<StreamQueue> null_stream_;
  GreenContextRef share_;                             // null: the whole device
  std::vector<std::shared_ptr<StreamQueue>> active_;  // have something queued, progress not yet written or late fences
  std::size_t next_ = 0;                              // of those: whose turn to issue it is
  std::vector<std::shared_ptr<StreamQueue>> retiring_;
  std::vector<std::shared_ptr<StreamQueue>> unordered_;  // blocking streams with work that the NULL stream has not waited for
  std::uint64_t null_version_ = 0;                       // counts the NULL stream's work
  std::uint64_t null_point_version_ = 0;                 // the version that null_point_ stands behind
  PointRef null_point_;
  std::vector<std::shared_ptr<StreamQueue>> printing_;
  std::vector<Barrier> barriers_;  // one for a stream and a context at most
  std::uint64_t barrier_version_ = 0;
};

}  // namespace mpsshim::broker
