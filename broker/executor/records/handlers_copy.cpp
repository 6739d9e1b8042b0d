// SPDX-License-Identifier: Apache-2.0
// Copies and fills.
#include <utility>

#include "broker/executor/records/dispatch.hpp"

namespace mpsshim::broker {

namespace {

template <typename Copy>
void append(StreamPost& incoming, Checked<Copy> copy, proto::Flags<proto::CopyFlag> flags) {
  if (!copy) return incoming.refuse(copy.refusal());
  incoming.append(std::move(*copy));
  if (flags.has(proto::CopyFlag::before_all_later)) incoming.session.streams().order_all_behind(incoming.queue);
}

}  // namespace

void handle(StreamPost& incoming, const proto::CopyBoxRecord& record) { append(incoming, incoming.checked().copy(record), record.flags); }

void handle(StreamPost& incoming, const proto::CopyRecord& record) { append(incoming, incoming.checked().copy(record), record.flags); }

void handle(StreamPost& incoming, const proto::ArrayCopyRecord& record) { append(incoming, incoming.checked().copy(record), {}); }

void handle(StreamPost& incoming, const proto::FillRecord& record) { append(incoming, incoming.checked().fill(record), {}); }

}  // namespace mpsshim::broker
