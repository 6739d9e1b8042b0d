// SPDX-License-Identifier: Apache-2.0
// What handlers get follows from the order of their record: nothing of another's tools, whatever records the spec has. Held by the compiler.
#include <type_traits>

#include "tests/support/catch.hpp"
#include "tests/wire/support/wire_fixture.hpp"

namespace mpsshim::test {
namespace {

template <typename Incoming>
concept HasQueue = requires(Incoming& incoming) { incoming.queue; };
template <typename Incoming>
concept MakesStreams = requires(Incoming& incoming) { incoming.new_stream(); };
template <typename Incoming>
concept Answers = requires(Incoming& incoming) { incoming.answer_with(CUDA_SUCCESS, proto::MemoryInfoReply{}); };
template <typename Incoming>
concept KeepsReply = requires(Incoming& incoming) { incoming.share_reply(); } || requires(Incoming& incoming) { incoming.reply(); };

template <typename Record>
constexpr bool kHasItsTools = [] {
  using Incoming = broker::IncomingOf<Record>;
  constexpr bool is_of_stream = Record::kOrder == proto::RecordOrder::stream;
  constexpr bool is_out_of_line = Record::kOrder == proto::RecordOrder::out_of_line;
  return HasQueue<Incoming> == is_of_stream && MakesStreams<Incoming> == (!is_of_stream && !Record::kIsCall) &&
         Answers<Incoming> == Record::kIsCall && KeepsReply<Incoming> == is_out_of_line && !std::is_copy_constructible_v<Incoming>;
}();
#define MPSSHIM_RECORD(enumerator, structure) static_assert(kHasItsTools<proto::structure>);
#include "gen/record_names.inc"
#undef MPSSHIM_RECORD

}  // namespace

TEST_CASE("work for a stream that is not there ends nothing, and reaches its fence") {
  WireExecutor executor;
  WireClient client{executor};
  const auto missing = proto::StreamId::make(3, 1);
  client.post(proto::HostFunctionRecord{7, 1}, missing);
  client.turn();
  CHECK(client.take_async_error() == CUDA_ERROR_INVALID_HANDLE);
  CHECK(client.channel().fence(3).value.load() == 7);
  client.post(proto::EventRecordRecord{proto::EventId::make(1, 1), 8, 0}, missing);
  client.turn();
  CHECK(client.take_async_error() == CUDA_ERROR_INVALID_HANDLE);
  CHECK(client.channel().fence(3).value.load() == 8);
  client.post(proto::FenceRecord{9, 0}, missing);
  client.turn();
  CHECK(client.take_async_error() == CUDA_ERROR_INVALID_HANDLE);
  CHECK(client.channel().fence(3).value.load() == 9);
  CHECK_FALSE(client.has_failed());
  client.post_fence(1);
  client.turn();
  CHECK(client.fence() == 1);
}

}  // namespace mpsshim::test
