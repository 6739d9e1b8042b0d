// SPDX-License-Identifier: Apache-2.0
// Automatic calls from C arguments through bytes to a driver function and back, in one process: the client's half and the executor's half
// of the marshalling meet here with nothing between them but the record, its trailing bytes and the reply.
#include <array>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include <cuda.h>

#include "gen/arguments.hpp"
#include "proto/marshal/encode.hpp"
#include "proto/marshal/serve.hpp"
#include "proto/marshal/store.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::proto;

namespace {

constexpr StreamId kStream = StreamId::make(3, 1);
constexpr EventId kEvent = EventId::make(5, 2);
constexpr EventId kOtherEvent = EventId::make(6, 1);

struct Client {
  std::uint32_t next = 40;
  bool stream(std::uint64_t handle, StreamId& id) {
    id = handle == 0 ? kNullStream : StreamId{handle};
    return id.has_kind();
  }
  template <HandleKind Kind>
  bool knows(Id<Kind> id) {
    return id.has_kind();
  }
  template <HandleKind Kind>
  Id<Kind> choose() {
    return next == 0 ? Id<Kind>{} : Id<Kind>::make(next++, 1);
  }
};

struct Session {
  std::map<std::uint64_t, std::uint64_t> driver_handles{
      {kNullStream.value, 0x1000}, {kStream.value, 0x1003}, {kEvent.value, 0x2005}, {kOtherEvent.value, 0x2006}};
  std::uint64_t begin = 0x5000, end = 0x6000;
  template <HandleKind Kind>
  bool find(Id<Kind> id, std::uint64_t& handle) {
    const auto found = driver_handles.find(id.value);
    if (!id.has_kind() || found == driver_handles.end()) return false;
    handle = found->second;
    return true;
  }
  bool owns(std::uint64_t address, std::uint64_t bytes) const { return address >= begin && address <= end && bytes <= end - address; }
  template <HandleKind Kind>
  bool may_bind(Id<Kind> id) {
    return id.has_kind() && !driver_handles.contains(id.value);
  }
  template <HandleKind Kind>
  void bind(Id<Kind> id, std::uint64_t handle) {
    driver_handles[id.value] = handle;
  }
};

template <class Handle>
Handle handle(std::uint64_t bits) {
  return handle_from_bits<Handle>(bits);
}

struct Seen {
  int calls = 0;
  std::string name;
  std::vector<float> scale;
  std::vector<int> maybe;
  std::uint64_t stream = 0, event = 0, other = 0, second_event = 0, dst = 0;
  CUlimit limit{};
  unsigned char byte = 0;
} seen;

CUresult test_post(CUstream stream, CUevent event, CUlimit limit, unsigned char byte, CUdeviceptr dst, size_t n, const char* name, const float* scale,
                   const int* maybe, const CUevent* events, CUstream other, CUevent* created) {
  ++seen.calls;
  seen.name = name;
  seen.scale.assign(scale, scale + n);
  seen.maybe.clear();
  if (maybe != nullptr) seen.maybe.assign(maybe, maybe + 2);
  seen.stream = handle_bits(stream);
  seen.event = handle_bits(event);
  seen.other = handle_bits(other);
  seen.second_event = handle_bits(events[1]);
  seen.limit = limit;
  seen.byte = byte;
  seen.dst = dst;
  *created = handle<CUevent>(0x2999);
  return CUDA_SUCCESS;
}

CUresult test_call(size_t* size, CUlimit* limit, unsigned int* count, unsigned char* data, int* pairs, const unsigned int* one, unsigned int n,
                   CUtexObject* texture) {
  ++seen.calls;
  if (*one == 0) return CUDA_ERROR_INVALID_VALUE;
  *size = 1'000'000'000'000;
  *limit = CU_LIMIT_MALLOC_HEAP_SIZE;
  *count += *one;
  for (unsigned int i = 0; i < n / 2; ++i) data[i] = static_cast<unsigned char>(i + 1);  // the second half is left as it was
  if (pairs != nullptr) std::swap(pairs[0], pairs[1]);
  *texture = 17;
  return CUDA_SUCCESS;
}

constexpr auto kSucceeded = [](CUresult result) { return result == CUDA_SUCCESS; };

struct PostCase {
  Client client;
  Session session;
  Encoded<CuTestPostRecord> encoded;
  std::array<std::byte, 256> trailing{};
  std::array<float, 4> scale{1, 2, 3, 4};
  std::array<CUevent, 2> events{handle<CUevent>(kEvent.value), handle<CUevent>(kOtherEvent.value)};
  std::array<int, 2> maybe{7, 8};
  const int* maybe_pointer = maybe.data();
  CUevent event = handle<CUevent>(kEvent.value);
  CUevent created{};
  size_t n = 4;
  CUdeviceptr dst = 0x5ff0;

