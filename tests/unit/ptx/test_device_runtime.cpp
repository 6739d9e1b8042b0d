// SPDX-License-Identifier: Apache-2.0
// Dynamic parallelism: grids launched by kernels, their order and their ends, what the device runtime answers. Expected is what the CUDA
// Programming Guide says ("CUDA Dynamic Parallelism").
#include <algorithm>
#include <chrono>
#include <thread>

#include "tests/unit/ptx/test_device.hpp"

namespace mpsshim::ptx::test {
namespace {

struct GridDevice : TestDevice {
  GridDevice() { load({read_text(MPSSHIM_TEST_GRIDS_PTX)}); }
};

}  // namespace

TEST_CASE("grids that launch grids: all are complete when the first is") {
  GridDevice device;
  Buffer<int> data(device.memory, 64, -1);
  device.launch("halve", {1}, {1}, Parameters(data, 0, 64));
  for (int i = 0; i < 64; ++i) CHECK(data[static_cast<std::size_t>(i)] == i / 4 * 4 * 10 + 4);
}

TEST_CASE("a grid launched by a kernel has its parameters, its shape and its shared memory") {
  GridDevice device;
  Buffer<std::int64_t> out(device.memory, 192, -1);
  Buffer<int> shared_bytes(device.memory, 1);
  device.launch("give", {1}, {1}, Parameters(out, shared_bytes));
  for (std::size_t i = 0; i < 192; ++i) CHECK(out[i] == 7 * 1000000 + 'x' * 1000 + 2 + 31 - static_cast<std::int64_t>(i % 32));
  CHECK(shared_bytes[0] == 512);
}

TEST_CASE("order of a stream, of events and of the tail stream") {
  GridDevice device;
  Buffer<int> log(device.memory, 9);
  device.launch("orders", {1}, {1}, Parameters(log));
  CHECK(log[0] == 7);
  const auto place = [&](int number) { return std::find(log.data() + 1, log.data() + 9, number) - log.data(); };
  CHECK(place(1) < place(2));  // the NULL stream of the block
  CHECK(place(2) < place(5));
  CHECK(place(3) < place(5));  // by the event
  CHECK(place(6) == 6);        // the tail stream: behind all else, in order
  CHECK(place(7) == 7);
  CHECK(place(4) < 6);
}

TEST_CASE("a long loop of tail launches, each behind all that was launched before") {
  constexpr int kRounds = 2000;
  GridDevice device;
  Buffer<int> value(device.memory, 1);
  Buffer<int> seen(device.memory, kRounds + 1, -1);
  device.launch("round_of", {1}, {1}, Parameters(value, seen, kRounds));
  for (int i = 0; i <= kRounds; ++i) CHECK(seen[static_cast<std::size_t>(i)] == (kRounds - i) * 64);
}

TEST_CASE("copies and fills asked for by a kernel") {
  GridDevice device;
  Buffer<char> to(device.memory, 256, '.');
  Buffer<char> from(device.memory, 32);
  for (std::size_t i = 0; i < 26; ++i) from[i] = static_cast<char>('A' + i);
  device.launch("moves", {1}, {1}, Parameters(to, from));
  const auto text = [&](std::size_t at, std::size_t bytes) { return std::string(to.data() + at, bytes); };
  CHECK(text(0, 16) == "aaaaaaaaABCDaaaa");
  CHECK(text(64, 32) == "bbb.....bbb.....bbb.....bbb.....");
  CHECK(text(96, 16) == "EFG.....HIJ.....");
  CHECK(text(128, 32) == "........BC..............JK......");
  CHECK(text(192, 16) == "c...c...c...c...");
}

TEST_CASE("a launch beyond the deepest level is refused, what was launched before runs") {
  GridDevice device;
  Buffer<int> deepest(device.memory, 1);
  Buffer<int> error(device.memory, 1);
  device.launch("reach", {1}, {1}, Parameters(0, deepest, error));
  CHECK(deepest[0] == 24);
  CHECK(error[0] == 65);  // cudaErrorLaunchMaxDepthExceeded
}

TEST_CASE("errors of the device runtime, and what it says of the device and its functions") {
  GridDevice device;
  Buffer<int> out(device.memory, 32, -1);
  device.launch("errors", {1}, {1}, Parameters(out, 0x1234ULL, 0x5678ULL));
  const std::vector<int> want = {9, 9, 0, 400, 400, 1, 1, 21, 1, 98, 1, 400, 1, 1, 100, 0, 4, 1024};
  for (std::size_t i = 0; i < want.size(); ++i) {
    INFO(i);
    CHECK(out[i] == want[i]);
  }
}

TEST_CASE("launches by buffer, as other compilers make them") {
  GridDevice device;
  Buffer<int> value(device.memory, 1);
  device.launch("by_buffer", {4}, {1}, Parameters(value));
  CHECK(value[0] == 4 * 16);
}

TEST_CASE("every thread of a large grid launches") {
  GridDevice device;
  Buffer<int> value(device.memory, 1);
  device.launch("crowd", {40}, {128}, Parameters(value));
  CHECK(value[0] == 40 * 128);
}

TEST_CASE("a fault of what a kernel has launched is the launch's fault") {
  GridDevice device;
  for (int how = 0; how < 3; ++how) {
    INFO(how);
    const LaunchOutcome outcome = device.try_launch("misleads", {1}, {1}, Parameters(0x1000ULL, how));
    CHECK(outcome.fault == Fault::illegal_address);
    CHECK(outcome.address == 0x1000);
    CHECK(outcome.is_write);
    if (how != 1) CHECK(outcome.text.find("'store'") != std::string::npos);
  }
}

TEST_CASE("cancelling ends what a kernel has launched") {
  GridDevice device;
  Buffer<int> go(device.memory, 1);
  std::thread canceller([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    device.cancel = true;
  });
  const LaunchOutcome outcome = device.try_launch("starts_spinning", {1}, {1}, Parameters(go));
  canceller.join();
  CHECK(outcome.fault == Fault::cancelled);
}

TEST_CASE("a declaration that is not the device runtime's is refused") {
  Error error;
  const std::string text = ".version 8.0\n.target sm_90\n.address_size 64\n.extern .func (.param .b32 r) cudaStreamDestroy(.param .b32 s);\n";
  const std::vector<std::string_view> views = {text};
  CHECK(compile(views, error) == nullptr);
  CHECK(error.text.find("cudaStreamDestroy") != std::string::npos);
}

}  // namespace mpsshim::ptx::test
