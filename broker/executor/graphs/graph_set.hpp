// SPDX-License-Identifier: Apache-2.0
// The executable graphs of a session: by id while the client has them, then until their last launch has ended and a quiet window has given
// them back to the driver. Owned by the session, touched by its worker alone; release_some() by the windows that take the session down.
// What a client may make the executor hold in descriptions is bounded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "broker/executor/base/turn_budget.hpp"
#include "broker/executor/graphs/session_graph.hpp"
#include "proto/handle_table.hpp"
#include "proto/ids.hpp"

namespace mpsshim::broker {

class GraphSet {
 public:
  static constexpr std::size_t kMostBytes = 512u << 20;  // of the descriptions of a session's graphs
  static constexpr std::size_t kMostGraphs = 65'536;     // live ones, and those on their way out

  enum class State : std::uint8_t { described, refused, made };  // refused: its description exceeds what the session may have
  struct Entry {
    std::shared_ptr<SessionGraph> graph;
    std::size_t bytes = 0;
    State state = State::described;
  };
  using Table = proto::HandleTable<proto::HandleKind::graph_exec, Entry>;

  explicit GraphSet(ExecutorParts& parts) : parts_(parts) {}
  GraphSet(const GraphSet&) = delete;

  // Null if there is none.
  [[nodiscard]] Entry* find(proto::GraphExecId id) const { return table_.find(id).get(); }
  // A graph to be described. Null: there are too many, or the id is in use.
  [[nodiscard]] Entry* add(proto::GraphExecId id);
  // False: the session's graphs would exceed what it may have.
  [[nodiscard]] bool describe(Entry& entry, std::span<const std::byte> bytes);
  // The graph leaves the table; once its launches have ended, give_back() is to be called with it.
  [[nodiscard]] std::shared_ptr<SessionGraph> take(proto::GraphExecId id);
  void give_back(std::shared_ptr<SessionGraph> graph) { ended_.push_back(std::move(graph)); }
  // Ready ones that have kernels on other multiprocessors than those of that share, which is the session's (SessionGraph::is_outside).
  [[nodiscard]] std::vector<std::shared_ptr<SessionGraph>> outside(const GreenContextRef& share) const;
  // Graphs for the next window to destroy.
  [[nodiscard]] std::vector<std::shared_ptr<SessionGraph>> take_ended();
  void forget(const std::vector<std::shared_ptr<SessionGraph>>& destroyed);
  bool has_job = false;  // a window for them is asked for

  // When the session has ended: by a helper, what holds up nobody, and nobody asks for one by its id any more; then, in windows, the graphs. False:
  // there are more.
  void release_unheld();
  void forget_names();
  [[nodiscard]] std::chrono::microseconds next_release_time() const;
  [[nodiscard]] bool release_some(TurnBudget& budget);

 private:
  ExecutorParts& parts_;
  Table table_;
  std::set<std::shared_ptr<SessionGraph>> all_;       // every one that the driver may know
  std::vector<std::shared_ptr<SessionGraph>> ended_;  // no launch is under way
  std::size_t bytes_ = 0;
};

}  // namespace mpsshim::broker
