// SPDX-License-Identifier: Apache-2.0
// soak_verify [options]: a client of the verifying soak. It knows nothing of mpsshim; natively it verifies the exercises themselves.
//   --seed N         all choices follow from it       --seconds S    so long
//   --sequences N    ends after so many               --threads N    each with streams and exercises of its own
//   --only LIST      exercises, by commas             --without LIST all but these
//   --small          sizes for a driver that interprets kernels
//   --cublas FILE    multiplies matrices, too         --tally FILE   counts there (tally.hpp)
//   --narrow-nodes   nodes of graphs do not come to have many more parameters: NVIDIA's driver then gives them those of others
//   --leave          ends without giving anything back, with work under way
// Exit status 1, and on standard error what was wrong, where, and the last operations of that thread.
#include <execinfo.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "exercise.hpp"
#include "tests/process/programs/driver.hpp"

using namespace mpsshim::soak;

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kPinnedBytes = 1 << 20;

ProcessOptions parse(int count, char** arguments) {
  ProcessOptions options;
  for (int i = 1; i < count; ++i) {
    const std::string name = arguments[i];
    if (name == "--leave") {
      options.leaves_at_once = true;
      continue;
    }
    if (name == "--narrow-nodes") {
      options.has_narrow_nodes = true;
      continue;
    }
    if (name == "--small") {
      options.sizes = Sizes::small();
      continue;
    }
    if (i + 1 == count) throw std::runtime_error(name + " needs a value");
    const char* const value = arguments[++i];
    if (name == "--seed")
      options.seed = std::strtoull(value, nullptr, 10);
    else if (name == "--seconds")
      options.seconds = std::atof(value);
    else if (name == "--sequences")
      options.most_sequences = std::strtoull(value, nullptr, 10);
    else if (name == "--threads")
      options.threads = static_cast<unsigned>(std::atoi(value));
    else if (name == "--only")
      options.only = value;
    else if (name == "--without")
      options.without = value;
    else if (name == "--tally")
      options.tally = value;
    else if (name == "--cublas")
      options.cublas = value;
    else
      throw std::runtime_error("unknown option " + name);
  }
  return options;
}

bool names(const std::string& list, const std::string& name) { return ("," + list + ",").find("," + name + ",") != std::string::npos; }

Tally& map_tally(const std::string& path) {
  const int file = path.empty() ? -1 : open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (!path.empty() && file < 0) throw std::runtime_error("the tally " + path + " cannot be opened");
  void* const memory = mmap(nullptr, sizeof(Tally), PROT_READ | PROT_WRITE, file < 0 ? MAP_SHARED | MAP_ANONYMOUS : MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) throw std::runtime_error("the tally cannot be mapped");
  if (file >= 0) close(file);
  return *static_cast<Tally*>(memory);
}

CUcontext primary_context() {
  CUdevice device = 0;
  CUcontext context = nullptr;
  CU(cuInit(0));
  CU(cuDeviceGet(&device, 0));
  CU(cuDevicePrimaryCtxRetain(&context, device));
  CU(cuCtxSetCurrent(context));
  return context;
}

// One thread's turn after turn. An exercise is made when it first has its turn.
class Performer {
 public:
  Performer(Process& process, std::uint64_t seed) : work_(process, seed), transfers_(work_, kPinnedBytes) {
    for (const ExerciseRow& row : exercises()) {
      const char* const name = kKindNames[static_cast<std::size_t>(row.kind)];
      if (row.kind == Kind::gemms && process.options.cublas.empty()) continue;
      if (!process.options.only.empty() && !names(process.options.only, name)) continue;
      if (names(process.options.without, name)) continue;
      turns_.push_back({&row, nullptr});
      all_ += row.weight;
    }
    if (turns_.empty()) throw std::runtime_error("no exercise is called that");
  }

  void perform() {
    const auto end = Clock::now() + std::chrono::duration<double>(work_.process.options.seconds);
    for (std::uint64_t done = 0; Clock::now() < end && done < work_.process.options.most_sequences; ++done) {
      work_.pace.renew(work_.random);
      Turn& turn = next();
      current_ = turn.row->kind;
      sequence_ = done;
      if (!turn.exercise || work_.random.one_in(100)) {
        turn.exercise = nullptr;  // its memory first
        turn.exercise = turn.row->make({work_, transfers_});
      }
      if (turn.exercise) turn.exercise->run();
      if (work_.random.one_in(40)) work_.change_streams();
    }
    if (work_.process.options.leaves_at_once) leave_work();
  }
  [[nodiscard]] std::string explain(const std::string& what) const {
    std::string text = "WRONG: pid " + std::to_string(getpid()) + ", seed " + std::to_string(work_.process.options.seed) + ", " +
                       kKindNames[static_cast<std::size_t>(current_)] + ", turn " + std::to_string(sequence_) + ": " + what + "\n";
    text += "Streams:";
    for (const Stream& stream : work_.streams()) {
      char handle[32];
      std::snprintf(handle, sizeof handle, " %p", static_cast<void*>(stream.handle));
      text += handle + std::string(stream.is_blocking ? " (blocking)" : "");
    }
    return text + "\nThe last operations:\n" + work_.history.explain();
  }

