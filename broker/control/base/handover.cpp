// SPDX-License-Identifier: Apache-2.0
#include "broker/control/base/handover.hpp"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

namespace mpsshim::broker::control {

namespace {

constexpr std::uint64_t kMagic = 0x31'7265'766f'6468ull;  // "hdover1"
constexpr std::chrono::seconds kQueryLimit{5};

struct Header {
  std::uint64_t magic = kMagic;
  std::uint32_t version = 0;
  std::uint32_t reserved = 0;
  std::uint64_t content_bytes = 0;
};
static_assert(sizeof(Header) == 24);

void set_close_on_exec(std::span<const int> files, bool on) {
  for (const int file : files) fcntl(file, F_SETFD, on ? FD_CLOEXEC : 0);
}

bool write_all(int file, const void* data, std::size_t bytes, std::uint64_t offset) {
  const auto* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = pwrite(file, at, bytes, static_cast<off_t>(offset));
    if (written <= 0) return false;
    at += written;
    bytes -= static_cast<std::size_t>(written);
    offset += static_cast<std::uint64_t>(written);
  }
  return true;
}

bool read_all(int file, void* data, std::size_t bytes, std::uint64_t offset) {
  auto* at = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t got = pread(file, at, bytes, static_cast<off_t>(offset));
    if (got <= 0) return false;
    at += got;
    bytes -= static_cast<std::size_t>(got);
    offset += static_cast<std::uint64_t>(got);
  }
  return true;
}

}  // namespace

void StateWriter::file(int fd) {
  number(static_cast<std::uint64_t>(static_cast<std::int64_t>(fd)));
  if (fd >= 0) files_.push_back(fd);
}

proto::FileDescriptor StateWriter::finish(std::uint32_t version) const {
  proto::FileDescriptor state = proto::create_memory_file("mpsshim-handover", sizeof(Header) + content_.size());
  const Header header{.version = version, .content_bytes = content_.size()};
  const bool written =
      state.valid() && write_all(state.get(), &header, sizeof header, 0) && write_all(state.get(), content_.data(), content_.size(), sizeof header);
  if (!written || !proto::seal(state, proto::Seal::content)) state.reset();
  return state;
}

StateReader::StateReader(const proto::FileDescriptor& state, std::string& why) {
  Header header;
  const auto size = proto::sealed_size(state);
  ok_ = size && *size >= sizeof header && read_all(state.get(), &header, sizeof header, 0) && header.magic == kMagic &&
        header.content_bytes <= *size - sizeof header;
  if (!ok_) {
    why = "what was handed over is no sealed state of a broker";
    return;
  }
  if (header.version < kOldestHandover || header.version > kHandoverVersion) {
    ok_ = false;
    why = fmt::format("what was handed over has version {}, this mpsbroker reads {} to {}", header.version, kOldestHandover, kHandoverVersion);
    return;
  }
  version_ = header.version;
  content_.resize(header.content_bytes);
  ok_ = read_all(state.get(), content_.data(), content_.size(), sizeof header);
  if (!ok_) why = "what was handed over cannot be read";
}

std::uint64_t StateReader::number() {
  std::uint64_t value = 0;
  if (!ok_ || content_.size() - at_ < sizeof value) return ok_ = false, 0;
  std::memcpy(&value, content_.data() + at_, sizeof value);
  at_ += sizeof value;
  return value;
}

std::string StateReader::text() {
  const std::uint64_t size = number();
  if (!ok_ || content_.size() - at_ < size) return ok_ = false, std::string();
  std::string value = content_.substr(at_, size);
  at_ += size;
  return value;
}

proto::FileDescriptor StateReader::file() {
  const int fd = static_cast<int>(static_cast<std::int64_t>(number()));
  if (!ok_ || fd < 0) return {};
  inherited_.push_back(fd);
  proto::FileDescriptor copy(fcntl(fd, F_DUPFD_CLOEXEC, 3));
  if (!copy.valid()) ok_ = false;
  return copy;
}

void StateReader::close_inherited() {
  for (const int fd : inherited_) close(fd);
  inherited_.clear();
}

HandoverQuery::HandoverQuery(EventLoop& loop, const std::string& program, std::function<void(const std::string& why)> done)
    : program_(program), done_(std::move(done)) {
  limit_ =
      loop.after(kQueryLimit, [this] { end(fmt::format("{} did not say within {} s which hand-over it reads", program_, kQueryLimit.count())); });
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) == 0) {
    output_ = proto::FileDescriptor(ends[0]);
    const proto::FileDescriptor input(ends[1]);
    child_ = fork();
    if (child_ == 0) {
      dup2(input.get(), STDOUT_FILENO);
      execl(program_.c_str(), program_.c_str(), "--handover-versions", nullptr);
      _exit(127);
    }
  }
  fcntl(output_.get(), F_SETFL, O_NONBLOCK);
  watch_ = loop.watch(output_.get(), EPOLLIN, [this](EventLoop::Events) { read_answer(); });
  if (child_ < 0 || !watch_)
    limit_ = loop.after(std::chrono::milliseconds(0), [this] { end("no child process can be made to ask the new program"); });
}

HandoverQuery::~HandoverQuery() {
  if (child_ <= 0) return;
  ::kill(child_, SIGKILL);
  waitpid(child_, nullptr, 0);
}

void HandoverQuery::read_answer() {
  char buffer[256];
  const ssize_t got = read(output_.get(), buffer, sizeof buffer);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got > 0 && answer_.size() < sizeof buffer) {
    answer_.append(buffer, static_cast<std::size_t>(got));
    return;
  }
  unsigned oldest = 0, newest = 0;
  char rest = 0;
  if (std::sscanf(answer_.c_str(), "handover %u %u%c", &oldest, &newest, &rest) != 3 || rest != '\n') {
    return end(fmt::format("{} is no mpsbroker that can take over", program_));
  }
  if (kHandoverVersion < oldest || kHandoverVersion > newest) {
    return end(fmt::format("{} reads hand-overs of versions {} to {}, this broker writes {}: quit this one and start that", program_, oldest, newest,
                           kHandoverVersion));
  }
  end("");
}

void HandoverQuery::end(const std::string& why) {
  watch_.reset();
  limit_.reset();
  if (const auto done = std::exchange(done_, nullptr)) done(why);
}

void execute(const std::string& program, const std::vector<std::string>& arguments, std::span<const int> files) {
  std::vector<std::string> words = arguments;
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  // What libraries have opened, such as the log, need not be close-on-exec.
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", ignored)) {
    const int fd = std::atoi(entry.path().filename().c_str());
    if (fd > STDERR_FILENO && !files.empty()) fcntl(fd, F_SETFD, FD_CLOEXEC);
  }
  set_close_on_exec(files, false);
  execv(program.c_str(), argv.data());
  const int error = errno;
  set_close_on_exec(files, true);
  errno = error;
}

}  // namespace mpsshim::broker::control