  Marshalled encode_post(std::size_t room = 256) {
    return encode(client, encoded, std::span(trailing).first(room), handle<CUstream>(kStream.value), event, CU_LIMIT_STACK_SIZE,
                  static_cast<unsigned char>(9), dst, n, "kernel", scale.data(), maybe_pointer, events.data(), CUstream{}, &created);
  }
  Served<CUresult> serve_post() {
    NoReply reply;
    return serve(session, encoded.record, encoded.stream, std::span<const std::byte>(trailing).first(encoded.trailing_bytes), reply, {}, &test_post,
                 kSucceeded);
  }
};

}  // namespace

TEST_CASE("every kind of input reaches the driver function") {
  seen = {};
  PostCase post;
  REQUIRE(post.encode_post() == Marshalled::ok);
  CHECK(post.encoded.stream == kStream);
  const Served<CUresult> served = post.serve_post();
  REQUIRE(served.outcome == Marshalled::ok);
  CHECK(served.result == CUDA_SUCCESS);
  CHECK(seen.name == "kernel");
  CHECK(seen.scale == std::vector<float>{1, 2, 3, 4});
  CHECK(seen.maybe == std::vector<int>{7, 8});
  CHECK(seen.stream == 0x1003);
  CHECK(seen.event == 0x2005);
  CHECK(seen.second_event == 0x2006);
  CHECK(seen.other == 0x1000);  // NULL became the session's NULL stream
  CHECK(seen.limit == CU_LIMIT_STACK_SIZE);
  CHECK(seen.byte == 9);
  CHECK(seen.dst == 0x5ff0);

  store(post.encoded, NoReply{}, {}, handle<CUstream>(kStream.value), post.event, CU_LIMIT_STACK_SIZE, static_cast<unsigned char>(9), post.dst,
        post.n, "kernel", post.scale.data(), post.maybe_pointer, post.events.data(), CUstream{}, &post.created);
  const EventId created{handle_bits(post.created)};
  CHECK(created == EventId::make(40, 1));
  CHECK(post.session.driver_handles.at(created.value) == 0x2999);
}

TEST_CASE("an optional array that is NULL stays NULL") {
  seen = {};
  PostCase post;
  post.maybe_pointer = nullptr;
  REQUIRE(post.encode_post() == Marshalled::ok);
  REQUIRE(post.serve_post().outcome == Marshalled::ok);
  CHECK(seen.maybe.empty());
}

TEST_CASE("the client refuses what it can see to be wrong") {
  PostCase post;
  SECTION("no room for the arrays, at each size") {
    REQUIRE(post.encode_post() == Marshalled::ok);
    const std::size_t needed = post.encoded.trailing_bytes;
    for (std::size_t room = 0; room < needed; ++room) CHECK(post.encode_post(room) == Marshalled::too_large);
    CHECK(post.encode_post(needed) == Marshalled::ok);
  }
  SECTION("a handle of another kind") {
    post.event = handle<CUevent>(kStream.value);
    CHECK(post.encode_post() == Marshalled::invalid_handle);
  }
  SECTION("no id left") {
    post.client.next = 0;
    CHECK(post.encode_post() == Marshalled::out_of_ids);
  }
  SECTION("a count that overflows") {
    post.n = static_cast<size_t>(-1);
    CHECK(post.encode_post() == Marshalled::too_large);
  }
}

