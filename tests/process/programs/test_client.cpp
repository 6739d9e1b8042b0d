// SPDX-License-Identifier: Apache-2.0
// A client that does one thing at a time as its test asks: a command a line on standard input, an answer a line on standard output.
//
//   hold, check, use       held_objects.hpp
//   global, count          a module with a writable variable, 5 at first; adds one to it and answers "ok N"
//   wild_global            the same module with a kernel that stores to address 16 if the variable is 6
//   wild                   launches it and waits: answers the error that the wait gives
//   large_global           the same module with 300 MiB of variables more, which are not kept
//   storm MS               dependent launches for so long, the result checked again and again: "ok ROUNDS"
//   pulse US MS            a launch, its wait and a pause of so many microseconds, again and again for so long: "ok ROUNDS"
//   latency MS             a launch and its wait, again and again for so long: "ok MEDIAN P99", in microseconds
//   fault                  stores where no memory is and waits: answers the error that the wait gives
//   spin                   launches a kernel that never ends
//   fill HEX               fills a megaword with that value and waits: answers the error that the wait gives
//   fill_graph HEX         a graph that does nothing but such a fill
//   launch_graph           launches it and waits: answers the error that the wait gives
//   chunks COUNT MIB       allocates so many pieces of so many MiB, each with words of its own at both ends
//   touch                  a launch on one of them, and its wait
//   check_chunks           reads all those words back
//   spin                   launches a kernel that never ends: the driver has it when the answer comes
//   stand                  a host function that does not return until `release`, with a kernel behind it: it runs when the answer comes
//   release                lets it return and waits for the kernel
//   probe                  what simple calls return: "sync=0 alloc=0 launch=0 copy=0 stream=0"
//   image NAME             loads that damaged image (images.hpp): answers the error
//   pin                    works on new pinned memory, by a kernel and by copies
//   address                of 4 MiB of its own: "ok HEX"
//   foreign HEX            what each copy and each memset at that address returns: "HtoD=1 ..."
//   fork, fork_and_stay    forks.hpp
//
// The answer is "ok", "ok TEXT", or what failed: "700 CUDA_ERROR_ILLEGAL_ADDRESS from cuCtxSynchronize()".
#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <sstream>
#include <thread>

#include "tests/process/programs/chunks.hpp"
#include "tests/process/programs/conversation.hpp"
#include "tests/process/programs/foreign_pointers.hpp"
#include "tests/process/programs/forks.hpp"
#include "tests/process/programs/held_objects.hpp"
#include "tests/process/programs/images.hpp"

namespace mpsshim::test {
namespace {

constexpr CUdeviceptr kNowhere = 0x10;

class Client {
 public:
  std::string answer(const std::string& line);

 private:
  std::string load_global(const std::string& more);
  std::string count_global();
  std::string launch_wild();
  std::string storm(int duration_ms);
  std::string pulse(int pause_us, int duration_ms);
  std::string latency(int duration_ms);
  std::string fault();
  std::string load_trap();
  std::string trap();
  std::string spin();
  std::string stand();
  std::string release();
  std::string fill(const std::string& value);
  std::string make_fill_graph(const std::string& value);
  std::string launch_graph();
  std::string probe();
  std::string pin();
  Words& own();

