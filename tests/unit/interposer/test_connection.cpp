// SPDX-License-Identifier: Apache-2.0
// The connection to the control process, whose part the test plays: an answer that fits its row comes with each descriptor under its name, any
// other one ends the connection, and nothing of it stays open.
#include "interposer/channel/connection.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/catch.hpp"

namespace mpsshim::interposer {

namespace {

constexpr int kTimeoutMs = 5'000;  // answers are there before they are waited for

// Both ends of a connection. Packets stay in a socket until they are read, so the broker's answer may be sent before the question.
class Ends {
 public:
  Ends() {
    REQUIRE(mkdtemp(folder_.data()) != nullptr);
    const std::string path = folder_ + '/' + proto::kClientSocketName;
    const proto::Socket listener = proto::Socket::listen_at(path, 1);
    REQUIRE(listener.valid());
    REQUIRE(client.open(path));
    broker = listener.accept();
    REQUIRE(broker.valid());
  }
  ~Ends() { std::filesystem::remove_all(folder_); }
  Ends(const Ends&) = delete;
  Ends& operator=(const Ends&) = delete;

  Connection client;
  proto::Socket broker;

 private:
  std::string folder_ = "/tmp/mpsshim-connection-XXXXXX";
};

// A descriptor that tells whether copies of it are open anywhere: the end of a pipe that is written into.
class Watched {
 public:
  Watched() {
    int ends[2];
    REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
    reading_ = proto::FileDescriptor(ends[0]);
    writing_ = proto::FileDescriptor(ends[1]);
  }
  [[nodiscard]] std::vector<int> times(std::size_t count) const { return std::vector<int>(count, writing_.get()); }
  // Closes the one that is here.
  [[nodiscard]] bool has_copies() {
    writing_.reset();
    pollfd end{reading_.get(), POLLIN, 0};
    return poll(&end, 1, 0) == 0;
  }

