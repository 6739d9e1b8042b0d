// SPDX-License-Identifier: Apache-2.0
// A client whose module has variables, for the tests of what becomes of them: a command a line on standard input, an answer a line on standard
// output, as test_client.
//
//   load MIB ROOMS     a module with a counter, 5 at first, MIB MiB of zeroes, and ROOMS words that hold their number at first
//   post               fill twenty times, which is not waited for
//   unload             what was loaded last
//   count              a kernel counts up: "ok N", the counter behind it
//   churn MS US        count, and a pause of US microseconds; then a kernel that touches no variable, launched and waited for again and again for
//                      MS milliseconds: "ok NS", the steady clock at its end
//   count_for MS US    count and a pause of US microseconds, again and again for so long; each has to follow the one before: "ok N NS"
//   fill               a kernel writes into all of the MiB and into all rooms
//   check              reads them back
//   leave              a kernel leaves the counter's address in memory
//   through            another kernel, whose code does not name it, counts up by it: "ok N"
//   given              as through, with the address that cuModuleGetGlobal gives
//   load_table         a further module: two functions, and their addresses in a variable
//   call N             a kernel calls the N-th by that: "ok 101" or "ok 202"
#include <chrono>
#include <sstream>
#include <thread>

#include "tests/process/programs/conversation.hpp"
#include "tests/process/programs/driver.hpp"

namespace mpsshim::test {
namespace {

using Clock = std::chrono::steady_clock;

std::string now() { return std::to_string(Clock::now().time_since_epoch().count()); }

constexpr unsigned kStride = 4096;  // bytes of the MiB, of which the first word is written

const char kHead[] = R"ptx(
.version 6.4
.target sm_75
.address_size 64
.visible .global .align 4 .u32 counter = 5;

.visible .entry count(.param .u64 out)
{
    .reg .b32 %r<2>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [out];
    ld.global.u32 %r1, [counter];
    add.u32 %r1, %r1, 1;
    st.global.u32 [counter], %r1;
    st.global.u32 [%rd1], %r1;
    ret;
}
.visible .entry touch_none(.param .u64 out)
{
    .reg .b32 %r<2>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [out];
    ld.global.u32 %r1, [%rd1+8];
    add.u32 %r1, %r1, 1;
    st.global.u32 [%rd1+8], %r1;
    ret;
}
.visible .entry leave(.param .u64 out)
{
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [out];
    mov.u64 %rd2, counter;
    st.global.u64 [%rd1+16], %rd2;
    ret;
}
.visible .entry through(.param .u64 out)
{
    .reg .b32 %r<2>;
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [out];
    ld.global.u64 %rd2, [%rd1+16];
    ld.global.u32 %r1, [%rd2];
    add.u32 %r1, %r1, 1;
    st.global.u32 [%rd2], %r1;
    st.global.u32 [%rd1], %r1;
    ret;
}
)ptx";

const char kTable[] = R"ptx(
.version 6.4
.target sm_75
.address_size 64
.func (.param .b32 result) first(.param .b32 x)
{
    .reg .b32 %r<2>;
    ld.param.b32 %r1, [x];
    add.u32 %r1, %r1, 1;
    st.param.b32 [result], %r1;
    ret;
}
.func (.param .b32 result) second(.param .b32 x)
{
    .reg .b32 %r<2>;
    ld.param.b32 %r1, [x];
    add.u32 %r1, %r1, 102;
    st.param.b32 [result], %r1;
    ret;
}
.visible .global .align 8 .u64 table[2] = {first, second};

.visible .entry call(.param .u64 out)
{
    .reg .b32 %r<4>;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [out];
    ld.global.u32 %r1, [%rd1+24];
    mul.wide.u32 %rd2, %r1, 8;
    mov.u64 %rd3, table;
    add.u64 %rd3, %rd3, %rd2;
    ld.global.u64 %rd4, [%rd3];
    mov.u32 %r2, 100;
    {
        .param .b32 given;
        .param .b32 got;
        st.param.b32 [given], %r2;
        prototype: .callprototype (.param .b32 _) _ (.param .b32 _);
        call (got), %rd4, (given), prototype;
        ld.param.b32 %r3, [got];
    }
    st.global.u32 [%rd1], %r3;
    ret;
}
)ptx";

class Client {
 public:
  Client();
  std::string answer(const std::string& line);

 private:
  void load(unsigned mib, unsigned rooms);
  void launch(const char* name) const;
  [[nodiscard]] unsigned word() const;
  [[nodiscard]] std::string count_for(int duration_ms, int pause_us) const;
  [[nodiscard]] std::string churn(int duration_ms) const;
  void check() const;
  [[nodiscard]] std::string call(unsigned number) const;

  CUcontext context_ = nullptr;
  CUmodule module_ = nullptr;
  CUdeviceptr out_ = 0;
  unsigned pages_ = 0;
  unsigned rooms_ = 0;
};

Client::Client() {
  CUdevice device = 0;
  CU(cuInit(0));
  CU(cuDeviceGet(&device, 0));
  CU(cuDevicePrimaryCtxRetain(&context_, device));
  CU(cuCtxSetCurrent(context_));
  CU(cuMemAlloc(&out_, 4096));
  CU(cuMemsetD8(out_, 0, 4096));
}