 private:
  struct Turn {
    const ExerciseRow* row;
    std::unique_ptr<Exercise> exercise;
  };
  [[nodiscard]] Turn& next() {
    std::size_t choice = work_.random.below(all_), index = 0;
    while (choice >= turns_[index].row->weight) choice -= turns_[index++].row->weight;
    return turns_[index];
  }
  // Under way when the process ends.
  void leave_work() {
    const ChainMemory memory{address_of(4096), address_of(4096), address_of(4096), address_of(sizeof(Sum)), 1024};
    for (int i = 0; i < 20; ++i) {
      for (const Stream& stream : work_.streams()) {
        work_.process.kernels.launch(work_.process.kernels.choose(StepKind::brief, 1024, work_.random, work_.sizes().ticks), memory, stream.handle);
      }
    }
  }
  [[nodiscard]] static CUdeviceptr address_of(std::size_t bytes) {
    CUdeviceptr address = 0;
    CU(cuMemAlloc(&address, bytes));
    return address;
  }

  Workplace work_;
  Transfers transfers_;
  std::vector<Turn> turns_;
  std::size_t all_ = 0;
  Kind current_ = Kind::chains;
  std::uint64_t sequence_ = 0;
};

// A crash, or an end for want of progress (SIGABRT), says where every thread of interest was: the one that has the signal.
void tell_of_signal(int number) {
  void* frames[64];
  const int count = backtrace(frames, static_cast<int>(std::size(frames)));
  char text[64];
  const int length = std::snprintf(text, sizeof text, "WRONG: pid %d, signal %d\n", getpid(), number);
  (void)!write(STDERR_FILENO, text, static_cast<std::size_t>(length));
  backtrace_symbols_fd(frames, count, STDERR_FILENO);
  signal(number, SIG_DFL);
  raise(number);
}

void tell_of_signals() {
  void* frame[1];
  (void)backtrace(frame, 1);  // loads what it needs
  for (const int number : {SIGSEGV, SIGBUS, SIGABRT, SIGILL, SIGFPE}) signal(number, tell_of_signal);
}

// Once: the first failure ends the process, and others may follow from it.
[[noreturn]] void fail(Tally& tally, const std::string& text) {
  static std::mutex mutex;
  mutex.lock();
  tally.failures.fetch_add(1, std::memory_order_relaxed);
  std::fprintf(stderr, "%s", text.c_str());
  std::fflush(stderr);
  _exit(1);
}

void perform(Process& process, std::uint64_t seed) {
  std::unique_ptr<Performer> performer;
  try {
    performer = std::make_unique<Performer>(process, seed);
    performer->perform();
    if (process.options.leaves_at_once) (void)performer.release();
  } catch (const std::exception& failure) {
    fail(process.tally,
         performer ? performer->explain(failure.what()) : "WRONG: pid " + std::to_string(getpid()) + ", at the start: " + failure.what() + "\n");
  }
}

}  // namespace

int main(int count, char** arguments) {
  Tally* tally = nullptr;
  tell_of_signals();
  try {
    const ProcessOptions options = parse(count, arguments);
    tally = &map_tally(options.tally);
    Random random(options.seed);
    const CUcontext context = primary_context();
    Process process{options, 0, context, StepKernels(0, MPSSHIM_SOAK_IMAGES, options.sizes.local_bytes, random), *tally};
    std::vector<std::thread> others;
    for (unsigned i = 1; i < options.threads; ++i) others.emplace_back([&process, seed = random.number()] { perform(process, seed); });
    perform(process, random.number());
    for (std::thread& other : others) other.join();
    std::printf("ok %llu operations\n", static_cast<unsigned long long>(tally->operations.load()));
    std::fflush(stdout);
    if (options.leaves_at_once) _exit(0);
  } catch (const std::exception& failure) {
    const std::string text = "WRONG: pid " + std::to_string(getpid()) + ", at the start: " + failure.what() + "\n";
    if (tally != nullptr) fail(*tally, text);
    std::fprintf(stderr, "%s", text.c_str());
    return 1;
  }
  return 0;
}
