// SPDX-License-Identifier: Apache-2.0
// Copies and fills.
#include <utility>

#include "broker/executor/dispatch.hpp"

namespace mpsshim::broker {

namespace {

template <typename Copy>
void append(Incoming& incoming, StreamQueue& queue, Checked<Copy> copy, proto::Flags<proto::CopyFlag> flags) {
  if (!copy) return incoming.refuse(copy.refusal());
  StreamSet& streams = incoming.session.streams();
  streams.append(queue, std::move(*copy));
  if (flags.has(proto::CopyFlag::before_all_later)) streams.order_all_behind(queue);
}

}  // namespace

void handle(Incoming& incoming, const proto::CopyBoxRecord& record) {
  if (StreamQueue* queue = incoming.stream()) append(incoming, *queue, incoming.checked().copy(record), record.flags);
}

void handle(Incoming& incoming, const proto::CopyRecord& record) {
  if (StreamQueue* queue = incoming.stream()) append(incoming, *queue, incoming.checked().copy(record), record.flags);
}

void handle(Incoming& incoming, const proto::ArrayCopyRecord& record) {
  if (StreamQueue* queue = incoming.stream()) append(incoming, *queue, incoming.checked().copy(record), {});
}

void handle(Incoming& incoming, const proto::FillRecord& record) {
  if (StreamQueue* queue = incoming.stream()) append(incoming, *queue, incoming.checked().fill(record), {});
}

}  // namespace mpsshim::broker
