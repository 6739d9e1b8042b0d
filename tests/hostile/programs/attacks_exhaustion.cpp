// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <csignal>

#include "tests/hostile/programs/attacks.hpp"

namespace mpsshim::test {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint32_t kOutOfMemory = 2;
constexpr std::uint64_t kMany = 100'000;  // more than any limit lets through

// Text that no other image has, with a variable of its own.
std::string module_text(std::uint64_t number, std::size_t bytes = 0) {
  std::string text = "//" + std::to_string(number) +
                     "\n.version 7.0\n.target sm_50\n.address_size 64\n.global .align 4 .u32 variable = 7;\n.visible .entry nop()\n{\n  ret;\n}\n";
  if (text.size() + 2 < bytes) text += "//" + std::string(bytes - text.size() - 2, ' ');
  return text;
}

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text.data(), text.size())); }

// True if the answer says that there is no more; throws for another error.
bool is_refused(std::uint32_t status, const char* what) {
  if (status == 0) return false;
  if (status != kOutOfMemory) throw Failure(std::string(what) + " is answered with CUDA error " + std::to_string(status));
  return true;
}

}  // namespace

// Never mapped: they wait in the executor for a SegmentMap that does not come.
std::string segments(Hostile& hostile, std::uint64_t size_bytes) {
  RawSession& session = hostile.own();
  proto::SegmentCreate request;
  request.purpose = proto::SegmentPurpose::staging;
  request.size_bytes = size_bytes;
  for (std::uint64_t made = 0; made < kMany; ++made) {
    const auto created = session.connection.ask<proto::SegmentCreated>(request);
    if (is_refused(created.header.status, "SegmentCreate")) return "ok " + std::to_string(made);
  }
  throw Failure("segments without end");
}

// Written whole: memory that the broker holds until the session ends.
std::string images(Hostile& hostile, std::uint64_t size_bytes) {
  RawSession& session = hostile.own();
  for (std::uint64_t made = 0; made < kMany; ++made) {
    try {
      (void)session.make_image(module_text(hostile.random(), size_bytes));
    } catch (const Failure& refused) {
      if (std::string(refused.what()).find("CUDA error 2") == std::string::npos) throw;
      return "ok " + std::to_string(made);
    }
  }
  throw Failure("images without end");
}

// Different images, each loaded, looked into, and unloaded again.
std::string modules(Hostile& hostile, int count) {
  RawSession& session = hostile.own();
  for (int i = 0; i < count; ++i) {
    const std::uint64_t image = session.make_image(module_text(hostile.random()));
    const auto id = proto::ModuleId::make(static_cast<std::uint32_t>(i % 3), static_cast<std::uint32_t>(i / 3 + 1));
    const RawReply loaded = session.call(proto::ModuleLoadRecord{id, image, false, {}});
    if (loaded.status != 0) throw Failure("ModuleLoad: " + std::to_string(loaded.status));
    const RawReply variable = session.call(proto::GlobalLookupRecord{id}, bytes_of("variable"));
    if (variable.status != 0) throw Failure("GlobalLookup: " + std::to_string(variable.status));
    session.post(proto::ModuleUnloadRecord{id});
  }
  return "ok " + std::to_string(count);
}

// As many streams and events as there are ids, each recorded, so that each has an event of the driver's.
std::string objects(Hostile& hostile) {
  RawSession& session = hostile.own();
  for (std::uint32_t i = 1; i < proto::kFenceWords; ++i) {
    if (!session.post(proto::StreamCreateRecord{1, 0}, proto::StreamId::make(i, 1))) throw Failure("a stream within the limit ends the session");
  }
  constexpr std::uint32_t kEvents = 40'000;
  for (std::uint32_t i = 0; i < kEvents; ++i) {
    const auto id = proto::EventId::make(i, 1);
    if (!session.post(proto::EventCreateRecord{id, 2, 0}) || !session.post(proto::EventRecordRecord{id, i + 1, 0}))
      throw Failure("an event ends the session");
  }
  session.await_fence(kEvents);
  (void)session.call(proto::ReleaseRecord{});
  // One id beyond: malformed, and the session's end.
  session.post(proto::StreamCreateRecord{1, 0}, proto::StreamId::make(proto::kFenceWords, 1));
  const auto end = Clock::now() + std::chrono::milliseconds(kAnswerLimitMs);
  while (session.is_active()) {
    if (Clock::now() > end) throw Failure("a stream beyond the limit is taken");
  }
  return "ok";
}

