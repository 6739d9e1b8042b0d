// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/graphs/graph_set.hpp"

#include <utility>

namespace mpsshim::broker {

GraphSet::Entry* GraphSet::add(proto::GraphExecId id) {
  if (all_.size() >= kMostGraphs) return nullptr;
  auto entry = std::make_unique<Entry>();
  entry->graph = std::make_shared<SessionGraph>(parts_);
  Entry* const added = entry.get();
  if (!table_.insert(id, std::move(entry))) return nullptr;
  all_.insert(added->graph);
  return added;
}

bool GraphSet::describe(Entry& entry, std::span<const std::byte> bytes) {
  if (bytes.size() > kMostBytes - bytes_) return false;
  bytes_ += bytes.size();
  entry.bytes += bytes.size();
  entry.graph->describe(bytes);
  return true;
}

std::shared_ptr<SessionGraph> GraphSet::take(proto::GraphExecId id) {
  const std::unique_ptr<Entry> entry = table_.take(id);
  if (!entry) return nullptr;
  bytes_ -= entry->bytes;
  return std::move(entry->graph);
}

std::vector<std::shared_ptr<SessionGraph>> GraphSet::outside(const GreenContextRef& share) const {
  std::vector<std::shared_ptr<SessionGraph>> graphs;
  table_.for_each([&](proto::GraphExecId, const Entry& entry) {
    if (entry.graph->is_outside(share)) graphs.push_back(entry.graph);
  });
  return graphs;
}

std::vector<std::shared_ptr<SessionGraph>> GraphSet::take_ended() { return std::exchange(ended_, {}); }

void GraphSet::forget(const std::vector<std::shared_ptr<SessionGraph>>& destroyed) {
  for (const std::shared_ptr<SessionGraph>& graph : destroyed) all_.erase(graph);
}

void GraphSet::forget_names() {
  std::vector<proto::GraphExecId> ids;
  table_.for_each([&](proto::GraphExecId id, Entry&) { ids.push_back(id); });
  for (const proto::GraphExecId id : ids) (void)table_.take(id);
  ended_.clear();
}

void GraphSet::release_unheld() {
  for (const std::shared_ptr<SessionGraph>& graph : all_) graph->destroy_unheld();
}

std::chrono::microseconds GraphSet::next_release_time() const {
  return all_.empty() ? std::chrono::microseconds(0) : (*all_.begin())->destruction_time();
}

bool GraphSet::release_some(TurnBudget& budget) {
  while (!all_.empty()) {
    all_.extract(all_.begin()).value()->destroy();
    if (budget.look()) break;
  }
  return all_.empty();
}

}  // namespace mpsshim::broker
