// SPDX-License-Identifier: Apache-2.0
#include "proto/socket.hpp"

#include <array>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include <unistd.h>

#include "proto/handshake.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::proto;

namespace {

std::string make_folder() {
  char name[] = "/tmp/mpsshim-socket-XXXXXX";
  REQUIRE(mkdtemp(name) != nullptr);
  return name;
}

struct TemporaryFolder {
  std::string path = make_folder();
  ~TemporaryFolder() { std::filesystem::remove_all(path); }
};

std::size_t open_descriptors() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

}  // namespace

TEST_CASE("a message arrives with its descriptors") {
  const auto [left, right] = Socket::pair();
  const FileDescriptor file = create_memory_file("test", kPageBytes);
  Hello sent;
  sent.protocol_hash = 99;
  REQUIRE(send_message(left, sent, std::array{file.get()}) == SocketStatus::ok);
  Hello got;
  ReceivedFds fds;
  std::size_t bytes = 0;
  REQUIRE(right.receive(std::as_writable_bytes(std::span(&got, 1)), bytes, fds) == SocketStatus::ok);
  CHECK(bytes == sizeof got);
  CHECK(got.protocol_hash == 99);
  REQUIRE(fds.count == 1);
  CHECK(fds.fds[0].valid());
}

TEST_CASE("a packet that is too long is reported and leaks no descriptor") {
  const auto [left, right] = Socket::pair();
  const FileDescriptor file = create_memory_file("test", kPageBytes);
  const std::size_t before = open_descriptors();
  const std::vector<std::byte> packet(200);
  REQUIRE(left.send(packet, std::array{file.get(), file.get()}) == SocketStatus::ok);
  std::array<std::byte, 100> buffer{};
  ReceivedFds fds;
  std::size_t bytes = 0;
  CHECK(right.receive(buffer, bytes, fds) == SocketStatus::truncated);
  CHECK(fds.count == 0);
  CHECK(open_descriptors() == before);
}

TEST_CASE("hang-up is seen") {
  auto pair = Socket::pair();
  CHECK_FALSE(pair[1].peer_has_hung_up());
  pair[0].reset();
  CHECK(pair[1].peer_has_hung_up());
  ReceivedFds fds;
  std::size_t bytes = 0;
  std::array<std::byte, 16> buffer{};
  CHECK(pair[1].receive(buffer, bytes, fds) == SocketStatus::closed);
}

TEST_CASE("listening replaces a stale socket and refuses a living one, at paths of any length") {
  const TemporaryFolder folder;
  std::string path = folder.path;
  SECTION("short") {}
  SECTION("longer than sockaddr_un holds") {
    for (int i = 0; i < 4; ++i) path += "/a_folder_with_a_long_name_for_this_test";
    std::filesystem::create_directories(path);
  }
  path += "/s";
  {
    const Socket first = Socket::listen_at(path, 4);
    REQUIRE(first.valid());
    CHECK_FALSE(Socket::listen_at(path, 4).valid());
    const Socket client = Socket::connect_to(path);
    REQUIRE(client.valid());
    const Socket accepted = first.accept();  // the probe of the second listener comes first
    REQUIRE(accepted.valid());
    CHECK(accepted.peer().uid == getuid());
  }
  CHECK_FALSE(Socket::connect_to(path).valid());
  CHECK(Socket::listen_at(path, 4).valid());
}
