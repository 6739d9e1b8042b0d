// SPDX-License-Identifier: Apache-2.0
// A client for the tests of what happens beside another client's long kernel: a command a line on standard input, an answer a line on standard
// output, as test_client.
//
//   run, end          a kernel that runs until `end`, which waits for it
//   chain, unchain    kernels that take turns on two streams, so that one runs at any time, until `unchain`
//   load              a module that nobody has loaded before, its kernel run and checked
//   deep              a kernel that needs more local memory than any before, its result checked
//   array, check_array  an array with contents; are they still there
//   texture           a texture object on linear memory
//   time              two timed events around a pause of the host's: "ok MS"
//   elapsed           the same pair asked again: "ok MS"
//   since             a third event now: "ok MS LEAST MOST", from the first; by the host's clock it is between these
//   hold, check       device memory with contents of its own; are they still there
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <sstream>
#include <thread>

#include "tests/process/programs/conversation.hpp"
#include "tests/process/programs/driver.hpp"

namespace mpsshim::test {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPause = std::chrono::milliseconds(30);
constexpr unsigned kTurns = 100'000;

// (u64 out, u32 value): out[0] = value, by way of 8 KiB of local memory.
constexpr const char* kDeepPtx = R"ptx(
.version 6.4
.target sm_75
.address_size 64
.visible .entry deep(.param .u64 out, .param .u32 value)
{
    .local .align 8 .b8 depot[8192];
    .reg .pred %p<2>;
    .reg .b32 %r<6>;
    .reg .b64 %rd<6>;
    ld.param.u64 %rd1, [out];
    ld.param.u32 %r1, [value];
    cvta.to.global.u64 %rd1, %rd1;
    mov.u64 %rd2, depot;
    mov.u32 %r2, 0;
STORE:
    mul.wide.u32 %rd3, %r2, 4;
    add.s64 %rd4, %rd2, %rd3;
    add.u32 %r3, %r1, %r2;
    st.local.u32 [%rd4], %r3;
    add.u32 %r2, %r2, 1;
    setp.lt.u32 %p1, %r2, 2048;
    @%p1 bra STORE;
    and.b32 %r4, %r1, 2047;
    mul.wide.u32 %rd3, %r4, 4;
    add.s64 %rd4, %rd2, %rd3;
    ld.local.u32 %r5, [%rd4];
    sub.u32 %r5, %r5, %r4;
    st.global.u32 [%rd1], %r5;
    ret;
}
)ptx";

double milliseconds(Clock::duration time) { return std::chrono::duration<double, std::milli>(time).count(); }

class Client {
 public:
  std::string answer(const std::string& line);

 private:
  void run();
  void end();
  void chain();
  void unchain();
  void load();
  void deep();
  void make_array();
  void check_array();
  void make_texture();
  std::string time();
  [[nodiscard]] std::string elapsed() const;
  [[nodiscard]] std::string since() const;
  volatile unsigned* flag();

  Device device_;
  std::unique_ptr<Words> held_;
  volatile unsigned* flag_ = nullptr;
  CUdeviceptr flag_address_ = 0;
  std::thread turns_;
  std::atomic<bool> take_turns_{false};
  std::string turns_failed_;
  CUfunction deep_ = nullptr;
  CUarray array_ = nullptr;
  CUtexObject texture_ = 0;
  CUevent first_ = nullptr;
  CUevent second_ = nullptr;
  CUevent last_ = nullptr;
  struct Moment {  // between which an event was recorded and complete
    Clock::time_point before, after;
  };
  static Moment record(CUevent event);
  Moment first_moment_;
};

// In memory that host and kernels share.
volatile unsigned* Client::flag() {
  if (flag_ == nullptr) {
    void* memory = nullptr;
    CU(cuMemHostAlloc(&memory, kTurns * sizeof(unsigned), CU_MEMHOSTALLOC_DEVICEMAP));
    CU(cuMemHostGetDevicePointer(&flag_address_, memory, 0));
    flag_ = static_cast<volatile unsigned*>(memory);
  }
  return flag_;
}

void Client::run() {
  *flag() = 0;
  CU(device_.launch_wait_flag(flag_address_));
  CU_GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(nullptr));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
}

void Client::end() {
  *flag() = 1;
  CU(cuCtxSynchronize());
}