// Kernels of one thread each, so that their text is all that says which variables they touch.
void Client::load(unsigned mib, unsigned rooms) {
  std::ostringstream text;
  std::ostringstream fill;
  std::ostringstream check;
  text << kHead;
  if (mib > 0) text << ".visible .global .align 8 .b8 room[" << (std::size_t{mib} << 20) << "];\n";
  for (unsigned i = 0; i < rooms; ++i) {
    text << ".visible .global .u32 room" << i << " = " << i << ";\n";
    fill << "st.global.u32 [room" << i << "], " << 3 * i + 1 << ";\n";
    check << "ld.global.u32 %r3, [room" << i << "];\nst.global.u32 [%rd1], %r3;\nadd.u64 %rd1, %rd1, 4;\n";
  }
  pages_ = (mib << 20) / kStride;
  rooms_ = rooms;
  const std::string declare = "{\n.reg .b32 %r<4>;\n.reg .b64 %rd<4>;\n.reg .pred %p;\nld.param.u64 %rd1, [out];\n";
  const std::string loop = "mov.u64 %rd2, room;\nmov.u32 %r1, 0;\nL:\n";
  const std::string end = "add.u64 %rd2, %rd2, 4096;\nadd.u32 %r1, %r1, 1;\nsetp.lt.u32 %p, %r1, " + std::to_string(pages_) + ";\n@%p bra L;\n";
  text << ".visible .entry fill(.param .u64 out)\n" << declare << fill.str();
  if (mib > 0) text << loop << "add.u32 %r2, %r1, 7;\nst.global.u32 [%rd2], %r2;\n" << end;
  text << "ret;\n}\n.visible .entry check(.param .u64 out)\n" << declare << check.str();
  if (mib > 0) text << loop << "ld.global.u32 %r2, [%rd2];\nst.global.u32 [%rd1], %r2;\nadd.u64 %rd1, %rd1, 4;\n" << end;
  text << "ret;\n}\n";
  CU(cuModuleLoadData(&module_, text.str().c_str()));
}

void Client::launch(const char* name) const {
  CUfunction function = nullptr;
  CU(cuModuleGetFunction(&function, module_, name));
  CUdeviceptr out = out_;
  void* arguments[] = {&out};
  CU(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr));
}

unsigned Client::word() const {
  unsigned value = 0;
  CU(cuMemcpyDtoH(&value, out_, sizeof value));
  return value;
}

std::string Client::count_for(int duration_ms, int pause_us) const {
  unsigned last = 0;
  for (const auto end = Clock::now() + std::chrono::milliseconds(duration_ms); Clock::now() < end;) {
    launch("count");
    const unsigned value = word();
    require(last == 0 || value == last + 1, "the counter is " + std::to_string(value) + " behind " + std::to_string(last));
    last = value;
    std::this_thread::sleep_for(std::chrono::microseconds(pause_us));
  }
  return "ok " + std::to_string(last) + " " + now();
}

std::string Client::churn(int duration_ms) const {
  for (const auto end = Clock::now() + std::chrono::milliseconds(duration_ms); Clock::now() < end;) {
    launch("touch_none");
    CU(cuCtxSynchronize());
  }
  return "ok " + now();
}

void Client::check() const {
  CUdeviceptr read = 0;
  std::vector<unsigned> words(rooms_ + pages_);
  CU(cuMemAlloc(&read, (words.size() + 1) * sizeof(unsigned)));
  CUfunction function = nullptr;
  CU(cuModuleGetFunction(&function, module_, "check"));
  void* arguments[] = {&read};
  CU(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr));
  CU(cuMemcpyDtoH(words.data(), read, words.size() * sizeof(unsigned)));
  CU(cuMemFree(read));
  for (unsigned i = 0; i < words.size(); ++i) {
    const unsigned expected = i < rooms_ ? 3 * i + 1 : i - rooms_ + 7;
    require(words[i] == expected, "word " + std::to_string(i) + " is " + std::to_string(words[i]) + ", not " + std::to_string(expected));
  }
}

std::string Client::call(unsigned number) const {
  CU(cuMemcpyHtoD(out_ + 24, &number, sizeof number));
  launch("call");
  return "ok " + std::to_string(word());
}

std::string Client::answer(const std::string& line) {
  std::istringstream words(line);
  std::string command;
  int number = 0;
  int second = 0;
  words >> command >> number >> second;
  if (command == "load") return load(static_cast<unsigned>(number), static_cast<unsigned>(second)), "ok";
  if (command == "churn") {
    launch("count");
    CU(cuCtxSynchronize());
    std::this_thread::sleep_for(std::chrono::microseconds(second));
    return churn(number);
  }
  if (command == "count_for") return count_for(number, second);
  if (command == "check") return check(), "ok";
  if (command == "load_table") {
    CU(cuModuleLoadData(&module_, kTable));
    return "ok";
  }
  if (command == "post") {
    for (int i = 0; i < 20; ++i) launch("fill");
    return "ok";
  }
  if (command == "unload") {
    CU(cuModuleUnload(module_));
    return "ok";
  }
  if (command == "call") return call(static_cast<unsigned>(number));
  if (command == "given") {
    CUdeviceptr address = 0;
    CU(cuModuleGetGlobal(&address, nullptr, module_, "counter"));
    CU(cuMemcpyHtoD(out_ + 16, &address, sizeof address));
    command = "through";
  }
  if (command == "fill" || command == "leave") {
    launch(command.c_str());
    CU(cuCtxSynchronize());
    return "ok";
  }
  if (command != "count" && command != "through") throw Failure("unknown command " + line);
  launch(command.c_str());
  return "ok " + std::to_string(word());
}

}  // namespace
}  // namespace mpsshim::test

int main() { return mpsshim::test::converse<mpsshim::test::Client>(); }