 private:
  proto::FileDescriptor reading_;
  proto::FileDescriptor writing_;
};

template <typename Message>
std::vector<std::byte> packet_of(const Message& message, std::size_t size_bytes) {
  std::vector<std::byte> packet(size_bytes);
  std::memcpy(packet.data(), &message, std::min(size_bytes, sizeof message));
  return packet;
}

// More of them than Socket::send lets go.
[[nodiscard]] bool send_many(const proto::Socket& socket, std::vector<std::byte> packet, const std::vector<int>& fds) {
  const std::size_t fd_bytes = fds.size() * sizeof(int);
  std::vector<cmsghdr> control(CMSG_SPACE(fd_bytes) / sizeof(cmsghdr) + 1);
  iovec part{packet.data(), packet.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = CMSG_SPACE(fd_bytes);
  cmsghdr* const rights = CMSG_FIRSTHDR(&header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(fd_bytes);
  std::memcpy(CMSG_DATA(rights), fds.data(), fd_bytes);
  return sendmsg(socket.fd(), &header, MSG_NOSIGNAL) == static_cast<ssize_t>(packet.size());
}

template <typename Message>
Message refusal(CUresult status) {
  Message message;
  message.header.status = static_cast<std::uint32_t>(status);
  return message;
}

off_t size_of(const proto::FileDescriptor& file) {
  struct stat status {};
  REQUIRE(fstat(file.get(), &status) == 0);
  return status.st_size;
}

// `question` is answered with `packet`: the connection ends for good, says why, and what came with the packet is closed.
template <typename Answer, typename Question>
void expect_end(const Question& question, const std::vector<std::byte>& packet, std::size_t fd_count, const std::string& why) {
  INFO(packet.size() << " bytes with " << fd_count << " descriptors");
  Ends ends;
  Watched given;
  REQUIRE(ends.broker.send(packet, given.times(fd_count)) == proto::SocketStatus::ok);
  proto::Received<Answer> answer;
  CHECK(ends.client.request(question, answer, {}, kTimeoutMs) == CUDA_ERROR_MPS_CONNECTION_FAILED);
  for (const proto::FileDescriptor* fd : answer.fds.list()) CHECK_FALSE(fd->valid());
  CHECK_FALSE(given.has_copies());
  REQUIRE(ends.client.why_lost() != nullptr);
  CHECK(std::string(ends.client.why_lost()) == why);
  CHECK(ends.client.is_lost());
  REQUIRE(proto::send_message(ends.broker, proto::Done{}) == proto::SocketStatus::ok);
  proto::Done late;
  CHECK(ends.client.ask(proto::ImageSeal{}, late) == CUDA_ERROR_MPS_CONNECTION_FAILED);
}

constexpr char kWrongSize[] = "the broker's answer has another size than its type";
constexpr char kWrongDescriptors[] = "the broker's answer has other descriptors than its type";

}  // namespace

TEST_CASE("connection: an answer that fits comes with each descriptor under its name") {
  Ends ends;
  std::array<proto::FileDescriptor, 4> files;
  for (std::size_t i = 0; i < files.size(); ++i) files[i] = proto::create_memory_file("given", (i + 1) * proto::kPageBytes);
  proto::Attached sent;
  sent.session = 7;
  sent.pinned_lease = {0x1000, 0x2000};
  REQUIRE(proto::send_message(
              ends.broker, sent,
              {.channel = files[0].get(), .fences = files[1].get(), .ring_doorbell = files[2].get(), .completion_doorbell = files[3].get()}) ==
          proto::SocketStatus::ok);
  proto::Received<proto::Attached> answer;
  REQUIRE(ends.client.request(proto::Attach{}, answer, {}, kTimeoutMs) == CUDA_SUCCESS);
  CHECK(answer.message.session == 7);
  CHECK(answer.message.pinned_lease == sent.pinned_lease);
  CHECK(size_of(answer.fds.channel) == size_of(files[0]));
  CHECK(size_of(answer.fds.fences) == size_of(files[1]));
  CHECK(size_of(answer.fds.ring_doorbell) == size_of(files[2]));
  CHECK(size_of(answer.fds.completion_doorbell) == size_of(files[3]));
  CHECK_FALSE(ends.client.is_lost());
}

TEST_CASE("connection: what may be missing of an answer is missing, and the answer is one") {
  Ends ends;
  proto::ImageOpened sent;
  sent.image = 99;
  REQUIRE(proto::send_message(ends.broker, sent) == proto::SocketStatus::ok);
  proto::Received<proto::ImageOpened> answer;
  REQUIRE(ends.client.request(proto::ImageOffer{}, answer, {}, kTimeoutMs) == CUDA_SUCCESS);
  CHECK(answer.message.image == 99);
  CHECK_FALSE(answer.fds.file.valid());
  CHECK_FALSE(ends.client.is_lost());
}

TEST_CASE("connection: an answer of another length than its row's ends it") {
  for (const std::size_t size : {sizeof(proto::MessageHeader), sizeof(proto::Done) - 1, sizeof(proto::Done) + 1, proto::kMaxMessageBytes}) {
    expect_end<proto::Done>(proto::ImageSeal{}, packet_of(proto::Done{}, size), 0, kWrongSize);
  }
  for (const std::size_t size : {sizeof(proto::Attached) - 8, sizeof(proto::Attached) + 8}) {
    expect_end<proto::Attached>(proto::Attach{}, packet_of(proto::Attached{}, size), proto::kDescriptors<proto::Attached>, kWrongSize);
  }
  expect_end<proto::Done>(proto::ImageSeal{}, packet_of(proto::Done{}, sizeof(proto::MessageHeader) - 1), 0, "the broker's answer is too short");
}

TEST_CASE("connection: an answer with more descriptors than its row's, or without one that is due, ends it") {
  const auto done = packet_of(proto::Done{}, sizeof(proto::Done));
  const auto segment = packet_of(proto::SegmentCreated{}, sizeof(proto::SegmentCreated));
  const auto opened = packet_of(proto::ImageOpened{}, sizeof(proto::ImageOpened));
  const auto attached = packet_of(proto::Attached{}, sizeof(proto::Attached));
  expect_end<proto::Done>(proto::ImageSeal{}, done, 1, kWrongDescriptors);
  expect_end<proto::Done>(proto::ImageSeal{}, done, proto::kMaxMessageFds, kWrongDescriptors);
  expect_end<proto::SegmentCreated>(proto::SegmentCreate{}, segment, 0, kWrongDescriptors);
  expect_end<proto::SegmentCreated>(proto::SegmentCreate{}, segment, 2, kWrongDescriptors);
  expect_end<proto::ImageOpened>(proto::ImageOffer{}, opened, 2, kWrongDescriptors);
  expect_end<proto::Attached>(proto::Attach{}, attached, 5, kWrongDescriptors);
}

TEST_CASE("connection: an answer with more descriptors than any message ends it, and leaves none open") {
  Ends ends;
  Watched given;
  REQUIRE(send_many(ends.broker, packet_of(proto::Done{}, sizeof(proto::Done)), given.times(proto::kMaxMessageFds + 5)));
  proto::Done answer;
  CHECK(ends.client.ask(proto::ImageSeal{}, answer) == CUDA_ERROR_MPS_CONNECTION_FAILED);
  CHECK_FALSE(given.has_copies());
  CHECK(ends.client.is_lost());
}

TEST_CASE("connection: an answer to another question, or of another protocol, ends it") {
  expect_end<proto::Done>(proto::ImageSeal{}, packet_of(proto::ImageOpened{}, sizeof(proto::ImageOpened)), 0,
                          "the broker has answered another question");
  proto::Done strange;
  strange.header.magic = 0;
  expect_end<proto::Done>(proto::ImageSeal{}, packet_of(strange, sizeof strange), 0, "the broker's answer is not of this protocol");
}

TEST_CASE("connection: a refusal has the length of its row and no descriptors") {
  {
    Ends ends;
    auto sent = refusal<proto::Welcome>(CUDA_ERROR_MPS_CONNECTION_FAILED);
    sent.layout_minor = 77;
    REQUIRE(proto::send_message(ends.broker, sent) == proto::SocketStatus::ok);
    REQUIRE(proto::send_message(ends.broker, refusal<proto::SegmentCreated>(CUDA_ERROR_OUT_OF_MEMORY)) == proto::SocketStatus::ok);
    proto::Received<proto::Welcome> welcome;
    CHECK(ends.client.request(proto::Hello{}, welcome, {}, kTimeoutMs) == CUDA_ERROR_MPS_CONNECTION_FAILED);
    CHECK(welcome.message.layout_minor == 77);
    CHECK_FALSE(welcome.fds.facts.valid());
    proto::Received<proto::SegmentCreated> segment;
    CHECK(ends.client.request(proto::SegmentCreate{}, segment, {}, kTimeoutMs) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_FALSE(ends.client.is_lost());
  }
  const auto segment = refusal<proto::SegmentCreated>(CUDA_ERROR_OUT_OF_MEMORY);
  expect_end<proto::SegmentCreated>(proto::SegmentCreate{}, packet_of(segment, sizeof segment), 1, kWrongDescriptors);
  expect_end<proto::SegmentCreated>(proto::SegmentCreate{}, packet_of(segment, sizeof segment - 8), 0, kWrongSize);
}

TEST_CASE("connection: a question carries what is lent to it, and nothing where nothing is") {
  Ends ends;
  const Watched lent;
  std::array<std::byte, proto::kMaxMessageBytes> packet;
  std::size_t bytes = 0;
  proto::ReceivedFds fds;
  proto::Received<proto::Welcome> answer;
  for (const auto& [fd, count] : {std::pair{lent.times(1).front(), 1u}, std::pair{-1, 0u}}) {
    REQUIRE(proto::send_message(ends.broker, refusal<proto::Welcome>(CUDA_ERROR_UNKNOWN)) == proto::SocketStatus::ok);
    REQUIRE(ends.client.request(proto::Hello{}, answer, {.self = fd}, kTimeoutMs) == CUDA_ERROR_UNKNOWN);
    REQUIRE(ends.broker.receive(packet, bytes, fds) == proto::SocketStatus::ok);
    CHECK(bytes == sizeof(proto::Hello));
    CHECK(fds.count == count);
  }
}

// A user may have so many descriptors in sockets as the limit of open files says, all its processes together; root may have more.
TEST_CASE("connection: where a descriptor cannot be sent for now Hello does without, another question is refused and the connection goes on") {
  constexpr uid_t kNobody = 65'534;
  constexpr rlim_t kFew = 16;
  if (geteuid() != 0) MPSSHIM_SKIP("it takes root to become a user with no descriptors in sockets yet");
  Ends ends;
  const Watched lent;
  const auto [filled, reader] = proto::Socket::pair();
  REQUIRE(proto::send_message(ends.broker, refusal<proto::Welcome>(CUDA_ERROR_UNKNOWN)) == proto::SocketStatus::ok);
  const pid_t child = fork();
  if (child == 0) {
    rlimit few{};
    bool is_right = setresuid(kNobody, kNobody, kNobody) == 0 && getrlimit(RLIMIT_NOFILE, &few) == 0;
    few.rlim_cur = kFew;
    is_right = is_right && setrlimit(RLIMIT_NOFILE, &few) == 0;
    is_right = is_right && send_many(filled, std::vector<std::byte>(1), lent.times(kFew + 1));
    const int fd = lent.times(1).front();
    proto::ExternalTaken taken;
    is_right = is_right && ends.client.ask(proto::ExternalOffer{}, taken, {.handle = fd}) == CUDA_ERROR_OUT_OF_MEMORY;
    proto::Received<proto::Welcome> answer;
    is_right = is_right && ends.client.request(proto::Hello{}, answer, {.self = fd}, kTimeoutMs) == CUDA_ERROR_UNKNOWN;
    _exit(is_right && !ends.client.is_lost() ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
  std::array<std::byte, proto::kMaxMessageBytes> packet;
  std::size_t bytes = 0;
  proto::ReceivedFds fds;
  REQUIRE(ends.broker.receive(packet, bytes, fds) == proto::SocketStatus::ok);
  CHECK(bytes == sizeof(proto::Hello));
  CHECK(fds.count == 0);
}

}  // namespace mpsshim::interposer