// Each kernel ends 3 s after it was launched; the other stream's began in the middle of that time.
void Client::chain() {
  (void)flag();
  take_turns_ = true;
  turns_ = std::thread([this] {
    try {
      CU(cuCtxSetCurrent(device_.context));
      CUstream streams[2] = {};
      for (CUstream& stream : streams) CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
      unsigned turn = 0;
      for (; take_turns_; ++turn) {
        CUdeviceptr word = flag_address_ + turn * sizeof(unsigned);
        void* arguments[] = {&word};
        flag_[turn] = 0;
        CU(cuLaunchKernel(device_.wait_flag, 1, 1, 1, 1, 1, 1, 0, streams[turn % 2], arguments, nullptr));
        std::this_thread::sleep_for(std::chrono::milliseconds(1'500));
        if (turn > 0) flag_[turn - 1] = 1;
      }
      flag_[turn - 1] = 1;
      CU(cuCtxSynchronize());
    } catch (const std::exception& failure) {
      turns_failed_ = failure.what();
    }
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(2'000));
}

void Client::unchain() {
  take_turns_ = false;
  turns_.join();
  require(turns_failed_.empty(), turns_failed_);
}

void Client::load() {
  static int loads = 0;
  const std::string text = "// " + std::to_string(getpid()) + " " + std::to_string(++loads) + "\n" + kPlainPtx;
  CUmodule module = nullptr;
  CUfunction add = nullptr;
  CU(cuModuleLoadData(&module, text.c_str()));
  CU(cuModuleGetFunction(&add, module, "add"));
  Words words(1'000, 3);
  CUdeviceptr data = words.address;
  unsigned count = words.count(), value = 4;
  void* arguments[] = {&data, &count, &value};
  CU(cuLaunchKernel(add, (count + 127) / 128, 1, 1, 128, 1, 1, 0, nullptr, arguments, nullptr));
  words.add(value);
  words.check();
}

void Client::deep() {
  if (deep_ == nullptr) {
    CUmodule module = nullptr;
    CU(cuModuleLoadData(&module, kDeepPtx));
    CU(cuModuleGetFunction(&deep_, module, "deep"));
    return;
  }
  Words words(1, 1);
  CUdeviceptr out = words.address;
  unsigned value = 4711;
  void* arguments[] = {&out, &value};
  CU(cuLaunchKernel(deep_, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr));
  words.expected[0] = value;
  words.check();
}

void Client::make_array() {
  CUDA_ARRAY_DESCRIPTOR description{};
  description.Width = 64;
  description.Format = CU_AD_FORMAT_UNSIGNED_INT32;
  description.NumChannels = 1;
  CU(cuArrayCreate(&array_, &description));
  std::vector<unsigned> words(64);
  for (unsigned i = 0; i < 64; ++i) words[i] = 7 * i;
  CU(cuMemcpyHtoA(array_, 0, words.data(), 256));
}

void Client::check_array() {
  std::vector<unsigned> words(64), expected(64);
  for (unsigned i = 0; i < 64; ++i) expected[i] = 7 * i;
  CU(cuMemcpyAtoH(words.data(), array_, 0, 256));
  check_words("an array", words.data(), expected);
}

void Client::make_texture() {
  CUdeviceptr memory = 0;
  CU(cuMemAlloc(&memory, 4096));
  CUDA_RESOURCE_DESC resource{};
  resource.resType = CU_RESOURCE_TYPE_LINEAR;
  resource.res.linear.devPtr = memory;
  resource.res.linear.format = CU_AD_FORMAT_UNSIGNED_INT32;
  resource.res.linear.numChannels = 1;
  resource.res.linear.sizeInBytes = 4096;
  const CUDA_TEXTURE_DESC texture{};
  CU(cuTexObjectCreate(&texture_, &resource, &texture, nullptr));
}

Client::Moment Client::record(CUevent event) {
  Moment moment;
  moment.before = Clock::now();
  CU(cuEventRecord(event, nullptr));
  CU(cuEventSynchronize(event));
  moment.after = Clock::now();
  return moment;
}

std::string Client::time() {
  for (CUevent* event : {&first_, &second_, &last_}) {
    if (*event == nullptr) CU(cuEventCreate(event, CU_EVENT_DEFAULT));
  }
  Words words(1'000, 5);
  CU(device_.launch_add(words.address, words.count(), 1));
  CU(cuCtxSynchronize());
  first_moment_ = record(first_);
  std::this_thread::sleep_for(kPause);
  CU(device_.launch_add(words.address, words.count(), 1));
  (void)record(second_);
  return elapsed();
}

std::string Client::elapsed() const {
  float forwards = 0, backwards = 0;
  CU(cuEventElapsedTime(&forwards, first_, second_));
  CU(cuEventElapsedTime(&backwards, second_, first_));
  std::ostringstream text;
  text.precision(9);
  text << "ok " << forwards << " " << backwards;
  return text.str();
}

std::string Client::since() const {
  const Moment now = record(last_);
  float by_events = 0;
  CU(cuEventElapsedTime(&by_events, first_, last_));
  std::ostringstream text;
  text << "ok " << by_events << " " << milliseconds(now.before - first_moment_.after) << " " << milliseconds(now.after - first_moment_.before);
  return text.str();
}

std::string Client::answer(const std::string& line) {
  if (line == "run") return run(), "ok";
  if (line == "end") return end(), "ok";
  if (line == "chain") return chain(), "ok";
  if (line == "unchain") return unchain(), "ok";
  if (line == "load") return load(), "ok";
  if (line == "deep") return deep(), "ok";
  if (line == "array") return make_array(), "ok";
  if (line == "check_array") return check_array(), "ok";
  if (line == "texture") return make_texture(), "ok";
  if (line == "time") return time();
  if (line == "elapsed") return elapsed();
  if (line == "since") return since();
  if (line == "hold") return held_ = std::make_unique<Words>(10'000, 17), "ok";
  if (line == "check") return held_->check(), "ok";
  throw Failure("unknown command " + line);
}

}  // namespace
}  // namespace mpsshim::test

int main() { return mpsshim::test::converse<mpsshim::test::Client>(); }
