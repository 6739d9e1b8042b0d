// SPDX-License-Identifier: Apache-2.0
// Descriptors of other interfaces: what they are, and which of them an executor is handed.
#include <array>
#include <cstdio>

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include "broker/control/base/descriptor_kind.hpp"
#include "proto/ids.hpp"
#include "tests/unit/control/support/control_fixture.hpp"

using namespace mpsshim;
using namespace mpsshim::broker;
using namespace mpsshim::broker::control;
using namespace mpsshim::broker::control::testing;

namespace {

constexpr std::uint64_t kBytes = 64 * 1024;
constexpr std::uint32_t kOpaqueFd = 1, kDmaBufFd = 9;

proto::ExternalOffer offer(std::uint32_t number, std::uint64_t size_bytes = kBytes, std::uint32_t type = kOpaqueFd) {
  proto::ExternalOffer request;
  request.memory = proto::ExternalMemoryId::make(number, 1).value;
  request.size_bytes = size_bytes;
  request.handle_type = type;
  return request;
}

std::uint32_t answer_to(TestClient& client, const proto::ExternalOffer& request, int fd) {
  return client.ask<proto::ExternalTaken>(request, {&fd, 1}).header.status;
}

struct Fixture {
  explicit Fixture(bool is_cpu = true) {
    broker.executor().is_cpu = is_cpu;
    broker.serve();
    client.emplace(broker.attach(&attached));
  }
  ControlFixture broker;
  proto::Attached attached;
  std::optional<TestClient> client;
  const proto::FileDescriptor memory = proto::create_memory_file("external", kBytes);
};

}  // namespace

TEST_CASE("what a descriptor is of") {
  const proto::FileDescriptor memory = proto::create_memory_file("external", kBytes);
  CHECK(look_at(memory.get()).kind == DescriptorKind::memory_file);
  CHECK(look_at(memory.get()).size_bytes == kBytes);
  const std::string path = "/proc/self/fd/" + std::to_string(memory.get());
  std::FILE* const file = std::tmpfile();
  REQUIRE(file != nullptr);
  std::array<int, 2> pipe_ends{}, socket_ends{};
  REQUIRE(pipe2(pipe_ends.data(), O_CLOEXEC) == 0);
  REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, socket_ends.data()) == 0);
  const std::array others = {proto::FileDescriptor(dup(fileno(file))),
                             proto::FileDescriptor(pipe_ends[0]),
                             proto::FileDescriptor(pipe_ends[1]),
                             proto::FileDescriptor(socket_ends[0]),
                             proto::FileDescriptor(socket_ends[1]),
                             proto::FileDescriptor(open("/dev/null", O_RDWR | O_CLOEXEC)),
                             proto::FileDescriptor(open("/dev/shm", O_RDONLY | O_CLOEXEC)),
                             proto::FileDescriptor(open("/proc/self/maps", O_RDONLY | O_CLOEXEC)),
                             proto::FileDescriptor(open(path.c_str(), O_PATH | O_CLOEXEC)),
                             proto::FileDescriptor(eventfd(0, EFD_CLOEXEC))};
  for (const proto::FileDescriptor& other : others) {
    REQUIRE(other.valid());
    CHECK(look_at(other.get()).kind == DescriptorKind::other);
  }
  CHECK(look_at(-1).kind == DescriptorKind::other);
  std::fclose(file);
}

TEST_CASE("memory of another interface reaches the executor before the client hears of it") {
  Fixture f;
  const int fd = f.memory.get();
  f.client->send(offer(1), {&fd, 1});
  REQUIRE(f.client->await<proto::ExternalTaken>().header.status == CUDA_SUCCESS);
  auto arrived = f.broker.executor().receive();  // no turn of the loop: it is there already
  REQUIRE(arrived);
  REQUIRE(arrived->is<message::PieceAdd>());
  const auto [piece, fds] = arrived->take<message::PieceAdd>();
  CHECK(piece.session == f.attached.session);
  CHECK(piece.memory == offer(1).memory);
  CHECK(piece.size_bytes == kBytes);
  REQUIRE(pwrite(fd, "hello", 5, 100) == 5);
  char text[5];
  REQUIRE(pread(fds.handle.get(), text, 5, 100) == 5);
  CHECK(std::string(text, 5) == "hello");
}

TEST_CASE("what is no memory, or less than is said, goes to no executor") {
  Fixture f;
  const proto::FileDescriptor null(open("/dev/null", O_RDWR | O_CLOEXEC));
  CHECK(answer_to(*f.client, offer(1), null.get()) == CUDA_ERROR_INVALID_VALUE);
  CHECK(answer_to(*f.client, offer(1, kBytes + 1), f.memory.get()) == CUDA_ERROR_INVALID_VALUE);
  CHECK(answer_to(*f.client, offer(1, 0), f.memory.get()) == CUDA_ERROR_INVALID_VALUE);
  CHECK(answer_to(*f.client, offer(1, kBytes, kDmaBufFd), f.memory.get()) == CUDA_ERROR_INVALID_VALUE);
  CHECK(answer_to(*f.client, offer(1, kBytes, 2), f.memory.get()) == CUDA_ERROR_INVALID_VALUE);
  const proto::FileDescriptor empty = proto::create_memory_file("empty", kBytes);
  REQUIRE(ftruncate(empty.get(), 0) == 0);
  CHECK(answer_to(*f.client, offer(1), empty.get()) == CUDA_ERROR_INVALID_VALUE);
  proto::ExternalOffer wrong_id = offer(1);
  wrong_id.memory = proto::MemoryId::make(1, 1).value;
  CHECK(answer_to(*f.client, wrong_id, f.memory.get()) == CUDA_ERROR_INVALID_VALUE);
  CHECK_FALSE(f.broker.executor().receive());
  CHECK(answer_to(*f.client, offer(1), f.memory.get()) == CUDA_SUCCESS);
}

TEST_CASE("a GPU's executor is handed no memory file") {
  Fixture f(false);
  CHECK(answer_to(*f.client, offer(1), f.memory.get()) == CUDA_ERROR_INVALID_VALUE);
  CHECK_FALSE(f.broker.executor().receive());
}

TEST_CASE("an offer without its descriptor ends that connection") {
  Fixture f;
  SECTION("none") { f.client->send(offer(1)); }
  SECTION("two") {
    const int both[] = {f.memory.get(), f.memory.get()};
    f.client->send(offer(1), both);
  }
  CHECK(f.client->is_closed());
}

TEST_CASE("so much is handed over at a time, and more once it was used") {
  Fixture f;
  std::uint32_t number = 0;
  while (number < ClientSession::kMostAnnounced) REQUIRE(answer_to(*f.client, offer(++number), f.memory.get()) == CUDA_SUCCESS);
  CHECK(answer_to(*f.client, offer(number), f.memory.get()) == CUDA_ERROR_INVALID_VALUE);  // it is under way
  CHECK(answer_to(*f.client, offer(++number), f.memory.get()) == CUDA_ERROR_OUT_OF_MEMORY);
  f.broker.executor().send(message::PieceTaken{.session = f.attached.session, .memory = offer(1).memory});
  turn_for(f.broker.loop, 10);
  CHECK(answer_to(*f.client, offer(number), f.memory.get()) == CUDA_SUCCESS);
  CHECK(answer_to(*f.client, offer(++number), f.memory.get()) == CUDA_ERROR_OUT_OF_MEMORY);
}
