// SPDX-License-Identifier: Apache-2.0
// Tensor maps: the driver encodes them, because their bits are the hardware's. Addresses are values here, as in a kernel's arguments: nothing
// of them is read, and what a kernel does with the map it could do with the address.
#include <cstring>

#include "broker/executor/memory/checked_calls.hpp"
#include "broker/executor/records/dispatch.hpp"

namespace mpsshim::broker {

void handle(SessionCall& incoming, const proto::TensorMapEncodeRecord& record) {
  Session& session = incoming.session;
  CUtensorMap map{};
  const CUresult result = CheckedCalls(session.parts().driver).encode(record, map);
  proto::TensorMapEncodeReply reply{};
  static_assert(sizeof map == sizeof reply.map);
  std::memcpy(reply.map, &map, sizeof map);
  incoming.answer_with(session.parts().faults.check(result, session.id(), "cuTensorMapEncode"), reply);
}

void handle(SessionCall& incoming, const proto::TensorMapReplaceRecord& record) {
  Session& session = incoming.session;
  CUtensorMap map{};
  std::memcpy(&map, record.map, sizeof map);
  const CUresult result = CheckedCalls(session.parts().driver).replace_address(map, record.address);
  proto::TensorMapReplaceReply reply{};
  std::memcpy(reply.map, &map, sizeof map);
  incoming.answer_with(session.parts().faults.check(result, session.id(), "cuTensorMapReplaceAddress"), reply);
}

}  // namespace mpsshim::broker