std::string streams(Hostile& hostile, int sessions) {
  for (int i = 0; i < sessions; ++i) {
    RawSession& session = *hostile.more_sessions.emplace_back(std::make_unique<RawSession>());
    for (std::uint32_t index = 1; index < proto::kFenceWords; ++index) {
      session.post(proto::StreamCreateRecord{1, static_cast<std::int32_t>(index % 100) - 50}, proto::StreamId::make(index, 1));
    }
    (void)session.call(proto::ReleaseRecord{});
    if (!session.is_active()) throw Failure("streams within the limit end a session");
  }
  return "ok";
}

std::string chunks(Hostile& hostile, std::uint64_t size_bytes) {
  RawSession& session = hostile.own();
  for (std::uint64_t made = 0; made < kMany; ++made) {
    if (is_refused(session.call(proto::ChunkCreateRecord{size_bytes}).status, "ChunkCreate")) return "ok " + std::to_string(made);
  }
  throw Failure("chunks without end");
}

std::string leases(Hostile& hostile) {
  RawSession& session = hostile.own();
  proto::LeaseAdd request;
  request.size_bytes = 1;
  for (std::uint64_t made = 0; made < kMany; ++made) {
    if (is_refused(session.connection.ask<proto::LeaseAdded>(request).header.status, "LeaseAdd")) return "ok " + std::to_string(made);
  }
  throw Failure("ranges of addresses without end");
}

std::string waits(Hostile& hostile, int count) {
  RawSession& session = hostile.own();
  for (int i = 0; i < count; ++i) {
    session.post(proto::SegmentMapRecord{1'000'000'000u + hostile.random() % 1000, 0, 0}, proto::kNullStream, {}, static_cast<std::uint16_t>(i % 16));
    session.post(proto::LeaseUseRecord{hostile.random()}, proto::kNullStream, {}, static_cast<std::uint16_t>(16 + i % 16));
  }
  return "ok";
}

std::string lookups(Hostile& hostile, int duration_ms) {
  RawSession& session = hostile.own();
  const auto module = proto::ModuleId::make(1, 1);
  const RawReply loaded = session.call(proto::ModuleLoadRecord{module, session.make_image(module_text(hostile.random())), false, {}});
  if (loaded.status != 0) throw Failure("ModuleLoad: " + std::to_string(loaded.status));
  const auto end = Clock::now() + std::chrono::milliseconds(duration_ms);
  unsigned posted = 0;
  while (Clock::now() < end && session.is_active()) {
    if (session.producer.reserve(256) == nullptr) {
      session.producer.wait_for_room(1'000);
      continue;
    }
    const std::string name = "nothing" + std::to_string(++posted);
    session.post(proto::GlobalLookupRecord{module}, proto::kNullStream, bytes_of(name), static_cast<std::uint16_t>(posted % proto::kReplySlots));
  }
  return "ok " + std::to_string(posted);
}

std::string deaf(Hostile& hostile, int duration_ms) {
  RawSession& session = hostile.own();
  const auto end = Clock::now() + std::chrono::milliseconds(duration_ms);
  unsigned posted = 0;
  while (Clock::now() < end && session.is_active()) {
    if (session.producer.reserve(256) == nullptr) {
      session.producer.wait_for_room(1'000);
      continue;
    }
    session.post(proto::MemoryInfoRecord{}, proto::kNullStream, {}, static_cast<std::uint16_t>(++posted % proto::kReplySlots));
  }
  return "ok " + std::to_string(posted);
}

std::string stop_in_call(Hostile& hostile) {
  RawSession& session = hostile.own();
  (void)work(hostile);
  session.arm(5);
  session.post(proto::MemoryInfoRecord{}, proto::kNullStream, {}, 5);
  raise(SIGSTOP);
  return session.wait(5).status == 0 ? "ok" : "an answer that came while it stood still is lost";
}

}  // namespace mpsshim::test
