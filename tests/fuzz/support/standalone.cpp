// SPDX-License-Identifier: Apache-2.0
// The driver of a fuzz target where libFuzzer is not: FUZZER [--seconds S] [--records N] [--seed N] [FILE...]
// Runs the files it is given, or random inputs until S seconds are over or N records have been decoded (neither: 2 seconds). The input of a crash
// is written to a file beside the working directory's others, which the last line names.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>

#include <fcntl.h>
#include <unistd.h>

#include "tests/fuzz/support/fuzz_target.hpp"

using namespace mpsshim::fuzz;

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kPool = 256;  // earlier inputs that are changed again
constexpr std::size_t kLongestInput = 256u << 10;
constexpr double kSecondsBetweenLines = 60;
constexpr unsigned kInputsBetweenLooks = 64;  // at the clock

struct Options {
  double seconds = 0;
  std::uint64_t records = 0;
  std::uint64_t seed = 1;
  std::vector<std::string> files;
};

Options parse(int count, char** arguments) {
  Options options;
  for (int i = 1; i < count; ++i) {
    const std::string name = arguments[i];
    const bool has_value = i + 1 < count;
    if (name == "--seconds" && has_value)
      options.seconds = std::atof(arguments[++i]);
    else if (name == "--records" && has_value)
      options.records = std::strtoull(arguments[++i], nullptr, 10);
    else if (name == "--seed" && has_value)
      options.seed = std::strtoull(arguments[++i], nullptr, 10);
    else
      options.files.push_back(name);
  }
  if (options.seconds == 0 && options.records == 0) options.seconds = 2;
  return options;
}

std::uint64_t interesting(Random& random) {
  static constexpr std::uint64_t kValues[] = {
      0, 1, 7, 8, 0x7f, 0xff, 0x7fff, 0x8000, 0xffff, 0x7fffffff, 0x80000000, 0xffffffff, 0x7fffffffffffffff, ~0ull};
  return kValues[random() % std::size(kValues)] + (random() % 3) - 1;
}

void change_once(Input& input, Random& random) {
  if (input.empty()) return input.push_back(static_cast<std::uint8_t>(random()));
  const std::size_t at = random() % input.size();
  const std::size_t length = std::min<std::size_t>(1 + random() % 32, input.size() - at);
  const auto here = input.begin() + static_cast<std::ptrdiff_t>(at);
  switch (random() % 7) {
    case 0: input[at] ^= static_cast<std::uint8_t>(1u << random() % 8); break;
    case 1: input[at] = static_cast<std::uint8_t>(random()); break;
    case 2: {
      const std::uint64_t value = interesting(random);
      const std::size_t width = std::min<std::size_t>(std::size_t{1} << random() % 4, input.size() - at);
      std::memcpy(&input[at], &value, width);
      break;
    }
    case 3: input.erase(here, here + static_cast<std::ptrdiff_t>(length)); break;
    case 4: {
      const Input part(here, here + static_cast<std::ptrdiff_t>(length));
      input.insert(input.begin() + static_cast<std::ptrdiff_t>(random() % (input.size() + 1)), part.begin(), part.end());
      break;
    }
    case 5: input.resize(at); break;
    default: input.insert(here, static_cast<std::uint8_t>(random())); break;
  }
}

class Inputs {
 public:
  explicit Inputs(std::uint64_t seed) : random_(seed) {}

  const Input& next() {
    Input& slot = pool_[random_() % kPool];
    if (slot.empty() || random_() % 2 == 0) {
      slot = make_input(random_);
      if (random_() % 8 == 0) return slot;  // as it is
    }
    for (std::uint64_t changes = random_() % 4 == 0 ? 1 + random_() % 4 : 1; changes > 0; --changes) change_once(slot, random_);
    if (slot.size() > kLongestInput) slot.resize(kLongestInput);
    return slot;
  }

 private:
  Random random_;
  Input pool_[kPool];
};

const Input* current = nullptr;

// Of a process that ends by it in any case.
void keep_input(int number) {
  constexpr char kName[] = "crash-input";
  const int file = open(kName, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (current != nullptr && file >= 0 && write(file, current->data(), current->size()) == static_cast<ssize_t>(current->size()))
    (void)!write(STDERR_FILENO, "the input is in crash-input\n", 28);
  signal(number, SIG_DFL);
  raise(number);
}

void run_file(const std::string& name) {
  std::ifstream file(name, std::ios::binary);
  const Input input{std::istreambuf_iterator<char>(file), {}};
  LLVMFuzzerTestOneInput(input.data(), input.size());
}

}  // namespace

int main(int count, char** arguments) {
  const Options options = parse(count, arguments);
  for (const std::string& file : options.files) run_file(file);
  if (options.files.empty()) {
    std::printf("seed %llu\n", static_cast<unsigned long long>(options.seed));
    std::fflush(stdout);
    for (const int number : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) signal(number, keep_input);
    Inputs inputs(options.seed);
    const Clock::time_point start = Clock::now();
    double seconds = 0;
    double told = 0;
    std::uint64_t made = 0;
    while ((options.records == 0 || records_so_far() < options.records) && (options.seconds == 0 || seconds < options.seconds)) {
      const Input& input = inputs.next();
      current = &input;
      LLVMFuzzerTestOneInput(input.data(), input.size());
      if (++made % kInputsBetweenLooks != 0) continue;
      seconds = std::chrono::duration<double>(Clock::now() - start).count();
      if (seconds < told + kSecondsBetweenLines) continue;
      told = seconds;
      std::printf("%llu records so far, %.0f s\n", static_cast<unsigned long long>(records_so_far()), seconds);
      std::fflush(stdout);
    }
    std::printf("%llu records in %llu inputs, %.1f s\n", static_cast<unsigned long long>(records_so_far()), static_cast<unsigned long long>(made),
                std::chrono::duration<double>(Clock::now() - start).count());
  }
  finish();
  return 0;
}
