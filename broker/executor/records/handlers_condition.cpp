// SPDX-License-Identifier: Apache-2.0
// Conditional handles of graphs (conditioned_graph.hpp). They are made in quiet windows: the driver may take device memory for their values.
#include <memory>
#include <utility>

#include "broker/executor/graphs/conditioned_graph.hpp"
#include "broker/executor/records/dispatch.hpp"
#include "broker/executor/window/quiet_window.hpp"
#include "broker/log.hpp"

namespace mpsshim::broker {

namespace {

// In a window, where the last reference may go.
void end_in_window(Session& session, SessionConditions::GraphRef graph) {
  const auto held = std::make_shared<SessionConditions::GraphRef>(std::move(graph));
  session.start_window_job("destroying a graph's conditions", [held] { held->reset(); });
}

// Kernels hold the value that the client was told in an earlier executor. Where it is another one now, no graph can be made with it.
bool is_as_expected(const Session& session, const proto::ConditionCreateRecord& record, std::uint64_t handle) {
  if (record.expected == 0 || record.expected == handle) return true;
  log_warning(
      "Session {} (pid {}): the driver gave a graph's condition another handle than before ({:#x}, it was {:#x}): that graph cannot be launched "
      "any more; its client has to make it again",
      session.id(), session.client_pid(), handle, record.expected);
  return false;
}

void add_handle(Session& session, Reply& reply, const proto::ConditionCreateRecord& record, SessionConditions::GraphRef graph, CUresult result,
                std::uint64_t handle) {
  --session.conditions().wanted;
  if (result != CUDA_SUCCESS) return reply.answer_with(result, proto::ConditionCreateReply{});
  if (!is_as_expected(session, record, handle)) return reply.answer_with(result, proto::ConditionCreateReply{record.expected});
  if (!session.conditions().add(record.graph, handle)) {
    end_in_window(session, std::move(graph));
    result = CUDA_ERROR_INVALID_VALUE;
  }
  reply.answer_with(result, proto::ConditionCreateReply{handle});
}

}  // namespace

void handle(OutOfLineCall& incoming, const proto::ConditionCreateRecord& record) {
  Session& session = incoming.session;
  if (!record.graph.has_kind()) return incoming.malformed("its graph id is of another kind");
  static_assert(proto::ConditionCreateRecord::kMaxFlags == CU_GRAPH_COND_ASSIGN_DEFAULT);
  if (!session.conditions().has_room()) return incoming.reject(CUDA_ERROR_OUT_OF_MEMORY);
  ++session.conditions().wanted;
  const SessionConditions::GraphRef graph = session.conditions().find_or_add(session.parts().driver, record.graph);
  const auto make = [self = session.shared_from_this(), reply = incoming.share_reply(), record, graph](WindowResult window) {
    CUgraphConditionalHandle made = 0;
    const ExecutorParts& parts = self->parts();
    const CUresult result =
        window == WindowResult::open ? graph->create(parts.context, record.default_value, record.flags, made) : CUDA_ERROR_MPS_SERVER_NOT_READY;
    parts.faults.check(result, self->id(), "cuGraphConditionalHandleCreate");
    self->run_on_worker([self, reply, record, graph, result, made] { add_handle(*self, *reply, record, graph, result, made); });
  };
  session.start_window_call("cuGraphConditionalHandleCreate", make);
}

void handle(SessionPost& incoming, const proto::ConditionsEndRecord& record) {
  Session& session = incoming.session;
  if (!record.graph.has_kind()) return incoming.malformed("its graph id is of another kind");
  SessionConditions::GraphRef graph = session.conditions().take(record.graph);
  if (graph == nullptr) return incoming.reject(CUDA_ERROR_INVALID_HANDLE);
  end_in_window(session, std::move(graph));
}

}  // namespace mpsshim::broker
