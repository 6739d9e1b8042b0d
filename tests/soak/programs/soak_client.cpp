// SPDX-License-Identifier: Apache-2.0
// soak_client --seed N --seconds S [--fault-after OPERATIONS]: random work against a model on the host. Memory of random size, uploads, copies,
// kernels, events, streams made and destroyed, pinned memory, modules with a variable. Each block of memory is worked on in one stream at a
// time and handed over by events, so the model is the only right outcome.
// The last line is "ok OPERATIONS"; "lost ERROR" where an MPS error has ended the session, which may happen to whoever was busy while another
// client's executor was lost; "faulted ERROR" after --fault-after. Anything else is wrong, and the exit status 1.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/process/programs/driver.hpp"

using namespace mpsshim::test;

namespace {

constexpr std::size_t kMostWords = 2u << 20;  // of all blocks together: 8 MiB
constexpr unsigned kKernelWords = 4096;       // the CPU driver interprets
constexpr std::size_t kMostLanes = 6;
constexpr CUdeviceptr kNowhere = 0x10;

struct Options {
  std::uint64_t seed = 1;
  double seconds = 5;
  std::uint64_t fault_after = ~0ull;
};

struct Block {
  CUdeviceptr address = 0;
  std::vector<unsigned> expected;
  CUstream lane = nullptr;
};

class Work {
 public:
  explicit Work(std::uint64_t seed) : random_(seed) {
    for (int i = 0; i < 2; ++i) add_lane();
    add_block();
    use_module();  // what a module leaves in the broker is there after the first client
  }

  void operate();
  void check_all();
  void fault() {
    CU(device_.launch_store(kNowhere));
    CU(cuCtxSynchronize());
  }

 private:
  [[nodiscard]] std::size_t below(std::size_t limit) { return static_cast<std::size_t>(random_() % limit); }
  [[nodiscard]] Block& any_block() { return *blocks_[below(blocks_.size())]; }
  void add_lane();
  void drop_lane();
  void add_block();
  void drop_block();
  void upload(Block& block);
  void add(Block& block);
  void copy(Block& from, Block& to);
  void hand_over(Block& block, CUstream lane);
  void check(Block& block);
  void use_pinned();
  void use_module();

  Device device_;
  std::mt19937_64 random_;
  std::vector<CUstream> lanes_;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::size_t words_ = 0;
  std::deque<std::vector<unsigned>> uploads_;  // read by the driver until the copy has ended
};

void Work::add_lane() {
  lanes_.emplace_back();
  CU(cuStreamCreate(&lanes_.back(), below(2) == 0 ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT));
}

void Work::drop_lane() {
  const CUstream gone = lanes_.back();
  lanes_.pop_back();
  for (const auto& block : blocks_) {
    if (block->lane == gone) hand_over(*block, lanes_[below(lanes_.size())]);
  }
  CU(cuStreamDestroy(gone));
}

void Work::add_block() {
  const std::size_t count = 1 + below(std::size_t{1} << (4 + below(16)));
  if (words_ + count > kMostWords) return;
  auto block = std::make_unique<Block>();
  const auto value = static_cast<unsigned>(random_());
  block->expected.assign(count, value);
  block->lane = lanes_[below(lanes_.size())];
  CU(cuMemAlloc(&block->address, count * sizeof(unsigned)));
  CU(cuMemsetD32Async(block->address, value, count, block->lane));
  words_ += count;
  blocks_.push_back(std::move(block));
}

void Work::drop_block() {
  const std::size_t index = below(blocks_.size());
  CU(cuMemFree(blocks_[index]->address));
  words_ -= blocks_[index]->expected.size();
  blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(index));
}

void Work::upload(Block& block) {
  const std::size_t first = below(block.expected.size());
  std::vector<unsigned>& words = uploads_.emplace_back(1 + below(block.expected.size() - first));
  const auto seed = static_cast<unsigned>(random_());
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = block.expected[first + i] = seed + static_cast<unsigned>(i);
  CU(cuMemcpyHtoDAsync(block.address + first * sizeof(unsigned), words.data(), words.size() * sizeof(unsigned), block.lane));
  if (uploads_.size() < 32) return;
  CU(cuCtxSynchronize());
  uploads_.clear();
}

void Work::add(Block& block) {
  const auto count = static_cast<unsigned>(std::min<std::size_t>(block.expected.size(), kKernelWords));
  const auto value = static_cast<unsigned>(random_());
  for (unsigned i = 0; i < count; ++i) block.expected[i] += value;
  CU(device_.launch_add(block.address, count, value, block.lane));
}

void Work::copy(Block& from, Block& to) {
  if (&from == &to) return;
  const std::size_t count = 1 + below(std::min(from.expected.size(), to.expected.size()));
  hand_over(from, to.lane);
  std::copy_n(from.expected.begin(), count, to.expected.begin());
  CU(cuMemcpyDtoDAsync(to.address, from.address, count * sizeof(unsigned), to.lane));
}

