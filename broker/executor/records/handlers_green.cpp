// SPDX-License-Identifier: Apache-2.0
// Green contexts, their streams, and what the driver says about shares of the multiprocessors. All questions go to helpers, because the driver
// may take its time; contexts are made in quiet windows, because it then waits for every kernel.
#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "broker/executor/green/green_resources.hpp"
#include "broker/executor/records/dispatch.hpp"

namespace mpsshim::broker {

namespace {

constexpr int kGreenPriorityBound = 64;  // as StreamCreate's

// What a client names, its origins looked up; of the whole device it has what is its share. Nothing: the record has been dealt with.
std::optional<std::vector<KnownShare>> read_shares(Incoming& incoming) {
  const std::size_t count = incoming.trailing.size() / sizeof(proto::ResourceShare);
  if (count == 0 || count > proto::kMaxResourceShares || incoming.trailing.size() % sizeof(proto::ResourceShare) != 0) {
    incoming.malformed("its trailing bytes are no list of shares");
    return std::nullopt;
  }
  std::vector<KnownShare> shares(count);
  for (std::size_t i = 0; i < count; ++i) {
    std::memcpy(&shares[i].share, incoming.trailing.data() + i * sizeof(proto::ResourceShare), sizeof(proto::ResourceShare));
    if (shares[i].share.origin.value == 0) {
      shares[i].origin = incoming.session.share();
      continue;
    }
    const proto::Known<GreenContextRef> origin = incoming.find(incoming.session.greens(), shares[i].share.origin);
    if (!origin) return std::nullopt;
    shares[i].origin = *origin;
  }
  return shares;
}

CUresult query(const ExecutorParts& parts, const GreenContextRef& share, proto::ResourceTold& told) {
  std::vector<CUdevResource> whole;
  const KnownShare all{{}, share};
  const CUresult result = make_resources(parts, std::span(&all, 1), whole);
  if (result == CUDA_SUCCESS) told = told_of(whole.front());
  return result;
}

// Of `parts` that a split made, and what it has left.
std::vector<proto::ResourceTold> told_of_split(const SplitResult& made) {
  std::vector<proto::ResourceTold> told;
  for (const CUdevResource& group : made.groups) told.push_back(told_of(group));
  told.push_back(told_of(made.remaining));
  return told;
}

CUresult split(const ExecutorParts& parts, const KnownShare& share, const proto::ResourceSplitRecord& record, std::uint32_t& groups,
               std::vector<proto::ResourceTold>& told) {
  std::vector<CUdevResource> input;
  if (const CUresult error = make_resources(parts, std::span(&share, 1), input); error != CUDA_SUCCESS) return error;
  if (record.groups == 0) {
    return parts.driver->cuDevSmResourceSplitByCount(nullptr, &groups, input.data(), nullptr, record.flags, record.min_count);
  }
  SplitResult made;
  const CUresult result = split_resource(parts, input.front(), record.groups, record.flags, record.min_count, made);
  if (result != CUDA_SUCCESS) return result;
  groups = static_cast<std::uint32_t>(made.groups.size());
  told = told_of_split(made);
  return CUDA_SUCCESS;
}

CUresult make_green(Session& session, std::span<const KnownShare> shares, const GreenContextSlot& slot, GreenContextRef& made) {
  ExecutorParts& parts = session.parts();
  CUdevResourceDesc descriptor = nullptr;
  std::string identity;
  if (const CUresult error = parts.descriptors.find(parts, session.id(), shares, descriptor, identity); error != CUDA_SUCCESS) return error;
  return GreenContext::make(parts, descriptor, std::move(identity), slot, made);
}

unsigned live_greens(Session& session) {
  unsigned count = 0;
  session.greens().for_each([&](proto::GreenContextId, GreenContextRef&) { ++count; });
  return count;
}

// On the worker.
void add_green(Session& session, Reply& reply, proto::GreenContextId id, CUresult result, const GreenContextRef& made) {
  proto::GreenContextCreateReply body{};
  if (result == CUDA_SUCCESS) {
    body.type = made->told().type;
    std::memcpy(body.content, made->told().content, sizeof body.content);
    if (live_greens(session) >= kMaxGreenContexts) {
      result = CUDA_ERROR_OUT_OF_MEMORY;
    } else if (!session.greens().insert(id, std::make_unique<GreenContextRef>(made))) {
      result = CUDA_ERROR_INVALID_HANDLE;
    }
  }
  reply.answer_with(result, body);
}

// CUDA_SUCCESS: there is room for one more.
CUresult room_for_green(Session& session) {
  const unsigned own = live_greens(session);
  const unsigned all = session.parts().green_contexts.load();
  const bool has_room = own < kMaxGreenContexts && session.green_count()->load() < kMaxGreenContexts + kMaxGreenContextsEnding;
  if (has_room && all < kMaxGreenContextsOfAll) return CUDA_SUCCESS;
  log_warning("Session {} (pid {}): cuGreenCtxCreate refused: it has {} green contexts of {}, all sessions {} of {}; destroy some first",
              session.id(), session.client_pid(), own, kMaxGreenContexts, all, kMaxGreenContextsOfAll);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

}  // namespace

void handle(OutOfLineCall& incoming, const proto::ResourceQueryRecord&) {
  incoming.session.start_job([reply = incoming.share_reply(), share = incoming.session.share()](const std::shared_ptr<Session>& owner) {
    proto::ResourceTold told;
    const CUresult result = owner->parts().faults.check(query(owner->parts(), share, told), owner->id(), "cuDeviceGetDevResource");
    proto::ResourceQueryReply body{};
    body.type = told.type;
    std::memcpy(body.content, told.content, sizeof body.content);
    reply->answer_with(result, body);
    owner->finish_job();
  });
}

void handle(OutOfLineCall& incoming, const proto::ResourceSplitRecord& record) {
  if (record.groups > proto::kMaxResourceGroups) return incoming.malformed("it asks for more groups than there can be");
  const auto shares = read_shares(incoming);
  if (!shares) return;
  if (shares->size() != 1) return incoming.malformed("it splits more than one share");
  incoming.session.start_job([reply = incoming.share_reply(), record, share = shares->front()](const std::shared_ptr<Session>& owner) {
    proto::ResourceSplitReply body{};
    std::vector<proto::ResourceTold> told;
    const CUresult result = split(owner->parts(), share, record, body.groups, told);
    reply->answer_with(owner->parts().faults.check(result, owner->id(), "cuDevSmResourceSplitByCount"), body, std::as_bytes(std::span(told)));
    owner->finish_job();
  });
}

void handle(OutOfLineCall& incoming, const proto::ResourceDescribeRecord&) {
  auto shares = read_shares(incoming);
  if (!shares) return;
  incoming.session.start_job([reply = incoming.share_reply(), shares = std::move(*shares)](const std::shared_ptr<Session>& owner) {
    CUdevResourceDesc descriptor = nullptr;
    std::string identity;
    ExecutorParts& parts = owner->parts();
    const CUresult result = parts.descriptors.find(parts, owner->id(), shares, descriptor, identity);
    reply->answer(parts.faults.check(result, owner->id(), "cuDevResourceGenerateDesc"));
    owner->finish_job();
  });
}

void handle(OutOfLineCall& incoming, const proto::GreenContextCreateRecord& record) {
  Session& session = incoming.session;
  if (!record.green.has_kind()) return incoming.malformed("its green context's id is of another kind");
  auto shares = read_shares(incoming);
  if (!shares) return;
  if (const CUresult refused = room_for_green(session); refused != CUDA_SUCCESS) return incoming.reject(refused);
  const auto make = [reply = incoming.share_reply(), self = session.shared_from_this(), id = record.green, shares = std::move(*shares),
                     slot = count_green_context(session.parts(), session.green_count())](WindowResult window) {
    GreenContextRef made;
    const CUresult result = window == WindowResult::open ? make_green(*self, shares, slot, made) : CUDA_ERROR_MPS_SERVER_NOT_READY;
    self->parts().faults.check(result, self->id(), "cuGreenCtxCreate");
    self->run_on_worker([self, reply, id, result, made] { add_green(*self, *reply, id, result, made); });
  };
  session.start_window_call("cuGreenCtxCreate", make);
}

void handle(SessionPost& incoming, const proto::GreenContextDestroyRecord& record) {
  if (!incoming.find(incoming.session.greens(), record.green)) return;
  (void)incoming.session.greens().take(record.green);  // ends with its last stream, in a window
}

void handle(SessionPost& incoming, const proto::GreenStreamCreateRecord& record) {
  Session& session = incoming.session;
  const proto::StreamId id = incoming.new_stream();
  if (!id.has_kind() || id.index() >= proto::kFenceWords) return incoming.malformed("its stream id is out of range");
  if (session.streams().find(id) != nullptr) return incoming.malformed("its stream id is in use");
  const proto::Known<GreenContextRef> green = incoming.find(session.greens(), record.green);
  if (!green) return;
  const int priority = std::clamp(record.priority, -kGreenPriorityBound, kGreenPriorityBound);
  const CUresult made = session.streams().create_green(id, *green, priority, static_cast<StreamOrder>(record.order));
  session.context().check(made, "cuGreenCtxStreamCreate");
}

void handle(StreamPost& incoming, const proto::GreenContextJoinRecord& record) {
  const proto::Known<GreenContextRef> green = incoming.find(incoming.session.greens(), record.green);
  if (!green) return;
  StreamSet& streams = incoming.session.streams();
  if (record.waits) streams.order_behind_all(incoming.queue, green->get());
  if (record.precedes) streams.order_all_behind(incoming.queue, green->get());
}

}  // namespace mpsshim::broker