  Device device_;
  std::optional<HeldObjects> held_;
  std::unique_ptr<Words> own_;
  CUfunction count_ = nullptr;
  CUfunction wild_ = nullptr;
  CUfunction trap_ = nullptr;
  CUgraphExec graph_ = nullptr;
  CUstream standing_ = nullptr;
  std::unique_ptr<Words> behind_;
  std::atomic<bool> is_standing_{false};
  std::atomic<bool> may_go_{false};
  Chunks chunks_{device_};
};

std::string number(CUresult result) { return std::to_string(static_cast<int>(result)); }

// One megaword, made when first asked for.
Words& Client::own() {
  if (!own_) own_ = std::make_unique<Words>(1 << 20, 99);
  return *own_;
}

constexpr const char* kWild = R"ptx(
.visible .entry wild()
{
    .reg .b32 %r<2>;
    .reg .b64 %rd<2>;
    .reg .pred %p<2>;
    ld.global.u32 %r1, [counter];
    setp.ne.u32 %p1, %r1, 6;
    @%p1 bra DONE;
    mov.u64 %rd1, 16;
    st.global.u32 [%rd1], %r1;
DONE:
    ret;
}
)ptx";

std::string Client::load_global(const std::string& more) {
  CUmodule module = nullptr;
  CU(cuModuleLoadData(&module, (kGlobalPtx + more).c_str()));
  CU(cuModuleGetFunction(&count_, module, "count"));
  if (more == kWild) CU(cuModuleGetFunction(&wild_, module, "wild"));
  return "ok";
}

std::string Client::launch_wild() {
  CU(cuLaunchKernel(wild_, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
  CU(cuCtxSynchronize());
  return "ok";
}

std::string Client::count_global() {
  CUdeviceptr out = own().address;
  void* arguments[] = {&out};
  CU(cuLaunchKernel(count_, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr));
  unsigned value = 0;
  CU(cuMemcpyDtoH(&value, out, sizeof value));
  own_->expected[0] = value;
  return "ok " + std::to_string(value);
}

std::string Client::storm(int duration_ms) {
  Words words(1000, 5);
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(duration_ms);
  int rounds = 0;
  for (; std::chrono::steady_clock::now() < end; ++rounds) {
    for (unsigned value = 1; value <= 50; ++value) {
      CU(device_.launch_add(words.address, words.count(), value));
      words.add(value);
    }
    words.check();
  }
  CU(cuMemFree(words.address));
  return "ok " + std::to_string(rounds);
}

std::string Client::pulse(int pause_us, int duration_ms) {
  Words words(1000, 7);
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(duration_ms);
  int rounds = 0;
  for (; std::chrono::steady_clock::now() < end; ++rounds) {
    CU(device_.launch_add(words.address, words.count(), 1));
    CU(cuCtxSynchronize());
    words.add(1);
    std::this_thread::sleep_for(std::chrono::microseconds(pause_us));
  }
  words.check();
  CU(cuMemFree(words.address));
  return "ok " + std::to_string(rounds);
}

std::string Client::latency(int duration_ms) {
  using Clock = std::chrono::steady_clock;
  Words words(1000, 6);
  std::vector<double> rounds_us;
  const auto end = Clock::now() + std::chrono::milliseconds(duration_ms);
  while (Clock::now() < end) {
    const auto start = Clock::now();
    CU(device_.launch_add(words.address, words.count(), 1));
    CU(cuCtxSynchronize());
    rounds_us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
    words.add(1);
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  words.check();
  CU(cuMemFree(words.address));
  std::sort(rounds_us.begin(), rounds_us.end());
  std::ostringstream text;
  text << "ok " << rounds_us.at(rounds_us.size() / 2) << " " << rounds_us.at(rounds_us.size() * 99 / 100);
  return text.str();
}

std::string Client::fault() {
  CU(device_.launch_store(kNowhere));
  CU(cuCtxSynchronize());
  return "ok";
}

std::string Client::load_trap() {
  constexpr const char* kImage = ".version 6.0\n.target sm_50\n.address_size 64\n.visible .entry trap() {\n  trap;\n  ret;\n}\n";
  CUmodule module = nullptr;
  CU(cuModuleLoadData(&module, kImage));
  CU(cuModuleGetFunction(&trap_, module, "trap"));
  return "ok";
}

std::string Client::trap() {
  CU(cuLaunchKernel(trap_, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
  CU(cuCtxSynchronize());
  return "ok";
}

std::string Client::spin() {
  CUdeviceptr flag = 0;
  CU(cuMemAlloc(&flag, 2 * sizeof(unsigned)));
  CU(cuMemsetD32(flag, 0, 1));
  CU(cuCtxSynchronize());
  CU(device_.launch_wait_flag(flag));
  CUevent behind = nullptr;
  CU(cuEventCreate(&behind, 0));
  CU(cuEventRecord(behind, nullptr));
  CU_GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(behind));
  CUstream beside = nullptr;  // what comes later there is done only after the kernel was issued
  CU(cuStreamCreate(&beside, CU_STREAM_NON_BLOCKING));
  CU(cuMemsetD32Async(flag + sizeof(unsigned), 2, 1, beside));
  CU(cuStreamSynchronize(beside));
  CU(cuStreamDestroy(beside));
  return "ok";
}

std::string Client::stand() {
  if (standing_ == nullptr) CU(cuStreamCreate(&standing_, CU_STREAM_NON_BLOCKING));
  if (!behind_) behind_ = std::make_unique<Words>(1000, 3);
  is_standing_ = may_go_ = false;
  const auto wait = [](void* self) {
    auto& client = *static_cast<Client*>(self);
    client.is_standing_ = true;
    while (!client.may_go_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  CU(cuLaunchHostFunc(standing_, wait, this));
  CU(device_.launch_add(behind_->address, behind_->count(), 1, standing_));
  while (!is_standing_) std::this_thread::sleep_for(std::chrono::microseconds(100));
  behind_->check();  // by another stream
  return "ok";
}

std::string Client::release() {
  may_go_ = true;
  CU(cuStreamSynchronize(standing_));
  behind_->add(1);
  behind_->check();
  return "ok";
}

std::string Client::fill(const std::string& value) {
  CU(cuMemsetD32Async(own().address, static_cast<unsigned>(std::stoul(value, nullptr, 16)), 1 << 20, nullptr));
  CU(cuCtxSynchronize());
  return "ok";
}

std::string Client::make_fill_graph(const std::string& value) {
  CUDA_MEMSET_NODE_PARAMS params{};
  params.dst = own().address;
  params.value = static_cast<unsigned>(std::stoul(value, nullptr, 16));
  params.elementSize = sizeof(unsigned);
  params.width = 1 << 20;
  params.height = 1;
  CUcontext context = nullptr;
  CU(cuCtxGetCurrent(&context));
  CUgraph graph = nullptr;
  CU(cuGraphCreate(&graph, 0));
  CUgraphNode node = nullptr;
  CU(cuGraphAddMemsetNode(&node, graph, nullptr, 0, &params, context));
  CU(cuGraphInstantiate(&graph_, graph, 0));
  return "ok";
}

std::string Client::launch_graph() {
  CU(cuGraphLaunch(graph_, nullptr));
  CU(cuCtxSynchronize());
  return "ok";
}

std::string Client::probe() {
  std::string text;
  const auto add = [&text](const char* name, CUresult result) { text += (text.empty() ? "" : " ") + std::string(name) + "=" + number(result); };
  CUdeviceptr memory = 0;
  CUstream stream = nullptr;
  unsigned word = 0;
  const CUdeviceptr own_address = own_ ? own_->address : kNowhere;
  add("sync", cuCtxSynchronize());
  add("alloc", cuMemAlloc(&memory, 4));
  add("launch", device_.launch_add(own_address, 1, 0));
  add("copy", cuMemcpyDtoH(&word, own_address, sizeof word));
  add("stream", cuStreamCreate(&stream, 0));
  return text;
}

std::string Client::pin() {
  constexpr unsigned kCount = 10'000;
  unsigned* words = nullptr;
  CU(cuMemHostAlloc(reinterpret_cast<void**>(&words), kCount * sizeof(unsigned), 0));
  std::vector<unsigned> expected(kCount, 41);
  std::copy(expected.begin(), expected.end(), words);
  CUdeviceptr mapped = 0;
  CU(cuMemHostGetDevicePointer(&mapped, words, 0));
  CU(device_.launch_add(mapped, kCount, 1));
  CU(cuCtxSynchronize());
  expected.assign(kCount, 42);
  check_words("pinned memory", words, expected);
  CU(cuMemFreeHost(words));
  return "ok";
}

std::string hexadecimal(CUdeviceptr address) {
  std::ostringstream text;
  text << std::hex << address;
  return text.str();
}

std::string Client::answer(const std::string& line) {
  std::istringstream words(line);
  std::string command, argument, second;
  words >> command >> argument >> second;
  if (command == "hold") return held_.emplace(device_), "ok";
  if (command == "check") return held_.value().check(), "ok";
  if (command == "use") return held_.value().use(), "ok";
  if (command == "global") return load_global("");
  if (command == "large_global") return load_global(".visible .global .align 8 .b8 room[314572800];\n");
  if (command == "wild_global") return load_global(kWild);
  if (command == "wild") return launch_wild();
  if (command == "count") return count_global();
  if (command == "storm") return storm(std::stoi(argument));
  if (command == "pulse") return pulse(std::stoi(argument), std::stoi(second));
  if (command == "latency") return latency(std::stoi(argument));
  if (command == "fault") return fault();
  if (command == "load_trap") return load_trap();
  if (command == "trap") return trap();
  if (command == "spin") return spin();
  if (command == "stand") return stand();
  if (command == "release") return release();
  if (command == "own") return own().check(), "ok";
  if (command == "pin") return pin();
  if (command == "fill") return fill(argument);
  if (command == "fill_graph") return make_fill_graph(argument);
  if (command == "launch_graph") return launch_graph();
  if (command == "chunks") return chunks_.add(std::stoul(argument), std::stoul(second)), "ok";
  if (command == "touch") return chunks_.touch(), "ok";
  if (command == "check_chunks") return chunks_.check(), "ok";
  if (command == "probe") return probe();
  if (command == "image") return load_image(argument);
  if (command == "address") return "ok " + hexadecimal(own().address);
  if (command == "foreign") return touch_foreign(std::stoull(argument, nullptr, 16), own());
  if (command == "fork") return fork_and_wait();
  if (command == "fork_and_stay") return fork_and_stay();
  throw Failure("unknown command " + line);
}

}  // namespace
}  // namespace mpsshim::test

int main() { return mpsshim::test::converse<mpsshim::test::Client>(); }
