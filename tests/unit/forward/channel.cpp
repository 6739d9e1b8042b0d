// SPDX-License-Identifier: Apache-2.0
#include "interposer/channel/channel.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "interposer/channel/carry_over.hpp"
#include "interposer/channel/fences.hpp"
#include "proto/futex.hpp"
#include "tests/support/catch.hpp"
#include "tests/unit/forward/fake_broker.hpp"

using namespace mpsshim;
using namespace mpsshim::interposer;
using namespace mpsshim::test;

namespace {

// Plays SessionClient: the first failure sticks, recovery carries over what was not read.
class Session final : public Channel::Guardian {
 public:
  explicit Session(PeerWatch peer = {}) : channel(*this, peer) {}

  CUresult recover(std::uint64_t epoch) override {
    const std::lock_guard lock(mutex_);
    const std::shared_ptr<Link> old = channel.link_behind_writers();  // from now on nobody writes
    if (old->epoch() != epoch) return CUDA_SUCCESS;
    const auto unread = find_unread(*old);
    if (!unread || next == nullptr) return fail(CUDA_ERROR_MPS_SERVER_NOT_READY);
    adopt_reply_slots(*unread, *next);
    std::uint64_t first = 0;
    if (carry_over(*unread, *old, *next, {}, first) != WaitEnd::ready) return fail(CUDA_ERROR_MPS_SERVER_NOT_READY);
    old->end = Link::End{unread->consumed, first, next};
    channel.set_link(next);
    ++recoveries;
    return CUDA_SUCCESS;
  }
  CUresult fail(CUresult error) override {
    CUresult none = CUDA_SUCCESS;
    return sticky.compare_exchange_strong(none, error) ? error : none;
  }
  CUresult look_for_kernel_error() override { return CUDA_SUCCESS; }

  Channel channel;
  std::shared_ptr<Link> next;  // set before the old link is marked as moved
  std::atomic<CUresult> sticky{CUDA_SUCCESS};
  std::atomic<int> recoveries{0};

 private:
  std::mutex mutex_;
};

void end_session(Link& link, proto::SessionState state, CUresult error = CUDA_SUCCESS) {
  link.header().session_error.store(static_cast<std::uint32_t>(error));
  link.header().session_state.store(static_cast<std::uint32_t>(state));
}

template <typename Record>
Record body_of(const std::byte* body) {
  Record record;
  std::memcpy(&record, body, sizeof record);
  return record;
}

bool is_chunk_create(const proto::RecordHeader& header) { return header.id == static_cast<std::uint16_t>(proto::RecordId::ChunkCreate); }

// Answers ChunkCreate(n) with {n + 1, 2 n}.
void answer_chunk_create(Link& link, const proto::RecordHeader& header, const std::byte* body) {
  const auto size = body_of<proto::ChunkCreateRecord>(body).size_bytes;
  const std::array<std::uint64_t, 2> reply{size + 1, 2 * size};
  answer(link, header.reply_slot, CUDA_SUCCESS, std::as_bytes(std::span(reply)));
}

CUresult create_chunk(Session& session, std::uint64_t size, proto::ChunkCreateReply& reply) {
  return session.channel.call({}, proto::ChunkCreateRecord{size}, {}, reply);
}

}  // namespace

