// SPDX-License-Identifier: Apache-2.0
// The form: "Trace Event Format" (Google), array form. Its first line is "[", every further one an event with a comma behind it.
#include "proto/trace.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <ctime>
#include <memory>
#include <mutex>
#include <vector>

#include <fcntl.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "proto/file_size_limit.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::proto::trace {

constinit std::atomic<Writer*> active{nullptr};

namespace {

constexpr std::size_t kBufferBytes = 64 * 1024;
constexpr std::size_t kMostLineBytes = 512;
constexpr std::size_t kMostNameBytes = 120;
constexpr std::uint64_t kOldestNs = 1'000'000'000;

// A line as it grows. One that does not fit is not used.
class Line {
 public:
  Line& operator<<(std::string_view text) {
    fits_ = fits_ && text.size() <= text_.size() - size_;
    if (fits_) size_ += text.copy(text_.data() + size_, text.size());
    return *this;
  }
  Line& operator<<(std::uint64_t number) {
    const auto end = std::to_chars(text_.data() + size_, text_.data() + text_.size(), number);
    fits_ = fits_ && end.ec == std::errc();
    if (fits_) size_ = static_cast<std::size_t>(end.ptr - text_.data());
    return *this;
  }
  // Nanoseconds as the format's microseconds.
  Line& add_time(std::uint64_t ns) {
    const auto digit = [&](std::uint64_t unit) { return static_cast<char>('0' + ns / unit % 10); };
    const std::array<char, 4> fraction = {'.', digit(100), digit(10), digit(1)};
    return *this << ns / 1000 << std::string_view(fraction.data(), fraction.size());
  }
  Line& add_hexadecimal(std::uint64_t number) {
    const auto end = std::to_chars(text_.data() + size_, text_.data() + text_.size(), number, 16);
    fits_ = fits_ && end.ec == std::errc();
    if (fits_) size_ = static_cast<std::size_t>(end.ptr - text_.data());
    return *this;
  }
  // As the inside of a JSON string. What would need an escape becomes an underscore: names are for the eye.
  Line& add_name(std::string_view text) {
    for (const char c : text.substr(0, kMostNameBytes)) {
      const bool is_plain = c >= 0x20 && c < 0x7f && c != '"' && c != '\\';
      *this << std::string_view(is_plain ? &c : "_", 1);
    }
    return *this;
  }
  [[nodiscard]] bool fits() const { return fits_; }
  [[nodiscard]] const char* data() const { return text_.data(); }
  [[nodiscard]] std::size_t size() const { return size_; }

 private:
  std::array<char, kMostLineBytes> text_;
  std::size_t size_ = 0;
  bool fits_ = true;
};

std::uint64_t thread_id() { return static_cast<std::uint64_t>(syscall(SYS_gettid)); }

}  // namespace

// One file. Never destroyed: threads may write until the process is gone.
class Writer {
 public:
  Writer(int fd, pid_t pid) : fd_(fd), pid_(pid) { is_known_ = fstat(fd, &file_) == 0; }

  struct Buffer {
    Mutex mutex;  // its thread's, but for finish()
    std::size_t used GUARDED_BY(mutex) = 0;
    std::uint64_t oldest_ns GUARDED_BY(mutex) = 0;
    std::array<char, kBufferBytes> text GUARDED_BY(mutex);
  };

  [[nodiscard]] bool is_of_this_process() const { return pid_ == getpid(); }
  [[nodiscard]] std::uint64_t pid() const { return static_cast<std::uint64_t>(pid_); }

