// SPDX-License-Identifier: Apache-2.0
// What clients pass to the control process beside their messages: descriptors of every kind, none, one or many, wanted or not, read or left lying.
// An input is a row of steps:
//   u8 bits 0-1: which of four connections; bits 2-5: how many descriptors go with it; bit 7: it hangs up instead
//   u8 kind of each descriptor, u16 length, then as many bytes: the message
// The thread that serves everybody closes none of them that may take its maker's time to close, nor a socket in which some lie; what an executor is
// handed as memory is a memory file (support/control_stage.cpp); when all have hung up, no descriptor is left.
#include <array>
#include <cstring>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <dirent.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/client_requests.hpp"
#include "proto/ids.hpp"
#include "tests/fuzz/support/control_stage.hpp"
#include "tests/fuzz/support/fuzz_target.hpp"

using namespace mpsshim;
using namespace mpsshim::fuzz;

namespace {

constexpr std::size_t kConnections = 4;
constexpr std::size_t kLongestMessage = 5000;  // beyond what the protocol allows
constexpr std::size_t kMostFds = 15;

std::unique_ptr<ControlStage> stage;
std::uint64_t records = 0;

// --- what the control process's own thread may close ---
thread_local bool is_watched = false;
std::set<std::pair<dev_t, ino_t>> strange;  // inodes, each of its file system, of what clients have made and sent

std::size_t passed_in(int socket, int* fds) {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(ucred)) + CMSG_SPACE(kMostFds * sizeof(int))> control{};
  msghdr header{};
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  if (recvmsg(socket, &header, MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC) < 0) return 0;
  std::size_t count = 0;
  for (cmsghdr* one = CMSG_FIRSTHDR(&header); one != nullptr; one = CMSG_NXTHDR(&header, one)) {
    if (one->cmsg_level != SOL_SOCKET || one->cmsg_type != SCM_RIGHTS) continue;
    count = (one->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    std::memcpy(fds, CMSG_DATA(one), count * sizeof(int));
  }
  return count;
}

bool has_inode_of_strange(int fd) {
  struct stat about {};
  return fstat(fd, &about) == 0 && strange.contains({about.st_dev, about.st_ino});
}

std::size_t count_passed(int socket, std::size_t& of_strange) {
  std::array<int, kMostFds> fds{};
  const std::size_t count = passed_in(socket, fds.data());
  of_strange = 0;
  for (std::size_t i = 0; i < count; ++i) {
    of_strange += has_inode_of_strange(fds[i]) ? 1 : 0;
    syscall(SYS_close, fds[i]);
  }
  return count;
}

void check_close(int fd) {
  require(!has_inode_of_strange(fd), "the control process closes what a client has sent");
  struct stat about {};
  std::size_t of_strange = 0;
  if (fstat(fd, &about) != 0 || !S_ISSOCK(about.st_mode)) return;
  (void)count_passed(fd, of_strange);
  require(of_strange == 0, "the control process closes a socket in which descriptors lie");
}

// Of one that was looked at a duplicate is there.
void check_drop(int socket) {
  std::size_t of_strange = 0;
  if (count_passed(socket, of_strange) > 1) require(of_strange == 0, "the control process drops a message with descriptors");
}

// --- what clients send ---
enum Kind : std::uint8_t {
  own_pidfd,
  parents_pidfd,
  dead_pidfd,
  memory,
  sealed_memory,
  empty_memory,
  event,
  timer,
  poll,
  null_device,  // to close them takes nobody's time
  pipe_end,
  socket_end,
  full_socket,
  udp_socket,
  folder,
  path_only,
  watcher,
  own_connection,
  kinds
};
constexpr bool is_strange(unsigned kind) { return kind >= Kind::pipe_end; }

proto::FileDescriptor of(long fd) { return proto::FileDescriptor(static_cast<int>(fd)); }
proto::FileDescriptor pidfd_of(pid_t pid) { return of(syscall(SYS_pidfd_open, pid, 0)); }

proto::FileDescriptor one_of_dead_process() {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  proto::FileDescriptor fd = pidfd_of(child);
  (void)waitpid(child, nullptr, 0);
  return fd;
}

void send_raw(int socket, std::span<const std::byte> message, std::span<const int> fds) {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMostFds * sizeof(int))> control{};
  iovec part{const_cast<std::byte*>(message.data()), message.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (!fds.empty()) {
    header.msg_control = control.data();
    header.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* const rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(rights), fds.data(), fds.size_bytes());
  }
  (void)sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
}

