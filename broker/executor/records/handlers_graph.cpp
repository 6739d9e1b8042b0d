// SPDX-License-Identifier: Apache-2.0
// Executable graphs. What a client has described becomes the driver's graph in three steps (session_graph.hpp): read here, its nodes added by
// a helper, instantiated in a quiet window. Launches go through the streams' queues like all work.
#include <chrono>
#include <optional>
#include <utility>

#include "broker/executor/graphs/graph_set.hpp"
#include "broker/executor/records/dispatch.hpp"
#include "broker/executor/window/quiet_window.hpp"

namespace mpsshim::broker {

namespace {

constexpr std::chrono::microseconds kReadingTurn{150};

struct Instantiation {
  SharedReply reply;
  std::shared_ptr<SessionGraph> graph;
  std::uint64_t flags = 0;
  std::uint32_t failed_node = 0;
  MemoryUse use{};  // of what its nodes name
};
using InstantiationRef = std::shared_ptr<Instantiation>;

// On the worker, which makes the graph ready before the client hears of it.
void answer(Instantiation& job, CUresult result) {
  job.use = nullptr;
  job.graph->set_state(result == CUDA_SUCCESS ? SessionGraph::State::ready : SessionGraph::State::failed);
  job.reply->answer_with(result, proto::GraphInstantiateReply{job.failed_node, 0});
}

// Any thread.
void finish(const std::shared_ptr<Session>& session, const InstantiationRef& job, CUresult result) {
  session->finish_job([session, job, result] {
    answer(*job, result);
    if (result == CUDA_SUCCESS) session->confine_graphs();
  });
}

// Where it may take device memory.
void instantiate_in_window(const std::shared_ptr<Session>& session, const InstantiationRef& job, WindowResult window) {
  if (window != WindowResult::open) return finish(session, job, CUDA_ERROR_MPS_SERVER_NOT_READY);
  const CUresult result = job->graph->instantiate(job->flags);
  finish(session, job, session->parts().faults.check(result, session->id(), "cuGraphInstantiateWithFlags"));
}

void build(const std::shared_ptr<Session>& session, const InstantiationRef& job) {
  const CUresult result = session->parts().faults.check(job->graph->build(job->failed_node), session->id(), "adding nodes to a graph");
  if (result != CUDA_SUCCESS) return finish(session, job, result);
  const std::chrono::microseconds expected = job->graph->instantiation_time();
  const auto run = [session, job](WindowResult window) { instantiate_in_window(session, job, window); };
  if (expected.count() == 0) return run(WindowResult::open);
  session->parts().window.submit({.what = "cuGraphInstantiate", .session = session->id(), .run = run, .expected = expected});
}

// All of it in the window: the executable graph that was made of it before goes first.
void make_in_window(const std::shared_ptr<Session>& session, const InstantiationRef& job) {
  const auto make = [session, job](WindowResult window) {
    CUresult result = window == WindowResult::open ? job->graph->build(job->failed_node) : CUDA_ERROR_MPS_SERVER_NOT_READY;
    if (result == CUDA_SUCCESS) result = job->graph->instantiate(job->flags);
    session->parts().faults.check(result, session->id(), "instantiating a graph with conditional nodes");
    session->run_on_worker([job, result] { answer(*job, result); });
  };
  session->start_window_call("cuGraphInstantiate", make, job->graph->instantiation_time());
}

// What was launched of the executable graph before this one ends first.
void make_conditioned(Session& session, const InstantiationRef& job) {
  if (!job->graph->conditioned()->take(*job->graph)) {
    job->graph->set_state(SessionGraph::State::failed);
    return job->reply->answer_with(CUDA_ERROR_NOT_SUPPORTED, proto::GraphInstantiateReply{job->failed_node, 0});
  }
  if (!job->graph->conditioned()->has_holder()) return make_in_window(session.shared_from_this(), job);
  session.when_streams_completed([&session, job] { make_in_window(session.shared_from_this(), job); });
}

// A large description takes many turns.
void read_on(Session& session, const proto::GraphInstantiateRecord& record, const InstantiationRef& job) {
  TurnBudget budget(kReadingTurn);
  GraphScope scope = session.graph_scope();
  const std::optional<NodeFault> read = job->graph->read_some(scope, record.node_count, job->failed_node, budget);
  if (scope.uses_device_heap) session.note_heap_use();
  if (!read) return session.go_on_later([&session, record, job] { read_on(session, record, job); });
  if (!*read) {
    if (job->graph->conditioned() != nullptr) return make_conditioned(session, job);
    return session.start_job([job](const std::shared_ptr<Session>& owner) { build(owner, job); });
  }
  job->graph->set_state(SessionGraph::State::described);
  if (read->malformed != nullptr) return session.fail("GraphInstantiate", read->malformed);
  // In an earlier executor it was there. What it names has gone meanwhile, so launching it would have been the client's mistake.
  if (record.restores) return job->reply->answer_with(CUDA_SUCCESS, proto::GraphInstantiateReply{record.node_count, 0});
  job->reply->answer_with(read->result, proto::GraphInstantiateReply{job->failed_node, 0});
}

// One window destroys what has gathered; what comes meanwhile is for the next. What holds up nobody is done by a helper behind it.
void destroy_ended(const std::shared_ptr<Session>& session) {
  GraphSet& graphs = session->graphs();
  if (graphs.has_job) return;
  auto ended = std::make_shared<std::vector<std::shared_ptr<SessionGraph>>>(graphs.take_ended());
  if (ended->empty()) return;
  graphs.has_job = true;
  const auto destroyed = [session, ended] {
    session->graphs().has_job = false;
    session->graphs().forget(*ended);
    ended->clear();
    destroy_ended(session);
  };
  std::chrono::microseconds expected{};
  for (const std::shared_ptr<SessionGraph>& graph : *ended) expected += graph->destruction_time();
  const auto destroy_launchable = [ended] {
    for (const std::shared_ptr<SessionGraph>& graph : *ended) {
      if (graph->destruction_time().count() != 0) graph->destroy_launchable();
    }
  };
  const auto destroy_rest = [session, ended, destroyed] {
    session->start_job([ended, destroyed](const std::shared_ptr<Session>& self) {
      for (const std::shared_ptr<SessionGraph>& graph : *ended) graph->destroy();
      self->finish_job(destroyed);
    });
  };
  if (expected.count() == 0) return destroy_rest();
  session->start_window_job("destroying graphs", destroy_launchable, destroy_rest, expected);
}

}  // namespace

void handle(SessionPost& incoming, const proto::GraphNodesRecord& record) {
  if (!record.exec.has_kind()) return incoming.malformed("its graph id is of another kind");
  GraphSet& graphs = incoming.session.graphs();
  GraphSet::Entry* entry = graphs.find(record.exec);
  if (entry != nullptr && entry->state != GraphSet::State::described) return incoming.malformed("its graph is instantiated already");
  if (entry == nullptr) entry = graphs.add(record.exec);
  if (entry == nullptr) return incoming.malformed("its graph id is in use, or there are more graphs than a session may have");
  if (!graphs.describe(*entry, incoming.trailing)) entry->state = GraphSet::State::refused;
}

void handle(OutOfLineCall& incoming, const proto::GraphInstantiateRecord& record) {
  Session& session = incoming.session;
  if (!record.exec.has_kind()) return incoming.malformed("its graph id is of another kind");
  GraphSet::Entry* entry = session.graphs().find(record.exec);
  if (entry == nullptr) entry = session.graphs().add(record.exec);  // a graph without nodes
  if (entry == nullptr) return incoming.malformed("its graph id is in use, or there are more graphs than a session may have");
  if (entry->state == GraphSet::State::refused) return incoming.reject(CUDA_ERROR_OUT_OF_MEMORY);
  if (entry->state == GraphSet::State::made) return incoming.malformed("its graph is instantiated already");
  entry->state = GraphSet::State::made;
  const auto job = std::make_shared<Instantiation>(Instantiation{nullptr, entry->graph, record.flags, record.node_count});
  job->reply = incoming.share_reply();
  entry->graph->set_state(SessionGraph::State::being_made);
  job->use = session.memory_uses().begin();
  read_on(session, record, job);
}

void handle(SessionPost& incoming, const proto::GraphSetNodesRecord& record) {
  if (!record.exec.has_kind()) return incoming.malformed("its graph id is of another kind");
  GraphSet::Entry* const entry = incoming.session.graphs().find(record.exec);
  const bool is_ready = entry != nullptr && entry->graph->is_ready();
  if (!is_ready && record.restores) return;
  if (!is_ready) return incoming.reject(CUDA_ERROR_INVALID_HANDLE);
  GraphScope scope = incoming.session.graph_scope();
  const NodeFault fault = entry->graph->update(scope, incoming.trailing);
  if (scope.uses_device_heap) incoming.session.note_heap_use();
  if (fault.malformed != nullptr) return incoming.malformed(fault.malformed);
  if (fault && record.restores) return entry->graph->set_state(SessionGraph::State::failed);
  if (fault) incoming.reject(fault.result);
}

void handle(StreamPost& incoming, const proto::GraphLaunchRecord& record) {
  if (!record.exec.has_kind()) return incoming.malformed("its graph id is of another kind");
  const GraphSet::Entry* const entry = incoming.session.graphs().find(record.exec);
  if (entry == nullptr || !entry->graph->is_ready()) return incoming.reject(CUDA_ERROR_INVALID_HANDLE);
  if (!entry->graph->owns_its_memory(incoming.session.memory())) return incoming.reject(CUDA_ERROR_INVALID_VALUE);
  GraphOp op = entry->graph->next_launch(incoming.session.events());
  op.graph = entry->graph;
  incoming.append(std::move(op));
}

void handle(SessionPost& incoming, const proto::GraphExecDestroyRecord& record) {
  if (!record.exec.has_kind()) return incoming.malformed("its graph id is of another kind");
  Session& session = incoming.session;
  const GraphSet::Entry* const entry = session.graphs().find(record.exec);
  if (entry == nullptr) return incoming.reject(CUDA_ERROR_INVALID_HANDLE);
  if (entry->graph->is_being_made()) return incoming.malformed("its graph is being instantiated");
  std::shared_ptr<SessionGraph> graph = session.graphs().take(record.exec);
  graph->leave();
  if (graph->conditioned() != nullptr) graph->conditioned()->give_back(*graph);
  session.when_completed([&session, graph = std::move(graph)] {
    if (!graph->is_in_driver()) return session.graphs().forget({graph});
    session.graphs().give_back(graph);
    destroy_ended(session.shared_from_this());
  });
}

}  // namespace mpsshim::broker
