// SPDX-License-Identifier: Apache-2.0
// Streams: created, destroyed, fenced, and the answer when everything was issued.
#include <algorithm>

#include "broker/executor/records/dispatch.hpp"

namespace mpsshim::broker {

namespace {

constexpr int kPriorityBound = 64;  // far outside any driver's range; keeps the pool's lists few whatever a client sends

}  // namespace

void handle(SessionPost& incoming, const proto::StreamCreateRecord& record) {
  const proto::StreamId id = incoming.new_stream();
  StreamSet& streams = incoming.session.streams();
  if (!id.has_kind() || id.index() >= proto::kFenceWords) return incoming.malformed("its stream id is out of range");
  if (streams.find(id) != nullptr) return incoming.malformed("its stream id is in use");
  const int priority = std::clamp(record.priority, -kPriorityBound, kPriorityBound);
  incoming.session.context().check(streams.create(id, (record.flags & CU_STREAM_NON_BLOCKING) == 0, priority), "cuStreamCreateWithPriority");
}

void handle(StreamPost& incoming, const proto::StreamDestroyRecord&) {
  if (incoming.stream() == proto::kNullStream) return incoming.malformed("the NULL stream cannot be destroyed");
  (void)incoming.session.streams().retire(incoming.stream());
}

void handle(StreamPost& incoming, const proto::FenceRecord& record) { incoming.append(FenceOp{record.fence_value}); }

void handle(StreamPost& incoming, const proto::HostFunctionRecord& record) { incoming.append(HostOp{record.fence_value, record.number}); }

void handle(StreamPost& incoming, const proto::StreamWaitValueRecord& record) {
  static_assert(proto::StreamWaitValueRecord::kMaxCondition == CU_STREAM_WAIT_VALUE_NOR);
  Checked<CheckedWord> word = incoming.checked().word(record.address, record.size_bytes == sizeof(std::uint64_t));
  if (!word) return incoming.refuse(word.refusal());
  incoming.append(ValueWaitOp{*word, record.value, record.condition});
}

void handle(StreamPost& incoming, const proto::StreamWaitSharedEventRecord& record) {
  Checked<CheckedSharedRecord> found = incoming.checked().shared_record(record);
  if (!found) return incoming.refuse(found.refusal());
  incoming.append(SharedWaitOp{*found, record.needs_work != 0});
}

void handle(StreamPost& incoming, const proto::StreamWriteValueRecord& record) {
  switch (record.operation) {
    case proto::StreamWrite::value_32:
    case proto::StreamWrite::value_64: {
      Checked<CheckedWord> word = incoming.checked().word(record.address, record.operation == proto::StreamWrite::value_64);
      if (!word) return incoming.refuse(word.refusal());
      return incoming.append(ValueWriteOp{*word, record.value, record.flags});
    }
    case proto::StreamWrite::remote_flush: return incoming.append(ValueWriteOp{});
  }
}

void handle(OutOfLineCall& incoming, const proto::ReleaseRecord&) {
  incoming.session.when_issued([reply = incoming.share_reply()] { reply->answer(CUDA_SUCCESS); });
}

}  // namespace mpsshim::broker
