// SPDX-License-Identifier: Apache-2.0
// A client for the module tests: a command a line on standard input, an answer a line on standard output, as test_client.
//
//   load, unload     the module with the counter, kept
//   load_managed     one whose counter is managed
//   count            its kernel counts up: "ok N", the counter's value behind it
//   counter          the counter read by cuMemcpyDtoH: "ok N"
//   seen             the managed counter as the host sees it: "ok N"
//   set N            the counter written by cuMemcpyHtoD
//   plain            a module without variables loaded, a kernel of it run and checked, unloaded
//   cycle N          N rounds of load, look up, allocate, launch, free, unload: "ok NS" for a round
//   limit N          a kernel of a module without variables, kept, may have N bytes of dynamic shared memory
//   room N           what it is told of it: "ok BLOCKS BYTES", the blocks of 32 threads with N bytes each on a multiprocessor, the bytes for one
//   link             a linker is made and given a text; linked: what it gives is loaded, and a kernel of it run and checked; unlink: it is given up
//   hold, check      device memory with content of its own; is it still there
#include <chrono>
#include <memory>
#include <sstream>

#include "tests/process/programs/conversation.hpp"
#include "tests/process/programs/driver.hpp"

namespace mpsshim::test {
namespace {

class Client {
 public:
  Client();
  std::string answer(const std::string& line);

 private:
  std::string count();
  [[nodiscard]] unsigned counter() const;
  [[nodiscard]] unsigned seen() const;
  void set(unsigned value) const;
  void plain(const void* image) const;
  [[nodiscard]] long cycle(unsigned rounds) const;
  [[nodiscard]] CUfunction shared_kernel();
  [[nodiscard]] std::string room(unsigned shared_bytes);
  void link();
  void linked();

  CUcontext context_ = nullptr;
  CUmodule module_ = nullptr;
  CUdeviceptr out_ = 0;
  std::unique_ptr<Words> held_;
  CUfunction shared_kernel_ = nullptr;
  CUlinkState link_ = nullptr;
};

Client::Client() {
  CUdevice device = 0;
  CU(cuInit(0));
  CU(cuDeviceGet(&device, 0));
  CU(cuDevicePrimaryCtxRetain(&context_, device));
  CU(cuCtxSetCurrent(context_));
  CU(cuMemAlloc(&out_, sizeof(unsigned)));
}

std::string Client::count() {
  CUfunction function = nullptr;
  CU(cuModuleGetFunction(&function, module_, "count"));
  void* arguments[] = {&out_};
  CU(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr));
  unsigned value = 0;
  CU(cuMemcpyDtoH(&value, out_, sizeof value));
  return "ok " + std::to_string(value);
}

unsigned Client::counter() const {
  CUdeviceptr address = 0;
  std::size_t bytes = 0;
  CU(cuModuleGetGlobal(&address, &bytes, module_, "counter"));
  require(bytes == sizeof(unsigned), "the counter has " + std::to_string(bytes) + " bytes");
  unsigned value = 0;
  CU(cuMemcpyDtoH(&value, address, sizeof value));
  return value;
}

unsigned Client::seen() const {
  CUdeviceptr address = 0;
  CU(cuModuleGetGlobal(&address, nullptr, module_, "counter"));
  return *reinterpret_cast<const volatile unsigned*>(address);  // NOLINT(performance-no-int-to-ptr)
}

void Client::set(unsigned value) const {
  CUdeviceptr address = 0;
  CU(cuModuleGetGlobal(&address, nullptr, module_, "counter"));
  CU(cuMemcpyHtoD(address, &value, sizeof value));
}

void Client::plain(const void* image) const {
  CUmodule module = nullptr;
  CUfunction store = nullptr;
  CU(cuModuleLoadData(&module, image));
  CU(cuModuleGetFunction(&store, module, "store"));
  CUdeviceptr word = out_;
  CU(cuMemsetD32(word, 0, 1));
  void* arguments[] = {&word};
  CU(cuLaunchKernel(store, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr));
  unsigned value = 0;
  CU(cuMemcpyDtoH(&value, word, sizeof value));
  require(value == 1, "the kernel stored " + std::to_string(value));
  CU_GIVES(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&store, module, "no such kernel"));
  CU(cuModuleUnload(module));
}