  void enrol(Buffer& buffer) {
    const std::lock_guard lock(mutex_);
    buffers_.push_back(&buffer);
  }
  void leave(Buffer& buffer) {
    const std::lock_guard lock(mutex_);
    std::erase(buffers_, &buffer);
    const std::lock_guard own(buffer.mutex);
    flush(buffer);
  }
  void append(Buffer& buffer, const Line& line, std::uint64_t at_ns) {
    const std::lock_guard lock(buffer.mutex);
    if (buffer.used + line.size() > buffer.text.size()) flush(buffer);
    if (buffer.used == 0) buffer.oldest_ns = at_ns;
    std::copy_n(line.data(), line.size(), buffer.text.data() + buffer.used);
    buffer.used += line.size();
    if (is_finishing_.load(std::memory_order_relaxed) || at_ns - buffer.oldest_ns > kOldestNs) flush(buffer);
  }
  void finish() {
    is_finishing_.store(true, std::memory_order_relaxed);
    flush_all();
  }
  void flush_all() {
    const std::lock_guard lock(mutex_);
    for (Buffer* buffer : buffers_) {
      const std::lock_guard own(buffer->mutex);
      flush(*buffer);
    }
  }
  // Whole lines in one write: the file is open for appending, so those of several threads do not mix.
  void write_all(const char* text, std::size_t size) const {
    if (!is_ours()) return;
    const NoFileSizeSignal hold;
    while (size > 0) {
      const ssize_t written = syscall(SYS_write, fd_, text, size);  // no cancellation point: it may be the program's thread
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) return;  // a full disk: the trace has a hole, the program none
      text += written;
      size -= static_cast<std::size_t>(written);
    }
  }

 private:
  void flush(Buffer& buffer) const REQUIRES(buffer.mutex) {
    const int saved_errno = errno;
    write_all(buffer.text.data(), buffer.used);
    buffer.used = 0;
    errno = saved_errno;
  }

  // The program may have closed descriptors that it does not know, and opened something of its own.
  [[nodiscard]] bool is_ours() const {
    struct stat now {};
    return is_known_ && fstat(fd_, &now) == 0 && now.st_dev == file_.st_dev && now.st_ino == file_.st_ino;
  }

  const int fd_;
  const pid_t pid_;
  struct stat file_ {};
  bool is_known_ = false;
  Mutex mutex_;
  std::vector<Buffer*> buffers_ GUARDED_BY(mutex_);
  std::atomic<bool> is_finishing_{false};
};

namespace {

// Set when a thread's buffer is gone for good; plain, so that it can be read after the thread's destructors.
thread_local constinit bool has_ended = false;

struct ThreadBuffer {
  Writer* writer = nullptr;
  std::unique_ptr<Writer::Buffer> buffer;
  std::uint64_t id = 0;

  ~ThreadBuffer() {
    has_ended = true;
    if (writer == nullptr) return;
    if (writer->is_of_this_process())
      writer->leave(*buffer);
    else
      (void)buffer.release();  // a child of fork(): its lock may be held by a thread that is not there
  }

  // Makes it a buffer of that writer's, and names the thread.
  void belong_to(Writer& wanted) {
    if (writer == &wanted) return;
    (void)buffer.release();  // of the parent process
    buffer = std::make_unique<Writer::Buffer>();
    writer = &wanted;
    id = thread_id();
    wanted.enrol(*buffer);
    std::array<char, 17> name{};
    prctl(PR_GET_NAME, name.data());
    Line line;
    line << R"({"name":"thread_name","ph":"M","pid":)" << wanted.pid() << R"(,"tid":)" << id << R"(,"args":{"name":")";
    line.add_name(name.data()) << "\"}},\n";
    wanted.append(*buffer, line, now_ns());
  }
};

ThreadBuffer& thread_buffer() {
  static thread_local ThreadBuffer buffer;
  return buffer;
}

struct Event {
  char phase;
  const char* category;
  std::string_view name;
  std::uint64_t at_ns;
  std::uint64_t value = 0;  // of a complete one its nanoseconds, of an arrow its number
};

void add_arguments(Line& line, const Writer& writer, std::uint64_t thread, Arguments arguments) {
  line << R"(,"pid":)" << writer.pid() << R"(,"tid":)" << thread << R"(,"args":{)";
  const char* quote = "\"";
  for (const Argument& argument : arguments) {
    if (argument.name == nullptr) continue;
    line << quote << argument.name << "\":" << argument.value;
    quote = ",\"";
  }
  line << "}},\n";
}

