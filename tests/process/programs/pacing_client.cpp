// SPDX-License-Identifier: Apache-2.0
// A client that wants something done every millisecond, verifies it, and says how long it took: a command a line on standard input, an answer a
// line on standard output.
//
//   work MS       for so long: a launch that changes every word, and a download of some of them, which are compared
//   requests MS   for so long: pinned memory taken, written by a copy, compared and given back
//   report        "ok ROUNDS P50 P99 MAX", in microseconds, since the last report; every word is compared once more
//
// A round that takes longer than a millisecond counts for the rounds that it has kept from beginning as well: one stall of a second is a thousand
// rounds of up to a second, not one among thousands of short ones.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <sstream>
#include <thread>

#include "tests/process/programs/conversation.hpp"
#include "tests/process/programs/driver.hpp"

namespace mpsshim::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::microseconds kInterval{1'000};
constexpr std::size_t kWords = 1'000;
constexpr std::size_t kLookedAt = 16;
constexpr std::size_t kPinnedWords = 16'384;

class Client {
 public:
  std::string answer(const std::string& line) {
    std::istringstream words(line);
    std::string command;
    int duration_ms = 0;
    words >> command >> duration_ms;
    if (command == "work") return pace(duration_ms, [this] { work(); });
    if (command == "requests") return pace(duration_ms, [this] { request(); });
    if (command == "report") return report();
    throw Failure("unknown command " + line);
  }

 private:
  template <typename Round>
  std::string pace(int duration_ms, Round&& round) {
    const auto end = Clock::now() + std::chrono::milliseconds(duration_ms);
    for (auto next = Clock::now(); next < end; next = std::max(next + kInterval, Clock::now())) {
      std::this_thread::sleep_until(next);
      const auto began = Clock::now();
      round();
      for (auto took = Clock::now() - began; took.count() > 0; took -= kInterval) {
        times_us_.push_back(std::chrono::duration<double, std::micro>(took).count());
      }
    }
    return "ok";
  }

  void work() {
    CU(device_.launch_add(words_.address, words_.count(), 1));
    words_.add(1);
    unsigned found[kLookedAt] = {};
    const std::size_t at = times_us_.size() % (kWords - kLookedAt);
    CU(cuMemcpyDtoH(found, words_.address + at * sizeof(unsigned), sizeof found));
    check_words("a round's words", found,
                {words_.expected.begin() + static_cast<std::ptrdiff_t>(at), words_.expected.begin() + static_cast<std::ptrdiff_t>(at + kLookedAt)});
  }

  void request() {
    unsigned* pinned = nullptr;
    CU(cuMemHostAlloc(reinterpret_cast<void**>(&pinned), kPinnedWords * sizeof(unsigned), 0));
    CU(cuMemcpyDtoH(pinned, words_.address, kWords * sizeof(unsigned)));
    check_words("words in pinned memory", pinned, words_.expected);
    CU(cuMemFreeHost(pinned));
  }

  std::string report() {
    words_.check();
    require(!times_us_.empty(), "nothing was measured");
    std::sort(times_us_.begin(), times_us_.end());
    std::ostringstream text;
    text << "ok " << times_us_.size();
    for (const double time : {times_us_[times_us_.size() / 2], times_us_[times_us_.size() * 99 / 100], times_us_.back()})
      text << " " << std::lround(time);
    times_us_.clear();
    return text.str();
  }

  Device device_;
  Words words_{kWords, 17};
  std::vector<double> times_us_;
};

}  // namespace
}  // namespace mpsshim::test

int main() { return mpsshim::test::converse<mpsshim::test::Client>(); }
