// SPDX-License-Identifier: Apache-2.0
// Messages between control process and executor as bytes: what fits its row is what was sent, and what differs from it is nobody's.
#include "broker/executor_message.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include <unistd.h>

#include "proto/message.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/executor_messages.hpp"

namespace mpsshim::broker {

namespace {

using proto::MessageDirection;
using proto::Misfit;

proto::ReceivedFds some_fds(std::size_t count) {
  proto::ReceivedFds fds;
  for (; fds.count < count; ++fds.count) fds.fds[fds.count] = proto::duplicate_of(STDERR_FILENO);
  return fds;
}

Misfit misfit_of(std::span<const std::byte> packet, std::size_t fd_count, MessageDirection direction) {
  ReceivedMessage received;
  proto::ReceivedFds fds = some_fds(fd_count);
  const Misfit misfit = received.assign(packet, fds, direction);
  CHECK((fds.count == 0) == (misfit == Misfit::fits || fd_count == 0));  // they are the message's, or still ours
  return misfit;
}

std::vector<std::byte> packet_of(std::uint32_t id, std::size_t body_bytes) {
  std::vector<std::byte> packet(sizeof(ExecutorHeader) + body_bytes);
  std::memcpy(packet.data(), &id, sizeof id);
  return packet;
}

MessageDirection other(MessageDirection direction) {
  return direction == MessageDirection::to_executor ? MessageDirection::from_executor : MessageDirection::to_executor;
}

}  // namespace

TEST_CASE("executor messages: each row takes its own form, and none beside it") {
  for (const proto::MessageRow& row : kExecutorMessages) {
    INFO(row.name);
    const auto packet = packet_of(row.id, row.size_bytes);
    // Of zeros; a segment has no purpose then.
    const Misfit whole = misfit_of(packet, row.least_descriptors, row.direction);
    const bool is_segment = row.id == static_cast<std::uint32_t>(ExecutorMessage::segment_add) ||
                            row.id == static_cast<std::uint32_t>(ExecutorMessage::segment_restore);
    CHECK(whole == (is_segment ? Misfit::range : Misfit::fits));
    CHECK(misfit_of(packet, row.most_descriptors, row.direction) == whole);
    CHECK(misfit_of(packet, row.most_descriptors + 1, row.direction) == Misfit::descriptors);
    if (row.least_descriptors != 0) CHECK(misfit_of(packet, row.least_descriptors - 1, row.direction) == Misfit::descriptors);
    CHECK(misfit_of(packet, row.least_descriptors, other(row.direction)) == Misfit::direction);
    CHECK(misfit_of(packet, row.least_descriptors, MessageDirection::from_client) == Misfit::direction);
    CHECK(misfit_of(packet_of(row.id, row.size_bytes + 1), row.least_descriptors, row.direction) == Misfit::size);
    CHECK(misfit_of(std::span(packet).first(packet.size() - 1), row.least_descriptors, row.direction) == Misfit::size);
  }
  CHECK(misfit_of(packet_of(0, 0), 0, MessageDirection::to_executor) == Misfit::unknown);
  CHECK(misfit_of(packet_of(4711, 0), 0, MessageDirection::from_executor) == Misfit::unknown);
  CHECK(misfit_of({}, 0, MessageDirection::from_executor) == Misfit::size);
}

TEST_CASE("executor messages: a field that is nothing it can be") {
  const auto note = [](std::uint32_t kind) {
    const OutgoingMessage sent(message::ModuleNote{.kind = static_cast<proto::LogKind>(kind)});
    return misfit_of(sent.bytes(), 0, MessageDirection::from_executor);
  };
  CHECK(note(4) == Misfit::fits);
  CHECK(note(5) == Misfit::range);
  CHECK(note(UINT32_MAX) == Misfit::range);
}

TEST_CASE("executor messages: what was sent arrives, each descriptor under its name") {
  const auto [ours, its] = proto::Socket::pair();
  int pipes[2];
  REQUIRE(pipe(pipes) == 0);
  const proto::FileDescriptor reading(pipes[0]), writing(pipes[1]);
  message::ImageGive give{.session = 7, .question = 11, .size_bytes = 1u << 20, .status = 3};
  set_text(give.text, std::string(1000, 'x'));
  REQUIRE(test::send_message(ours, {give, {.image = writing.get(), .prepared = reading.get()}}));
  auto received = test::receive_message(its, MessageDirection::to_executor);
  REQUIRE(received);
  CHECK(received->session() == 7);
  CHECK(std::string(received->name()) == "ImageGive");
  const auto [got, fds] = received->take<message::ImageGive>();
  CHECK(got.question == 11);
  CHECK(got.size_bytes == 1u << 20);
  CHECK(got.status == 3);
  CHECK(std::string(got.text) == std::string(sizeof got.text - 1, 'x'));
  REQUIRE(write(fds.image.get(), "text", 4) == 4);
  char text[4];
  CHECK(read(fds.prepared.get(), text, sizeof text) == 4);
}

TEST_CASE("executor messages: descriptors that may be missing leave no gap, and a text ends") {
  const OutgoingMessage none(message::ImageGive{});
  CHECK(none.fds().empty());
  const OutgoingMessage one(message::ImageGive{}, {.image = STDERR_FILENO});
  CHECK(one.fds().size() == 1);
  message::Starved starved{.session = 1};
  std::ranges::fill(starved.text, 'x');
  ReceivedMessage received;
  proto::ReceivedFds fds;
  REQUIRE(received.assign(OutgoingMessage(starved).bytes(), fds, MessageDirection::from_executor) == Misfit::fits);
  CHECK(std::string(received.read<message::Starved>().text) == std::string(sizeof starved.text - 1, 'x'));
}

}  // namespace mpsshim::broker