long Client::cycle(unsigned rounds) const {
  const auto start = std::chrono::steady_clock::now();
  for (unsigned round = 0; round < rounds; ++round) {
    CUmodule module = nullptr;
    CUfunction store = nullptr;
    CUdeviceptr word = 0;
    CU(cuModuleLoadData(&module, kPlainPtx));
    CU(cuModuleGetFunction(&store, module, "store"));
    CU(cuMemAlloc(&word, 65536));
    void* arguments[] = {&word};
    CU(cuLaunchKernel(store, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr));
    CU(cuMemFree(word));
    CU(cuModuleUnload(module));
  }
  const auto took = std::chrono::steady_clock::now() - start;
  return std::chrono::duration_cast<std::chrono::nanoseconds>(took).count() / rounds;
}

CUfunction Client::shared_kernel() {
  CUmodule module = nullptr;
  if (shared_kernel_ != nullptr) return shared_kernel_;
  CU(cuModuleLoadData(&module, kPlainPtx));
  CU(cuModuleGetFunction(&shared_kernel_, module, "store"));
  return shared_kernel_;
}

std::string Client::room(unsigned shared_bytes) {
  int blocks = 0;
  std::size_t bytes = 0;
  CU(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, shared_kernel(), 32, shared_bytes));
  CU(cuOccupancyAvailableDynamicSMemPerBlock(&bytes, shared_kernel(), 1, 32));
  return "ok " + std::to_string(blocks) + " " + std::to_string(bytes);
}

// The text is no more once the linker has it.
void Client::link() {
  CU(cuLinkCreate(0, nullptr, nullptr, &link_));
  std::string text = kPlainPtx;
  CU(cuLinkAddData(link_, CU_JIT_INPUT_PTX, text.data(), text.size() + 1, "plain", 0, nullptr, nullptr));
  text.assign(text.size(), 'x');
}

void Client::linked() {
  void* image = nullptr;
  std::size_t bytes = 0;
  CU(cuLinkComplete(link_, &image, &bytes));
  plain(image);
}

std::string Client::answer(const std::string& line) {
  std::istringstream words(line);
  std::string command;
  unsigned number = 0;
  words >> command >> number;
  if (command == "load") return require_success(cuModuleLoadData(&module_, kGlobalPtx), "cuModuleLoadData"), "ok";
  if (command == "load_managed") return require_success(cuModuleLoadData(&module_, kManagedPtx), "cuModuleLoadData"), "ok";
  if (command == "seen") return "ok " + std::to_string(seen());
  if (command == "unload") return require_success(cuModuleUnload(module_), "cuModuleUnload"), "ok";
  if (command == "count") return count();
  if (command == "counter") return "ok " + std::to_string(counter());
  if (command == "set") return set(number), "ok";
  if (command == "plain") return plain(kPlainPtx), "ok";
  if (command == "cycle") return "ok " + std::to_string(cycle(number));
  if (command == "limit") {
    const auto bytes = static_cast<int>(number);
    return require_success(cuFuncSetAttribute(shared_kernel(), CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, bytes), "cuFuncSetAttribute"), "ok";
  }
  if (command == "room") return room(number);
  if (command == "link") return link(), "ok";
  if (command == "linked") return linked(), "ok";
  if (command == "unlink") return require_success(cuLinkDestroy(link_), "cuLinkDestroy"), "ok";
  if (command == "hold") return held_ = std::make_unique<Words>(1024, 17), "ok";
  if (command == "check") return held_->check(), "ok";
  throw Failure("unknown command " + line);
}

}  // namespace
}  // namespace mpsshim::test

int main() { return mpsshim::test::converse<mpsshim::test::Client>(); }