void Work::hand_over(Block& block, CUstream lane) {
  if (block.lane == lane) return;
  CUevent event = nullptr;
  CU(cuEventCreate(&event, below(2) == 0 ? CU_EVENT_DISABLE_TIMING : CU_EVENT_DEFAULT));
  CU(cuEventRecord(event, block.lane));
  CU(cuStreamWaitEvent(lane, event, 0));
  CU(cuEventDestroy(event));
  block.lane = lane;
}

void Work::check(Block& block) {
  std::vector<unsigned> found(block.expected.size());
  CU(cuMemcpyDtoHAsync(found.data(), block.address, found.size() * sizeof(unsigned), block.lane));
  CU(cuStreamSynchronize(block.lane));
  check_words("a block", found.data(), block.expected);
}

void Work::use_pinned() {
  const unsigned count = 1 + static_cast<unsigned>(below(100'000));
  unsigned* words = nullptr;
  CU(cuMemHostAlloc(reinterpret_cast<void**>(&words), count * sizeof(unsigned), 0));
  Block& block = any_block();
  const std::size_t copied = std::min<std::size_t>(count, block.expected.size());
  CU(cuMemcpyDtoHAsync(words, block.address, copied * sizeof(unsigned), block.lane));
  CU(cuStreamSynchronize(block.lane));
  check_words("pinned memory", words, {block.expected.begin(), block.expected.begin() + static_cast<std::ptrdiff_t>(copied)});
  CU(cuMemFreeHost(words));
}

void Work::use_module() {
  CUmodule module = nullptr;
  CUfunction count = nullptr;
  CU(cuModuleLoadData(&module, kGlobalPtx));
  CU(cuModuleGetFunction(&count, module, "count"));
  CUdeviceptr out = 0;
  CU(cuMemAlloc(&out, sizeof(unsigned)));
  for (unsigned expected = 6; expected < 9; ++expected) {
    void* arguments[] = {&out};
    CU(cuLaunchKernel(count, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr));
    unsigned value = 0;
    CU(cuMemcpyDtoH(&value, out, sizeof value));
    require(value == expected, "a module's variable is " + std::to_string(value) + " where it should be " + std::to_string(expected));
  }
  CU(cuMemFree(out));
  CU(cuModuleUnload(module));
}

void Work::operate() {
  const std::size_t choice = below(100);
  if (choice < 12) return add_block();
  if (choice < 20) return blocks_.size() > 1 ? drop_block() : add_block();
  if (choice < 40) return upload(any_block());
  if (choice < 65) return add(any_block());
  if (choice < 75) return copy(any_block(), any_block());
  if (choice < 82) return hand_over(any_block(), lanes_[below(lanes_.size())]);
  if (choice < 92) return check(any_block());
  if (choice < 94) return use_pinned();
  if (choice < 95) return use_module();
  if (choice < 98) return lanes_.size() < kMostLanes ? add_lane() : drop_lane();
  if (lanes_.size() > 1) drop_lane();
}

void Work::check_all() {
  for (const auto& block : blocks_) check(*block);
}

Options parse(int count, char** arguments) {
  Options options;
  for (int i = 1; i + 1 < count; i += 2) {
    const std::string name = arguments[i];
    if (name == "--seed") options.seed = std::strtoull(arguments[i + 1], nullptr, 10);
    if (name == "--seconds") options.seconds = std::atof(arguments[i + 1]);
    if (name == "--fault-after") options.fault_after = std::strtoull(arguments[i + 1], nullptr, 10);
  }
  return options;
}

bool has_error(const std::string& text, const char* name) { return text.find(name) != std::string::npos; }

}  // namespace

int main(int count, char** arguments) {
  const Options options = parse(count, arguments);
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(options.seconds);
  std::uint64_t operations = 0;
  try {
    Work work(options.seed);
    for (; std::chrono::steady_clock::now() < end; ++operations) {
      if (operations == options.fault_after) work.fault();
      work.operate();
    }
    work.check_all();
    std::printf("ok %llu\n", static_cast<unsigned long long>(operations));
  } catch (const std::exception& failure) {
    const std::string text = failure.what();
    const bool is_own_fault = operations == options.fault_after && has_error(text, "CUDA_ERROR_ILLEGAL_ADDRESS");
    const bool is_lost = has_error(text, "CUDA_ERROR_MPS_");
    std::printf("%s %s, seed %llu, operation %llu\n",
                is_own_fault ? "faulted"
                : is_lost    ? "lost"
                             : "wrong",
                text.c_str(), static_cast<unsigned long long>(options.seed), static_cast<unsigned long long>(operations));
    return is_own_fault || is_lost ? 0 : 1;
  }
  return 0;
}