// Arrows end in what is going on ("bp"), not in what comes next.
Line& add_phase(Line& line, const Event& event) {
  switch (event.phase) {
    case 'X': return (line << R"(,"dur":)").add_time(event.value);
    case 's': return (line << R"(,"id":"0x)").add_hexadecimal(event.value) << "\"";
    case 'f': return (line << R"(,"bp":"e","id":"0x)").add_hexadecimal(event.value) << "\"";
    default: return line << R"(,"s":"t")";
  }
}

void write_event(Writer& writer, const Event& event, Arguments arguments) {
  ThreadBuffer& own = thread_buffer();
  own.belong_to(writer);
  Line line;
  (line << R"({"name":")").add_name(event.name) << R"(","cat":")" << event.category << R"(","ph":")" << std::string_view(&event.phase, 1)
                                                << R"(","ts":)";
  line.add_time(event.at_ns);
  add_arguments(add_phase(line, event), writer, own.id, arguments);
  if (line.fits()) writer.append(*own.buffer, line, event.at_ns);
}

// With the writer, if this thread may use it. An event is never worth a failure of the program, so nothing leaves here.
template <typename F>
void with_writer(F&& write) {
  Writer* writer = active.load(std::memory_order_acquire);
  if (writer == nullptr || has_ended) return;
  try {
    write(*writer);
  } catch (const std::bad_alloc&) {
  }
}

void put(const Event& event, Arguments arguments) {
  with_writer([&](Writer& writer) { write_event(writer, event, arguments); });
}

// A line of metadata, of this thread.
template <typename F>
void put_metadata(const char* name, F&& add_rest) {
  with_writer([&](Writer& writer) {
    ThreadBuffer& own = thread_buffer();
    own.belong_to(writer);
    Line line;
    line << R"({"name":")" << name << R"(","ph":"M")";
    add_rest(line, writer, own.id);
    if (line.fits()) writer.append(*own.buffer, line, now_ns());
  });
}

}  // namespace

std::uint64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(now.tv_nsec);
}

bool start(const std::string& path, std::string_view process_name) {
  if (enabled()) return true;
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) return false;
  auto writer = std::make_unique<Writer>(fd, getpid());
  Line line;
  line << "[\n"
       << R"({"name":"process_name","ph":"M","pid":)" << writer->pid() << R"(,"tid":0,"args":{"name":")";
  line.add_name(process_name) << "\"}},\n";
  writer->write_all(line.data(), line.size());
  // A child of fork() has no threads that write, and their buffers are not its own.
  [[maybe_unused]] static const int handler = pthread_atfork(nullptr, nullptr, [] { active.store(nullptr, std::memory_order_relaxed); });
  active.store(writer.release(), std::memory_order_release);
  return true;
}

void flush() {
  Writer* writer = active.load(std::memory_order_acquire);
  if (writer != nullptr) writer->flush_all();
}

void finish() {
  Writer* writer = active.load(std::memory_order_acquire);
  if (writer != nullptr) writer->finish();
}

void complete(const char* category, std::string_view name, std::uint64_t began_ns, Arguments arguments) {
  put({'X', category, name, began_ns, now_ns() - began_ns}, arguments);
}

void instant(const char* category, std::string_view name, Arguments arguments) { put({'i', category, name, now_ns()}, arguments); }

void arrow_tail(std::uint64_t number) { put({'s', "flow", "post", now_ns(), number}, {}); }

void arrow_head(std::uint64_t number) { put({'f', "flow", "post", now_ns(), number}, {}); }

void fact(const char* name, Arguments arguments) {
  put_metadata(name, [&](Line& line, const Writer& writer, std::uint64_t thread) { add_arguments(line, writer, thread, arguments); });
}

void label_process(std::string_view label) {
  put_metadata("process_labels", [&](Line& line, const Writer& writer, std::uint64_t thread) {
    line << R"(,"pid":)" << writer.pid() << R"(,"tid":)" << thread << R"(,"args":{"labels":")";
    line.add_name(label) << "\"}},\n";
  });
}

}  // namespace mpsshim::proto::trace