TEST_CASE("the executor calls nothing for a record that is not the session's to send") {
  seen = {};
  PostCase post;
  REQUIRE(post.encode_post() == Marshalled::ok);
  CuTestPostRecord& record = post.encoded.record;
  Marshalled expected{};
  SECTION("a foreign event") {
    record.hEvent = EventId::make(99, 1);
    expected = Marshalled::invalid_handle;
  }
  SECTION("an old generation") {
    record.hEvent = EventId::make(5, 1);
    expected = Marshalled::invalid_handle;
  }
  SECTION("an event id that is a stream's") {
    record.hEvent = EventId{kStream.value};
    expected = Marshalled::invalid_handle;
  }
  SECTION("a foreign stream in the header") {
    post.encoded.stream = StreamId::make(77, 1);
    expected = Marshalled::invalid_handle;
  }
  SECTION("a foreign event inside an array") {
    // name (6 bytes), scale (16), maybe (8), events: the second one
    const std::uint64_t foreign = EventId::make(99, 1).value;
    std::memcpy(post.trailing.data() + 8 + 16 + 8 + 8, &foreign, sizeof(foreign));
    expected = Marshalled::invalid_handle;
  }
  SECTION("an id in use for a new object") {
    record.created = kEvent;
    expected = Marshalled::invalid_handle;
  }
  SECTION("one byte past the session's memory") {
    record.dst = 0x5ff1;
    expected = Marshalled::invalid_address;
  }
  SECTION("a range whose length would wrap to a small one") {
    record.n = (1ull << 62) + 1;
    record.dst = 0x5000;
    expected = Marshalled::invalid_address;
  }
  SECTION("more elements than the trailing bytes hold") {
    record.n = 1'000'000;
    record.dst = 0x5000;
    post.session.end = ~0ull;
    expected = Marshalled::too_large;
  }
  SECTION("a count that overflows when multiplied") {
    record.n = (~0ull / 4) + 2;
    record.dst = 0;
    post.session.begin = 0;
    post.session.end = ~0ull;
    expected = Marshalled::too_large;
  }
  SECTION("a string longer than the trailing bytes") {
    record.name_bytes = 0xffff'ffff;
    expected = Marshalled::too_large;
  }
  CHECK(post.serve_post().outcome == expected);
  CHECK(seen.calls == 0);
}

TEST_CASE("every length of trailing bytes short of the right one is refused") {
  seen = {};
  PostCase post;
  REQUIRE(post.encode_post() == Marshalled::ok);
  const std::size_t right = post.encoded.trailing_bytes;
  for (std::size_t size = 0; size < right; ++size) {
    post.encoded.trailing_bytes = size;
    CHECK(post.serve_post().outcome == Marshalled::too_large);
  }
  CHECK(seen.calls == 0);
}

namespace {

struct CallCase {
  Client client;
  Session session;
  Encoded<CuTestCallRecord> encoded;
  std::array<std::byte, 64> trailing{};
  std::array<std::byte, 64> reply_trailing{};
  CuTestCallReply reply{};
  size_t size = 0;
  CUlimit limit{};
  unsigned int count = 5, one = 2, n = 6;
  std::array<unsigned char, 6> data{};
  std::array<int, 2> pairs{1, 2};
  CUtexObject texture = 0;
  CUlimit* limit_pointer = &limit;
  int* pairs_pointer = pairs.data();

