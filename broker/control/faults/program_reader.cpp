// SPDX-License-Identifier: Apache-2.0
#include "broker/control/faults/program_reader.hpp"

#include <array>
#include <csignal>
#include <deque>
#include <filesystem>
#include <list>
#include <mutex>
#include <optional>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "broker/control/base/process_identity.hpp"
#include "broker/rights/rights.hpp"
#include "proto/cond_var.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::broker::control {

namespace {

constexpr std::chrono::milliseconds kHalfLimit{1'000};  // of reading one, its turn included
constexpr std::chrono::milliseconds kEndLimit{100};
constexpr unsigned kMostThreads = 4;
constexpr std::size_t kMostWaiting = 256;  // of a user
constexpr std::size_t kMostRemembered = 256;
constexpr off_t kEndBytes = 4 << 20;  // of a file: so much of its beginning and of its end

std::string file_of(int fd) { return "/proc/self/fd/" + std::to_string(fd); }

template <typename Value>
void add_value(proto::ContentHash& hash, const Value& value) {
  hash.add(std::as_bytes(std::span(&value, 1)));
}

bool add_range(proto::ContentHash& hash, int file, off_t begin, off_t end) {
  std::vector<std::byte> buffer(256u << 10);
  while (begin < end) {
    const auto wanted = static_cast<std::size_t>(std::min<off_t>(end - begin, static_cast<off_t>(buffer.size())));
    const ssize_t count = pread(file, buffer.data(), wanted, begin);
    if (count <= 0) return false;
    hash.add(std::span(buffer).first(static_cast<std::size_t>(count)));
    begin += count;
  }
  return true;
}

proto::ContentDigest read_content(int name, const struct stat& status) {
  if (!S_ISREG(status.st_mode)) return {};
  const proto::FileDescriptor file(open(file_of(name).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  proto::ContentHash hash;
  if (!file.valid()) {
    add_value(hash, status.st_dev);
    add_value(hash, status.st_ino);
    return hash.finish();
  }
  const off_t size = status.st_size;
  add_value(hash, size);
  const off_t first_end = size <= 2 * kEndBytes ? size : kEndBytes;
  const off_t last_begin = size <= 2 * kEndBytes ? size : size - kEndBytes;
  if (!add_range(hash, file.get(), 0, first_end) || !add_range(hash, file.get(), last_begin, size)) return {};
  return hash.finish();
}

// Contents that were read once, by what changes with them.
class Remembered {
 public:
  using Key = std::tuple<dev_t, ino_t, off_t, long, long, long, long>;
  static Key key_of(const struct stat& status) {
    return {status.st_dev,          status.st_ino,          status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec, status.st_ctim.tv_sec,
            status.st_ctim.tv_nsec};
  }
  [[nodiscard]] std::optional<proto::ContentDigest> find(const Key& key) {
    const std::lock_guard lock(mutex_);
    for (const auto& [known, digest] : entries_) {
      if (known == key) return digest;
    }
    return std::nullopt;
  }
  void add(const Key& key, const proto::ContentDigest& digest) {
    const std::lock_guard lock(mutex_);
    entries_.emplace_front(key, digest);
    if (entries_.size() > kMostRemembered) entries_.pop_back();
  }

 private:
  Mutex mutex_;
  std::list<std::pair<Key, proto::ContentDigest>> entries_ GUARDED_BY(mutex_);  // the latest in front
};

Remembered& remembered() {
  static Remembered& contents = *new Remembered;  // never destroyed: a thread may be held up until after the end of main()
  return contents;
}

}  // namespace

proto::ContentDigest content_of(int name) {
  struct stat status {};
  if (fstat(name, &status) != 0) return {};
  const Remembered::Key key = Remembered::key_of(status);
  if (const auto known = remembered().find(key)) return *known;
  const proto::ContentDigest digest = read_content(name, status);
  if (digest != proto::ContentDigest{}) remembered().add(key, digest);
  return digest;
}

struct ProgramReader::Shared {
  struct Job {
    std::uint64_t number = 0;
    proto::FileDescriptor name;
  };
  Mutex mutex;
  CondVar changed;
  std::map<uid_t, std::deque<Job>> waiting GUARDED_BY(mutex);
  uid_t last_user GUARDED_BY(mutex) = 0;
  std::vector<std::pair<std::uint64_t, proto::ContentDigest>> done GUARDED_BY(mutex);
  unsigned threads GUARDED_BY(mutex) = 0;
  unsigned busy GUARDED_BY(mutex) = 0;
  bool is_stopping GUARDED_BY(mutex) = false;
  Read read;  // set before there is a thread
  const proto::FileDescriptor bell{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};  // rung when there is something in `done`

  Job take() REQUIRES(mutex) {
    auto user = waiting.upper_bound(last_user);
    if (user == waiting.end()) user = waiting.begin();
    last_user = user->first;
    Job job = std::move(user->second.front());
    user->second.pop_front();
    if (user->second.empty()) waiting.erase(user);
    return job;
  }
};

ProgramReader::ProgramReader(EventLoop& loop, std::function<void()> known, Read read)
    : loop_(loop), known_(std::move(known)), shared_(std::make_shared<Shared>()) {
  shared_->read = std::move(read);
  watch_ = loop_.watch(shared_->bell.get(), EPOLLIN, [this](EventLoop::Events) { hear(); });
  const std::lock_guard lock(shared_->mutex);
  start_thread();
}

ProgramReader::~ProgramReader() {
  std::unique_lock lock(shared_->mutex);
  shared_->is_stopping = true;
  shared_->changed.notify_all();
  shared_->changed.wait_for(lock, kEndLimit, [&]() REQUIRES(shared_->mutex) { return shared_->threads == 0; });
}

// Signals are the main thread's.
void ProgramReader::start_thread() {
  shared_->mutex.assume_held();  // by every caller: the header does not know what is behind shared_
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  ++shared_->threads;
  std::thread([shared = shared_] {
    (void)keep_capabilities({});  // it reads what anybody may read
    run(shared);
  }).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void ProgramReader::run(const std::shared_ptr<Shared>& shared) {
  pthread_setname_np(pthread_self(), "programs");
  std::unique_lock lock(shared->mutex);
  for (;;) {
    shared->changed.wait(lock, [&]() REQUIRES(shared->mutex) { return shared->is_stopping || !shared->waiting.empty(); });
    if (shared->is_stopping) break;
    Shared::Job job = shared->take();
    ++shared->busy;
    lock.unlock();
    const proto::ContentDigest digest = shared->read(job.name.get());
    job.name.reset();
    lock.lock();
    --shared->busy;
    shared->done.emplace_back(job.number, digest);
    eventfd_write(shared->bell.get(), 1);
    if (shared->threads - shared->busy > 1) break;  // another has taken over meanwhile
  }
  --shared->threads;
  shared->changed.notify_all();
}

std::shared_ptr<const ClientProgram> ProgramReader::identify(pid_t pid, uid_t uid, const proto::FileDescriptor& pidfd) {
  const auto program = std::make_shared<ClientProgram>();
  program->program.uid = uid;
  program->is_known = true;
  if (pid <= 0) return program;
  const std::string link = "/proc/" + std::to_string(pid) + "/exe";
  proto::FileDescriptor name(open(link.c_str(), O_PATH | O_CLOEXEC));
  std::error_code error;
  std::string path = std::filesystem::read_symlink(link, error).string();
  std::string command = leading_words_of(pid);
  pollfd life{pidfd.get(), POLLIN, 0};
  const bool is_gone = pidfd.valid() && poll(&life, 1, 0) != 0;  // the number may be another process's
  if (is_gone) return program;
  program->program.path = std::move(path);
  program->program.command = std::move(command);
  if (!name.valid()) return program;
  const std::lock_guard lock(shared_->mutex);
  std::deque<Shared::Job>& waiting = shared_->waiting[uid];
  if (waiting.size() >= kMostWaiting) return program;
  program->is_known = false;
  const std::uint64_t number = ++last_job_;
  waiting.push_back({number, std::move(name)});
  awaited_[number] = {program, loop_.after(kHalfLimit, [this, number] { hurry(number); })};
  shared_->changed.notify_one();
  return program;
}

void ProgramReader::hear() {
  eventfd_t rung = 0;
  (void)eventfd_read(shared_->bell.get(), &rung);
  std::vector<std::pair<std::uint64_t, proto::ContentDigest>> done;
  {
    const std::lock_guard lock(shared_->mutex);
    done.swap(shared_->done);
  }
  for (const auto& [number, digest] : done) {
    const auto awaited = awaited_.extract(number);
    if (awaited.empty()) continue;  // given up
    awaited.mapped().program->program.digest = digest;
    awaited.mapped().program->is_known = true;
  }
  known_();
}

// It may be another one that takes so long.
void ProgramReader::hurry(std::uint64_t job) {
  awaited_.at(job).limit = loop_.after(kHalfLimit, [this, job] { give_up(job); });
  const std::lock_guard lock(shared_->mutex);
  if (shared_->busy == shared_->threads && shared_->threads < kMostThreads) start_thread();
}

void ProgramReader::give_up(std::uint64_t job) {
  const auto awaited = awaited_.extract(job);
  awaited.mapped().program->is_known = true;
  {
    const std::lock_guard lock(shared_->mutex);
    for (auto& [user, jobs] : shared_->waiting) std::erase_if(jobs, [&](const Shared::Job& waiting) { return waiting.number == job; });
    std::erase_if(shared_->waiting, [](const auto& user) { return user.second.empty(); });
  }
  known_();
}

}  // namespace mpsshim::broker::control
