// SPDX-License-Identifier: Apache-2.0
// Which program a process runs: told by the content of its executable, read by a thread that nobody waits for.
#include "broker/control/faults/program_reader.hpp"

#include <algorithm>
#include <condition_variable>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "broker/control/base/process_identity.hpp"
#include "tests/support/broker_fixture.hpp"
#include "tests/support/catch.hpp"
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

  ProgramIdentity program_of(pid_t pid, uid_t uid = 1000) {
    const auto program = reader.identify(pid, uid, {});
    REQUIRE(turn_until(loop, [&] { return program->is_known; }));
    return program->program;
  }
};

// Files of a file system that never answers: whoever reads one stands until the end of the test.
class Silent {
 public:
  ~Silent() { open(); }
  void add(const std::filesystem::path& file) { REQUIRE(stat(file.c_str(), &files_.emplace_back()) == 0); }
  void open() {
    const std::lock_guard lock(shared_->mutex);
    shared_->is_open = true;
    shared_->changed.notify_all();
  }
  [[nodiscard]] ProgramReader::Read read() const {
    return [shared = shared_, files = files_](int name) {
      struct stat status {};
      REQUIRE(fstat(name, &status) == 0);
      const auto is_it = [&](const struct stat& file) { return file.st_ino == status.st_ino && file.st_dev == status.st_dev; };
      if (std::any_of(files.begin(), files.end(), is_it)) {
        std::unique_lock lock(shared->mutex);
        shared->changed.wait(lock, [&] { return shared->is_open; });
      }
      return content_of(name);
    };
  }

 private:
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    bool is_open = false;
  };
  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  std::vector<struct stat> files_;
};

// Of ProgramReader, in this process.
std::ptrdiff_t reading_threads() {
  std::ptrdiff_t count = 0;
  std::error_code error;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", error)) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    count += name == "programs" ? 1 : 0;
  }
  return count;
}

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
  const ProgramIdentity program = reading.program_of(first.pid());
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
  const ProgramIdentity first = reading.program_of(one.pid()), second = reading.program_of(two.pid());
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

TEST_CASE("programs whose files never answer are given up after two seconds, and others are read meanwhile") {
  const mpsshim::test::TemporaryFolder folder;
  constexpr int kSilent = 6;
  std::vector<std::unique_ptr<Sleeper>> sleepers;
  Silent silent;
  for (int i = 0; i < kSilent; ++i) {
    const std::filesystem::path file = sleep_in(folder, ("silent" + std::to_string(i)).c_str());
    silent.add(file);
    sleepers.push_back(std::make_unique<Sleeper>(file));
  }
  const Sleeper other(sleep_in(folder, "answers"));
  REQUIRE(mpsshim::test::eventually(std::chrono::seconds(10), [] { return reading_threads() == 0; }));  // of tests before
  EventLoop loop;
  std::optional<ProgramReader> reader(std::in_place, loop, [] {}, silent.read());
  const auto began = EventLoop::Clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(EventLoop::Clock::now() - began).count(); };
  const auto first = reader->identify(sleepers[0]->pid(), 1000, {});
  CHECK_FALSE(first->is_known);
  const auto theirs = reader->identify(other.pid(), 1001, {});
  REQUIRE(turn_until(loop, [&] { return theirs->is_known; }, 1'800));  // by a second thread
  CHECK(theirs->program.digest != proto::ContentDigest{});
  CHECK_FALSE(first->is_known);
  REQUIRE(turn_until(loop, [&] { return first->is_known; }));
  CHECK(seconds() < 3);
  CHECK(first->program.digest == proto::ContentDigest{});  // as any that cannot be read
  std::vector<std::shared_ptr<const ClientProgram>> more;
  for (int i = 1; i < kSilent; ++i) more.push_back(reader->identify(sleepers[static_cast<std::size_t>(i)]->pid(), 1000, {}));
  const auto are_known = [&] { return std::all_of(more.begin(), more.end(), [](const auto& program) { return program->is_known; }); };
  REQUIRE(turn_until(loop, are_known, 4'000));
  CHECK(reader->pending() == 0);
  CHECK(reading_threads() <= 4);
  const auto ends = EventLoop::Clock::now();
  reader.reset();  // waits a moment, for nobody's file
  CHECK(EventLoop::Clock::now() - ends < std::chrono::seconds(5));
  silent.open();
  CHECK(mpsshim::test::eventually(std::chrono::seconds(10), [] { return reading_threads() == 0; }));
}
