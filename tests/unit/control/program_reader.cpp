// SPDX-License-Identifier: Apache-2.0
// Which program a process runs: told by the content of its executable, read by a thread that nobody waits for.
#include "broker/control/program_reader.hpp"

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "broker/control/process_identity.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/broker_fixture.hpp"
#include "tests/unit/control/support/control_fixture.hpp"

using namespace mpsshim;
using namespace mpsshim::broker::control;
using namespace mpsshim::broker::control::testing;

namespace {

// A process that waits: `file`, a copy of sleep(1), with an argument.
class Sleeper {
 public:
  explicit Sleeper(const std::filesystem::path& file, const std::string& first = "1000") : pid_(fork()) {
    if (pid_ == 0) {
      execl(file.c_str(), "any name", first.c_str(), "1000", nullptr);
      _exit(1);
    }
    // Until then it is a copy of this process.
    REQUIRE(mpsshim::test::eventually(std::chrono::seconds(10), [&] {
      std::error_code error;
      return std::filesystem::read_symlink("/proc/" + std::to_string(pid_) + "/exe", error) == file && !leading_words_of(pid_).empty();
    }));
  }
  Sleeper(const Sleeper&) = delete;
  ~Sleeper() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  [[nodiscard]] pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

struct Reading {
  EventLoop loop;
  ProgramReader reader{loop, [this] { ++calls; }};
  int calls = 0;

  Program program_of(pid_t pid, uid_t uid = 1000) {
    const auto program = reader.identify(pid, uid, {});
    REQUIRE(turn_until(loop, [&] { return program->is_known; }));
    return program->program;
  }
};

proto::ContentDigest content_of_file(const std::filesystem::path& path) {
  const proto::FileDescriptor name(open(path.c_str(), O_PATH | O_CLOEXEC));
  REQUIRE(name.valid());
  return content_of(name.get());
}

std::filesystem::path sleep_in(const mpsshim::test::TemporaryFolder& folder, const char* name) {
  const std::filesystem::path path = folder.path() / name;
  std::filesystem::copy_file(std::filesystem::canonical("/bin/sleep"), path);
  return path;
}

}  // namespace

TEST_CASE("a copied and renamed executable is the same program, a changed one and another user's are others") {
  const mpsshim::test::TemporaryFolder folder;
  const auto one = sleep_in(folder, "one"), two = sleep_in(folder, "two"), three = sleep_in(folder, "three");
  std::ofstream(three, std::ios::app) << "more";
  const Sleeper first(one), second(two), third(three);
  Reading reading;
  const Program program = reading.program_of(first.pid());
  CHECK(program.digest != proto::ContentDigest{});
  CHECK(program.path == one);
  CHECK(program == reading.program_of(second.pid()));
  CHECK(program != reading.program_of(third.pid()));
  CHECK(program != reading.program_of(first.pid(), 1001));
  CHECK(reading.calls >= 4);
}

TEST_CASE("the first words of a command line are its script, options with it, what follows is not") {
  const mpsshim::test::TemporaryFolder folder;
  const auto file = sleep_in(folder, "sleeper");
  const Sleeper one(file, "1000"), two(file, "2000"), three(file, "--");
  CHECK(leading_words_of(one.pid()) == "1000");
  CHECK(leading_words_of(three.pid()) == "-- 1000");
  Reading reading;
  const Program first = reading.program_of(one.pid()), second = reading.program_of(two.pid());
  CHECK(first.digest == second.digest);
  CHECK(first != second);
}

TEST_CASE("of a large file both ends and the size tell") {
  const mpsshim::test::TemporaryFolder folder;
  const auto make = [&](const char* name, off_t size, off_t place) {
    const std::filesystem::path path = folder.path() / name;
    const proto::FileDescriptor file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    REQUIRE(ftruncate(file.get(), size) == 0);
    if (place >= 0) REQUIRE(pwrite(file.get(), "x", 1, place) == 1);
    return content_of_file(path);
  };
  const off_t size = 1ll << 30;
  const auto began = std::chrono::steady_clock::now();
  const auto plain = make("plain", size, -1);
  const auto took = std::chrono::steady_clock::now() - began;
  CHECK(plain != make("begin", size, 100));
  CHECK(plain != make("end", size, size - 100));
  CHECK(plain != make("longer", size + 1, -1));
  CHECK(plain == make("same", size, -1));
  CHECK(plain == make("middle", size, size / 2));
  CHECK(took < std::chrono::seconds(2));
}

TEST_CASE("what cannot be read is no program of its own") {
  const mpsshim::test::TemporaryFolder folder;
  const std::filesystem::path pipe = folder.path() / "pipe";
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(content_of_file(pipe) == proto::ContentDigest{});
  Reading reading;
  const auto nobody = reading.reader.identify(0, 1000, {});
  CHECK(nobody->is_known);
  const pid_t child = fork();
  if (child == 0) _exit(0);
  const proto::FileDescriptor pidfd(static_cast<int>(syscall(SYS_pidfd_open, child, 0)));
  REQUIRE(waitpid(child, nullptr, 0) == child);
  const auto gone = reading.reader.identify(getpid(), 1000, pidfd);  // as if its number had been given to another process
  CHECK(gone->is_known);
  CHECK(gone->program == nobody->program);
}
