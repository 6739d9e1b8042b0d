// SPDX-License-Identifier: Apache-2.0
// A client whose managed memory goes to and fro: a command a line on standard input, an answer a line on standard output, as test_client.
//
//   hold KIB       that much managed memory, written by the host
//   prefer WHERE   1: the host is its preferred place; 0: nothing is
//   launch         a kernel adds to all of it; not waited for
//   check          the host compares all words
//   alternate MS   for so long: host and kernels in turn on random pieces, what the host reads is compared: "ok ROUNDS"
//   free           the device's free memory: "ok MIB"
//   take MIB       that much more, whose first and last words a kernel and the host change in turn, kept: "ok" or the error
#include <algorithm>
#include <chrono>
#include <memory>
#include <random>
#include <sstream>
#include <vector>

#include <unistd.h>

#include "tests/process/programs/conversation.hpp"
#include "tests/process/programs/driver.hpp"

namespace mpsshim::test {
namespace {

using Clock = std::chrono::steady_clock;

class Client {
 public:
  std::string answer(const std::string& line) {
    std::istringstream words(line);
    std::string command;
    std::size_t number = 0;
    words >> command >> number;
    if (command == "hold") return hold(number * 1024);
    if (command == "prefer") return prefer(number != 0);
    if (command == "launch") return launch();
    if (command == "check") return check();
    if (command == "alternate") return alternate(std::chrono::milliseconds(number));
    if (command == "free") return free();
    if (command == "take") return take(number << 20);
    throw Failure("unknown command " + line);
  }

 private:
  static unsigned* host(CUdeviceptr address) { return reinterpret_cast<unsigned*>(address); }

  std::string hold(std::size_t bytes) {
    expected_.resize(bytes / sizeof(unsigned));
    CU(cuMemAllocManaged(&held_, bytes, CU_MEM_ATTACH_GLOBAL));
    for (std::size_t i = 0; i < expected_.size(); ++i) host(held_)[i] = expected_[i] = static_cast<unsigned>(i * 7 + static_cast<unsigned>(getpid()));
    return "ok";
  }

  std::string prefer(bool is_host) const {
    CUmemLocation host{};
    host.type = CU_MEM_LOCATION_TYPE_HOST;
    const CUmem_advise advice = is_host ? CU_MEM_ADVISE_SET_PREFERRED_LOCATION : CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION;
    CU(cuMemAdvise_v2(held_, expected_.size() * sizeof(unsigned), advice, host));
    return "ok";
  }

  std::string free() {
    std::size_t bytes = 0, total = 0;
    CU(cuMemGetInfo(&bytes, &total));
    return "ok " + std::to_string(bytes >> 20);
  }

  std::string launch() {
    CU(device_.launch_add(held_, static_cast<unsigned>(expected_.size()), 3));
    for (unsigned& word : expected_) word += 3;
    return "ok";
  }

  std::string check() {
    CU(cuCtxSynchronize());
    check_words("managed words", host(held_), expected_);
    return "ok";
  }

  std::string alternate(std::chrono::milliseconds duration) {
    const auto end = Clock::now() + duration;
    unsigned rounds = 0;
    for (; Clock::now() < end; ++rounds) {
      const std::size_t first = random_() % expected_.size();
      const std::size_t count = 1 + random_() % std::min<std::size_t>(expected_.size() - first, 30'000);
      const auto begin = expected_.begin() + static_cast<std::ptrdiff_t>(first);
      switch (random_() % 3) {
        case 0:
          CU(device_.launch_add(held_ + first * sizeof(unsigned), static_cast<unsigned>(count), rounds));
          std::for_each_n(begin, count, [&](unsigned& word) { word += rounds; });
          break;
        case 1:
          CU(cuCtxSynchronize());
          for (std::size_t i = first; i < first + count; ++i) host(held_)[i] = expected_[i] = rounds + static_cast<unsigned>(i);
          break;
        default:
          CU(cuCtxSynchronize());
          check_words("a piece of managed words", host(held_) + first, {begin, begin + static_cast<std::ptrdiff_t>(count)});
      }
    }
    return "ok " + std::to_string(rounds);
  }

  std::string take(std::size_t bytes) {
    CUdeviceptr taken = 0;
    if (const CUresult result = cuMemAllocManaged(&taken, bytes, CU_MEM_ATTACH_GLOBAL); result != CUDA_SUCCESS) return describe(result);
    for (const std::size_t at : {std::size_t{0}, bytes - sizeof(unsigned)}) {
      unsigned* const word = host(taken + at);
      *word = 5;
      CU(device_.launch_add(taken + at, 1, 3));
      CU(cuCtxSynchronize());
      require(*word == 8, "a word of managed memory is not what a kernel has made of it");
    }
    return "ok";
  }

  Device device_;
  CUdeviceptr held_ = 0;
  std::vector<unsigned> expected_;
  std::mt19937 random_{static_cast<unsigned>(getpid())};
};

}  // namespace
}  // namespace mpsshim::test

int main() { return mpsshim::test::converse<mpsshim::test::Client>(); }