  Marshalled encode_call() { return encode(client, encoded, trailing, &size, limit_pointer, &count, data.data(), pairs_pointer, &one, n, &texture); }
  Served<CUresult> serve_call(std::size_t room = 64) {
    return serve(session, encoded.record, encoded.stream, std::span<const std::byte>(trailing).first(encoded.trailing_bytes), reply,
                 std::span(reply_trailing).first(room), &test_call, kSucceeded);
  }
  void store_call(std::size_t bytes) {
    store(encoded, reply, std::span<const std::byte>(reply_trailing).first(bytes), &size, limit_pointer, &count, data.data(), pairs_pointer, &one, n,
          &texture);
  }
};

}  // namespace

TEST_CASE("every kind of output comes back") {
  CallCase call;
  call.reply_trailing.fill(std::byte{0xee});
  call.data.fill(0xdd);
  REQUIRE(call.encode_call() == Marshalled::ok);
  const Served<CUresult> served = call.serve_call();
  REQUIRE(served.outcome == Marshalled::ok);
  call.store_call(served.reply_trailing_bytes);
  CHECK(call.size == 1'000'000'000'000);
  CHECK(call.limit == CU_LIMIT_MALLOC_HEAP_SIZE);
  CHECK(call.count == 7);
  CHECK(call.data == std::array<unsigned char, 6>{1, 2, 3, 0, 0, 0});  // what the driver left alone is zero, not what lay there before
  CHECK(call.pairs == std::array<int, 2>{2, 1});
  const Id<HandleKind::texture> texture{call.texture};
  CHECK(texture == Id<HandleKind::texture>::make(40, 1));
  CHECK(call.session.driver_handles.at(texture.value) == 17);
}

TEST_CASE("optional outputs may be NULL, the others not") {
  CallCase call;
  call.limit_pointer = nullptr;
  call.pairs_pointer = nullptr;
  REQUIRE(call.encode_call() == Marshalled::ok);
  const Served<CUresult> served = call.serve_call();
  REQUIRE(served.outcome == Marshalled::ok);
  call.store_call(served.reply_trailing_bytes);
  CHECK(call.count == 7);
  CHECK(call.pairs == std::array<int, 2>{1, 2});

  unsigned int* no_count = nullptr;
  CHECK(encode(call.client, call.encoded, call.trailing, &call.size, call.limit_pointer, no_count, call.data.data(), call.pairs_pointer, &call.one,
               call.n, &call.texture) == Marshalled::null_pointer);
}

TEST_CASE("a driver's refusal binds nothing and gives nothing back") {
  CallCase call;
  call.one = 0;
  REQUIRE(call.encode_call() == Marshalled::ok);
  const std::size_t known = call.session.driver_handles.size();
  const Served<CUresult> served = call.serve_call();
  CHECK(served.outcome == Marshalled::ok);
  CHECK(served.result == CUDA_ERROR_INVALID_VALUE);
  CHECK(served.reply_trailing_bytes == 0);
  CHECK(call.session.driver_handles.size() == known);
  CHECK(call.reply.size == 0);
}

TEST_CASE("a reply that would not fit is refused before the driver is called") {
  seen = {};
  CallCase call;
  REQUIRE(call.encode_call() == Marshalled::ok);
  for (std::size_t room = 0; room < 16; ++room) CHECK(call.serve_call(room).outcome == Marshalled::too_large);
  CHECK(seen.calls == 0);
  CHECK(call.serve_call(16).outcome == Marshalled::ok);
}

TEST_CASE("a reply cut short leaves the caller's memory alone from there on") {
  CallCase call;
  REQUIRE(call.encode_call() == Marshalled::ok);
  REQUIRE(call.serve_call().outcome == Marshalled::ok);
  call.store_call(6);
  CHECK(call.data == std::array<unsigned char, 6>{1, 2, 3, 0, 0, 0});
  CHECK(call.pairs == std::array<int, 2>{1, 2});
  call.data.fill(9);
  call.store_call(5);
  CHECK(call.data == std::array<unsigned char, 6>{9, 9, 9, 9, 9, 9});
}