TEST_CASE("channel: posts of several threads arrive whole, each thread's in order, over many turns of the ring") {
  constexpr int kThreads = 4;
  constexpr std::uint32_t kPosts = 20'000;  // with their trailing bytes several times the ring
  ChannelEnds ends = make_channel(1);
  std::array<std::uint32_t, kThreads> seen{};
  bool in_order = true;
  FakeExecutor executor(ends, [&](const proto::RecordHeader& header, const std::byte* body) {
    const auto record = body_of<proto::LaunchRecord>(body);
    const std::uint32_t thread = record.grid_x;
    in_order = in_order && record.grid_y == seen[thread]++ && header.trailing_bytes == record.parameter_bytes;
    for (std::uint32_t i = 0; i < record.parameter_bytes; ++i) {
      in_order = in_order && body[sizeof record + i] == static_cast<std::byte>(record.grid_y + i);
    }
  });
  Session session;
  session.channel.set_link(ends.link);
  std::vector<std::thread> threads;
  std::atomic<int> failures{0};
  for (std::uint32_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (std::uint32_t post = 0; post < kPosts; ++post) {
        const std::uint32_t bytes = (post * 7 + thread) % 150;
        const auto fill = [&](proto::LaunchRecord& record, std::byte* trailing, Place) {
          record.grid_x = thread;
          record.grid_y = post;
          record.parameter_bytes = bytes;
          for (std::uint32_t i = 0; i < bytes; ++i) trailing[i] = static_cast<std::byte>(post + i);
        };
        if (session.channel.post<proto::LaunchRecord>(proto::kNullStream, bytes, fill) != CUDA_SUCCESS) ++failures;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  while (!ends.link->producer().empty()) std::this_thread::yield();
  executor.stop();
  CHECK(failures == 0);
  CHECK(in_order);
  CHECK(executor.fault() == proto::RingFault::none);
  for (const std::uint32_t count : seen) CHECK(count == kPosts);
}

TEST_CASE("channel: calls of more threads than there are reply slots each get their own answer") {
  ChannelEnds ends = make_channel(1);
  FakeExecutor executor(ends, [&](const proto::RecordHeader& header, const std::byte* body) { answer_chunk_create(*ends.link, header, body); });
  Session session;
  session.channel.set_link(ends.link);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (std::uint64_t thread = 0; thread < 2 * proto::kReplySlots; ++thread) {
    threads.emplace_back([&, thread] {
      for (std::uint64_t i = 0; i < 100; ++i) {
        const std::uint64_t size = thread * 1000 + i;
        proto::ChunkCreateReply reply{};
        if (create_chunk(session, size, reply) != CUDA_SUCCESS || reply.address != size + 1 || reply.size_bytes != 2 * size) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  executor.stop();
  CHECK(wrong == 0);
}

TEST_CASE("channel: the executor's status and a reply that is too short are told apart") {
  ChannelEnds ends = make_channel(1);
  FakeExecutor executor(ends, [&](const proto::RecordHeader& header, const std::byte* body) {
    const bool refused = body_of<proto::ChunkCreateRecord>(body).size_bytes == 1;
    answer(*ends.link, header.reply_slot, refused ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS, {});
  });
  Session session;
  session.channel.set_link(ends.link);
  proto::ChunkCreateReply reply{};
  CHECK(create_chunk(session, 1, reply) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(session.sticky == CUDA_SUCCESS);
  CHECK(create_chunk(session, 2, reply) == CUDA_ERROR_MPS_RPC_FAILURE);
  CHECK(session.sticky == CUDA_ERROR_MPS_RPC_FAILURE);
}

TEST_CASE("channel: a failed session ends a wait for an answer with its error") {
  ChannelEnds ends = make_channel(1);
  FakeExecutor executor(ends, [](const proto::RecordHeader&, const std::byte*) {});  // never answers
  Session session;
  session.channel.set_link(ends.link);
  std::thread killer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    end_session(*ends.link, proto::SessionState::failed, CUDA_ERROR_ILLEGAL_ADDRESS);
  });
  proto::ChunkCreateReply reply{};
  CHECK(create_chunk(session, 1, reply) == CUDA_ERROR_ILLEGAL_ADDRESS);
  killer.join();
  CHECK(session.channel.post({}, proto::ChunkReleaseRecord{}) == CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_CASE("channel: a broker that quits ends a wait for room within a few looks") {
  ChannelEnds ends = make_channel(1);  // nobody reads
  std::atomic<bool> gone{false};
  Session session(PeerWatch{[](const void* state) { return static_cast<const std::atomic<bool>*>(state)->load(); }, &gone});
  session.channel.set_link(ends.link);
  std::thread quitter([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    gone = true;
  });
  CUresult result = CUDA_SUCCESS;
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (result == CUDA_SUCCESS && std::chrono::steady_clock::now() < limit) {
    result = session.channel.post({}, proto::ChunkReleaseRecord{});
  }
  quitter.join();
  CHECK(result == CUDA_ERROR_MPS_CONNECTION_FAILED);
}

TEST_CASE("channel: a full ring makes the writer wait until the executor reads") {
  ChannelEnds ends = make_channel(1);
  Session session;
  session.channel.set_link(ends.link);
  constexpr std::uint32_t kPosts = 3 * proto::kRingBytes / 32;
  std::thread writer([&] {
    for (std::uint32_t i = 0; i < kPosts; ++i) {
      if (session.channel.post({}, proto::ChunkReleaseRecord{i}) != CUDA_SUCCESS) return;
    }
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  std::uint64_t expected = 0;
  bool in_order = true;
  FakeExecutor executor(ends, [&](const proto::RecordHeader&, const std::byte* body) {
    in_order = in_order && body_of<proto::ChunkReleaseRecord>(body).address == expected++;
  });
  writer.join();
  while (!ends.link->producer().empty()) std::this_thread::yield();
  executor.stop();
  CHECK(in_order);
  CHECK(expected == kPosts);
}

TEST_CASE("channel: what the old executor had not read runs in the new one, calls get their answers") {
  ChannelEnds old_ends = make_channel(1);
  ChannelEnds new_ends = make_channel(2);
  Session session;
  session.channel.set_link(old_ends.link);
  session.next = new_ends.link;
  // Nobody reads the old ring: three posts and two calls stay in it.
  for (std::uint64_t i = 1; i <= 3; ++i) REQUIRE(session.channel.post({}, proto::ChunkReleaseRecord{i}) == CUDA_SUCCESS);
  std::array<proto::ChunkCreateReply, 2> replies{};
  std::array<CUresult, 2> results{CUDA_ERROR_UNKNOWN, CUDA_ERROR_UNKNOWN};
  std::vector<std::thread> callers;
  for (std::size_t i = 0; i < 2; ++i) {
    callers.emplace_back([&, i] { results[i] = create_chunk(session, 100 + i, replies[i]); });
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(60));
  std::vector<std::uint64_t> released;
  FakeExecutor executor(new_ends, [&](const proto::RecordHeader& header, const std::byte* body) {
    if (is_chunk_create(header)) {
      answer_chunk_create(*new_ends.link, header, body);
    } else {
      released.push_back(body_of<proto::ChunkReleaseRecord>(body).address);
    }
  });
  end_session(*old_ends.link, proto::SessionState::moved);
  for (std::thread& caller : callers) caller.join();
  REQUIRE(session.channel.post({}, proto::ChunkReleaseRecord{4}) == CUDA_SUCCESS);
  while (!new_ends.link->producer().empty()) std::this_thread::yield();
  executor.stop();
  CHECK(executor.fault() == proto::RingFault::none);
  CHECK(session.recoveries == 1);
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(results[i] == CUDA_SUCCESS);
    CHECK(replies[i].address == 101 + i);
  }
  CHECK(released == std::vector<std::uint64_t>{1, 2, 3, 4});
}

TEST_CASE("channel: a call that was read but not answered is asked again only where that is harmless") {
  ChannelEnds old_ends = make_channel(1);
  ChannelEnds new_ends = make_channel(2);
  std::atomic<int> read{0};
  auto old_executor = std::make_unique<FakeExecutor>(old_ends, [&](const proto::RecordHeader&, const std::byte*) { ++read; });
  FakeExecutor new_executor(new_ends,
                            [&](const proto::RecordHeader& header, const std::byte* body) { answer_chunk_create(*new_ends.link, header, body); });
  Session session;
  session.channel.set_link(old_ends.link);
  session.next = new_ends.link;
  static_assert(proto::LeaseUseRecord::kMayRepeat && !proto::ChunkCreateRecord::kMayRepeat);
  proto::LeaseUseReply harmless{};
  proto::ChunkCreateReply never{};
  CUresult harmless_result = CUDA_ERROR_UNKNOWN, never_result = CUDA_ERROR_UNKNOWN;
  std::thread first([&] { harmless_result = session.channel.call({}, proto::LeaseUseRecord{5}, {}, harmless); });
  std::thread second([&] { never_result = create_chunk(session, 6, never); });
  while (read != 2) std::this_thread::yield();
  while (!old_ends.link->producer().empty()) std::this_thread::yield();
  old_executor->stop();
  end_session(*old_ends.link, proto::SessionState::moved);
  first.join();
  second.join();
  new_executor.stop();
  CHECK(harmless_result == CUDA_SUCCESS);
  CHECK(harmless.size_bytes == 6);
  CHECK(never_result == CUDA_ERROR_MPS_SERVER_NOT_READY);
  CHECK(session.sticky == CUDA_SUCCESS);
}

TEST_CASE("channel: an executor position inside a record is refused") {
  ChannelEnds ends = make_channel(1);
  Session session;
  session.channel.set_link(ends.link);
  REQUIRE(session.channel.post({}, proto::ChunkReleaseRecord{1}) == CUDA_SUCCESS);
  CHECK(find_unread(*ends.link).has_value());
  ends.link->header().head.store(8);
  CHECK_FALSE(find_unread(*ends.link).has_value());
  ends.link->header().head.store(4096);
  CHECK_FALSE(find_unread(*ends.link).has_value());
}

TEST_CASE("channel: more sleepers on fences than waiters are all woken") {
  constexpr std::uint32_t kSleepers = proto::kFenceWaiters + 16;
  ChannelEnds ends = make_channel(1);
  const proto::FileDescriptor file = proto::create_memory_file("test fences", proto::kFenceSegmentBytes);
  FenceMemory fences;
  REQUIRE(fences.map(file));
  auto& words = const_cast<proto::FenceWord&>(fences.word(0));
  std::atomic<bool> stop{false};
  std::thread completion([&] {  // looks at armed waiters as the executor's completion thread does
    while (!stop) {
      for (std::uint32_t i = 0; i < proto::kFenceWaiters; ++i) {
        proto::FenceWaiter& waiter = ends.link->waiter(i);
        if (waiter.state.load(std::memory_order_acquire) != proto::FenceWaiter::armed) continue;
        const std::uint32_t fence = std::atomic_ref(waiter.fence).load(std::memory_order_relaxed);
        const std::uint32_t target = std::atomic_ref(waiter.target).load(std::memory_order_relaxed);
        if (!proto::fence_reached(fences.word(fence).value.load(), target)) continue;
        std::uint32_t expected = proto::FenceWaiter::armed;
        if (waiter.state.compare_exchange_strong(expected, proto::FenceWaiter::fired)) proto::futex_wake_all(waiter.state);
      }
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  });
  std::atomic<std::uint32_t> woken{0};
  std::vector<std::thread> sleepers;
  for (std::uint32_t i = 0; i < kSleepers; ++i) {
    sleepers.emplace_back([&, i] {
      FenceSleep sleep(*ends.link, 0, 1 + i % 3);
      Wait wait("a fence of the test", ends.link->header(), {});
      if (wait.until([&] { return fences.reached(0, 1 + i % 3); }, sleep) == WaitEnd::ready) ++woken;
    });
  }
  for (std::uint32_t value = 1; value <= 3; ++value) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    words.value.store(value);
  }
  for (std::thread& sleeper : sleepers) sleeper.join();
  stop = true;
  completion.join();
  CHECK(woken == kSleepers);
  for (std::uint32_t i = 0; i < proto::kFenceWaiters; ++i) CHECK(ends.link->waiter(i).state == proto::FenceWaiter::free);
}
