// SPDX-License-Identifier: Apache-2.0
// Streams: created, destroyed, fenced, and the answer when everything was issued.
#include <algorithm>

#include "broker/executor/dispatch.hpp"

namespace mpsshim::broker {

namespace {

constexpr int kPriorityBound = 64;  // far outside any driver's range; keeps the pool's lists few whatever a client sends

}  // namespace

void handle(Incoming& incoming, const proto::StreamCreateRecord& record) {
  const proto::StreamId id = incoming.header.stream;
  StreamSet& streams = incoming.session.streams();
  if (!id.has_kind() || id.index() >= proto::kFenceWords) return incoming.malformed("its stream id is out of range");
  if (streams.find(id) != nullptr) return incoming.malformed("its stream id is in use");
  const int priority = std::clamp(record.priority, -kPriorityBound, kPriorityBound);
  incoming.session.context().check(streams.create(id, (record.flags & CU_STREAM_NON_BLOCKING) == 0, priority), "cuStreamCreateWithPriority");
}

void handle(Incoming& incoming, const proto::StreamDestroyRecord&) {
  if (incoming.header.stream == proto::kNullStream) return incoming.malformed("the NULL stream cannot be destroyed");
  if (incoming.stream() != nullptr) (void)incoming.session.streams().retire(incoming.header.stream);
}

void handle(Incoming& incoming, const proto::FenceRecord& record) {
  if (StreamQueue* queue = incoming.stream()) return incoming.session.streams().append(*queue, FenceOp{record.value});
  incoming.write_fence_of_missing_stream(record.value);
}

void handle(Incoming& incoming, const proto::HostFunctionRecord& record) {
  if (StreamQueue* queue = incoming.stream()) {
    return incoming.session.streams().append(*queue, HostOp{record.fence_value, record.number});
  }
  incoming.write_fence_of_missing_stream(record.fence_value);
}

void handle(Incoming& incoming, const proto::StreamWaitValueRecord& record) {
  StreamQueue* queue = incoming.stream();
  if (queue == nullptr) return;
  static_assert(proto::StreamWaitValueRecord::kMaxCondition == CU_STREAM_WAIT_VALUE_NOR);
  Checked<CheckedWord> word = incoming.checked().word(record.address, record.size_bytes == sizeof(std::uint64_t));
  if (!word) return incoming.refuse(word.refusal());
  incoming.session.streams().append(*queue, ValueWaitOp{*word, record.value, record.condition});
}

void handle(Incoming& incoming, const proto::StreamWriteValueRecord& record) {
  StreamQueue* queue = incoming.stream();
  if (queue == nullptr) return;
  switch (record.operation) {
    case proto::StreamWrite::value_32:
    case proto::StreamWrite::value_64: {
      Checked<CheckedWord> word = incoming.checked().word(record.address, record.operation == proto::StreamWrite::value_64);
      if (!word) return incoming.refuse(word.refusal());
      return incoming.session.streams().append(*queue, ValueWriteOp{*word, record.value, record.flags});
    }
    case proto::StreamWrite::remote_flush: return incoming.session.streams().append(*queue, ValueWriteOp{});
  }
}

void handle(Incoming& incoming, const proto::ReleaseRecord&) {
  incoming.session.when_issued([reply = incoming.share_reply()] { reply->answer(CUDA_SUCCESS); });
}

}  // namespace mpsshim::broker