proto::FileDescriptor socket_with_descriptors() {
  auto ends = proto::Socket::pair();
  const int inside[] = {ends[0].fd(), STDERR_FILENO};
  const std::byte nothing[1] = {};
  send_raw(ends[1].fd(), nothing, inside);
  return ends[0].release();
}

proto::FileDescriptor make(unsigned kind, int connection) {
  static const proto::FileDescriptor dead = one_of_dead_process();
  switch (static_cast<Kind>(kind)) {
    case Kind::own_pidfd: return pidfd_of(getpid());
    case Kind::parents_pidfd: return pidfd_of(getppid());
    case Kind::dead_pidfd: return dead.duplicate();
    case Kind::memory: return proto::create_memory_file("fuzz", 1u << 16);
    case Kind::sealed_memory: {
      proto::FileDescriptor file = proto::create_memory_file("fuzz", 1u << 16);
      (void)proto::seal(file, proto::Seal::size);
      return file;
    }
    case Kind::empty_memory: return of(memfd_create("fuzz", MFD_CLOEXEC));
    case Kind::event: return of(eventfd(1, EFD_CLOEXEC));
    case Kind::timer: return of(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC));
    case Kind::poll: return of(epoll_create1(EPOLL_CLOEXEC));
    case Kind::null_device: return of(open("/dev/null", O_RDONLY | O_CLOEXEC));
    case Kind::pipe_end: {
      int ends[2] = {-1, -1};
      if (pipe2(ends, O_CLOEXEC) != 0) return {};
      syscall(SYS_close, ends[0]);
      return of(ends[1]);
    }
    case Kind::socket_end: return proto::Socket::pair()[0].release();
    case Kind::full_socket: return socket_with_descriptors();
    case Kind::udp_socket: return of(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    case Kind::folder: return of(open("/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    case Kind::path_only: return of(open("/proc/self/status", O_PATH | O_CLOEXEC));
    case Kind::watcher: return of(inotify_init1(IN_CLOEXEC));
    case Kind::own_connection: return of(fcntl(connection, F_DUPFD_CLOEXEC, 3));
    case Kind::kinds: break;
  }
  return {};
}

// Anonymous inodes have one number for all.
void note(int fd, unsigned kind) {
  struct stat about {};
  if (is_strange(kind) && kind != Kind::watcher && fstat(fd, &about) == 0) strange.insert({about.st_dev, about.st_ino});
}

class Client {
 public:
  void send(std::span<const std::byte> message, std::span<const std::uint8_t> wanted) {
    if (!socket_.valid() || socket_.peer_has_hung_up()) socket_ = stage->connect();
    ++records;
    std::vector<proto::FileDescriptor> files;
    std::vector<int> fds;
    for (const std::uint8_t byte : wanted) {
      const unsigned kind = byte % Kind::kinds;
      files.push_back(make(kind, socket_.fd()));
      if (!files.back().valid()) continue;
      note(files.back().get(), kind);
      fds.push_back(files.back().get());
    }
    send_raw(socket_.fd(), message, fds);
    files.clear();  // the last of each is in the socket now
  }
  void read_answers() {
    std::array<std::byte, proto::kMaxMessageBytes> buffer;
    std::size_t bytes = 0;
    proto::ReceivedFds fds;
    while (socket_.valid() && socket_.receive(buffer, bytes, fds) == proto::SocketStatus::ok) fds = {};
  }
  void hang_up() { socket_.reset(); }

 private:
  proto::Socket socket_;
};

std::size_t open_files() {
  std::size_t count = 0;
  DIR* const folder = opendir("/proc/self/fd");
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

void serve() {
  is_watched = true;
  stage->settle();
  is_watched = false;
}

template <typename Message>
void add_step(Input& input, unsigned connection, const std::vector<std::uint8_t>& fds, const Message& message) {
  input.push_back(static_cast<std::uint8_t>(connection | fds.size() << 2));
  input.insert(input.end(), fds.begin(), fds.end());
  append(input, static_cast<std::uint16_t>(sizeof message));
  append(input, message);
}

}  // namespace

// In place of the C library's, for all that is linked in.
extern "C" __attribute__((visibility("default"))) int close(int fd) {
  if (is_watched) check_close(fd);
  return static_cast<int>(syscall(SYS_close, fd));
}
extern "C" __attribute__((visibility("default"))) ssize_t recv(int socket, void* buffer, std::size_t size, int flags) {
  if (is_watched) check_drop(socket);
  return recvfrom(socket, buffer, size, flags, nullptr, nullptr);
}

namespace mpsshim::fuzz {

Input make_input(Random& random) {
  Input input;
  const auto some_kinds = [&](std::size_t most) {
    std::vector<std::uint8_t> fds(random() % (most + 1));
    for (std::uint8_t& kind : fds) kind = static_cast<std::uint8_t>(random());
    return fds;
  };
  for (std::uint64_t steps = 4 + random() % 32; steps > 0; --steps) {
    const auto connection = static_cast<unsigned>(random() % kConnections);
    switch (random() % 12) {
      case 0: input.push_back(static_cast<std::uint8_t>(0x80 | connection)); break;
      case 1: add_step(input, connection, some_kinds(kMostFds), proto::Hello{}); break;
      case 2:
      case 3:
      case 4:
        add_step(input, connection, {Kind::own_pidfd}, proto::Hello{});
        add_step(input, connection, {}, proto::Attach{});
        break;
      case 5: add_step(input, connection, some_kinds(2), proto::Attach{}); break;
      case 6: add_step(input, connection, some_kinds(2), proto::ImageOpen{.size_bytes = random() % 65536}); break;
      case 7: add_step(input, connection, some_kinds(kMostFds), random()); break;
      default: {
        proto::ExternalOffer offer{.size_bytes = random() % 3 == 0 ? random() : random() % (1u << 16), .handle_type = random() % 16 == 0 ? 9u : 1u};
        offer.memory = proto::ExternalMemoryId::make(static_cast<std::uint32_t>(random() % 256), 1).value;
        const bool is_right = random() % 2 == 0;
        add_step(input, connection, is_right ? std::vector<std::uint8_t>{Kind::memory} : some_kinds(random() % 4 == 0 ? 8 : 1), offer);
      }
    }
  }
  return input;
}

std::uint64_t records_so_far() { return records; }
void finish() { stage.reset(); }

}  // namespace mpsshim::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (!stage) {
    stage = std::make_unique<ControlStage>();
    (void)make(Kind::dead_pidfd, -1);  // kept
  }
  const std::size_t files_at_rest = open_files();
  {
    std::array<Client, kConnections> clients;
    Reader reader(data, size);
    while (!reader.empty()) {
      const std::uint8_t action = reader.byte();
      Client& client = clients[action & 3];
      if ((action & 0x80) != 0) {
        client.hang_up();
        serve();
        continue;
      }
      std::size_t count = action >> 2 & 15;
      const std::uint8_t* const wanted = reader.take(count);
      std::size_t length = reader.word() % kLongestMessage;
      const std::uint8_t* const bytes = reader.take(length);
      client.send(std::as_bytes(std::span(bytes, length)), {wanted, count});
      if (count % 2 == 0 || count == 1) serve();  // or the next one comes behind it
      client.read_answers();
    }
  }
  is_watched = true;
  stage->await_end();
  is_watched = false;
  require(open_files() == files_at_rest, "descriptors are left of clients that have hung up");
  strange.clear();
  return 0;
}
