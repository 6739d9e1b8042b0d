// SPDX-License-Identifier: Apache-2.0
// A client with green contexts that does one thing at a time as its test asks (conversation.hpp):
//
//   hold          two green contexts of one split, one of a part of the first one's, streams of each kind in them
//   check         they have what they had, streams are whose they were
//   use           launches in all those streams, ordered by events with an ordinary one: the results are right
//   again         makes and ends a green context of the descriptor that is held, and one of a resource that is held
//   end_outer     ends the first one, of whose resource a part is held
//   more COUNT    makes so many more: "ok"; or how many there were before an error: "3 made, then 2 CUDA_ERROR_OUT_OF_MEMORY"
//   spin          a kernel that never ends, in a stream of a green context: the driver has it when the answer comes
//
// Only what CUDA 12.4 has is called by name.
#include <array>
#include <sstream>

#include "tests/process/programs/conversation.hpp"
#include "tests/process/programs/driver.hpp"

namespace mpsshim::test {
namespace {

constexpr unsigned kIgnoreCoscheduling = 1;
constexpr unsigned kGroupSize = 4;

using StreamCreate = CUresult (*)(CUstream*, CUgreenCtx, unsigned, int);

StreamCreate stream_create() {
  void* found = nullptr;
  CUdriverProcAddressQueryResult status{};
  CU(cuGetProcAddress("cuGreenCtxStreamCreate", &found, 12050, CU_GET_PROC_ADDRESS_DEFAULT, &status));
  require(found != nullptr, "there is no cuGreenCtxStreamCreate");
  return reinterpret_cast<StreamCreate>(found);
}

CUdevResourceDesc description(CUdevResource resource) {
  CUdevResourceDesc descriptor = nullptr;
  CU(cuDevResourceGenerateDesc(&descriptor, &resource, 1));
  return descriptor;
}

struct HeldGreen {
  CUgreenCtx handle = nullptr;
  CUcontext context = nullptr;
  unsigned multiprocessors = 0;
  std::array<CUstream, 3> streams{};  // its NULL stream, one made for it, a blocking one made while it was current

  explicit HeldGreen(CUdevResourceDesc descriptor) {
    CU(cuGreenCtxCreate(&handle, descriptor, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    CU(cuCtxFromGreenCtx(&context, handle));
    multiprocessors = count();
    CU(stream_create()(&streams[1], handle, CU_STREAM_NON_BLOCKING, 0));
    CU(cuCtxPushCurrent(context));
    CU(cuStreamCreate(&streams[2], CU_STREAM_DEFAULT));
    CUcontext popped = nullptr;
    CU(cuCtxPopCurrent(&popped));
  }
  unsigned count() const {
    CUdevResource resource{};
    CU(cuGreenCtxGetDevResource(handle, &resource, CU_DEV_RESOURCE_TYPE_SM));
    return resource.sm.smCount;
  }
  void check() const {
    require(count() == multiprocessors, "a green context has another share than before");
    for (const CUstream stream : {streams[1], streams[2]}) {
      CUgreenCtx found = nullptr;
      CU(cuStreamGetGreenCtx(stream, &found));
      require(found == handle, "a stream is of another green context than before");
    }
    require(multiprocessors >= 2, "a green context has no multiprocessors");
  }
};

class Client {
 public:
  std::string answer(const std::string& line);

 private:
  void hold();
  void use();
  void use_stream(const HeldGreen& green, CUstream stream);
  void again();
  std::string more(int count);
  void spin();

  Device device_;
  Words words_{10'000, 3};
  CUstream ordinary_ = nullptr;
  CUevent event_ = nullptr;
  CUdevResource group_{};
  CUdevResourceDesc descriptor_ = nullptr;
  std::vector<HeldGreen> greens_;
};

void Client::hold() {
  CUdevResource whole{};
  CU(cuDeviceGetDevResource(0, &whole, CU_DEV_RESOURCE_TYPE_SM));
  CUdevResource groups[2] = {};
  unsigned count = 2;
  CU(cuDevSmResourceSplitByCount(groups, &count, &whole, nullptr, kIgnoreCoscheduling, kGroupSize));
  require(count == 2, "the device is too small for two groups");
  group_ = groups[1];
  greens_.emplace_back(description(groups[0]));
  descriptor_ = description(groups[1]);
  greens_.emplace_back(descriptor_);
  CUdevResource own{};
  CU(cuGreenCtxGetDevResource(greens_[0].handle, &own, CU_DEV_RESOURCE_TYPE_SM));
  CUdevResource part{};
  count = 1;
  CU(cuDevSmResourceSplitByCount(&part, &count, &own, nullptr, kIgnoreCoscheduling, 2));
  greens_.emplace_back(description(part));
  CU(cuStreamCreate(&ordinary_, CU_STREAM_NON_BLOCKING));
  CU(cuEventCreate(&event_, CU_EVENT_DISABLE_TIMING));
  use();
}

// Each adds to what the one before has made of it.
void Client::use() {
  for (const HeldGreen& green : greens_) {
    for (const CUstream stream : green.streams) use_stream(green, stream);
  }
  words_.check();
}

void Client::use_stream(const HeldGreen& green, CUstream stream) {
  const auto count = static_cast<unsigned>(words_.expected.size());
  CU(cuCtxPushCurrent(green.context));
  for (unsigned value = 1; value <= 20; ++value) CU(device_.launch_add(words_.address, count, value, stream));
  CU(cuEventRecord(event_, stream));
  CU(cuStreamWaitEvent(ordinary_, event_, 0));
  CU(device_.launch_add(words_.address, count, 100, ordinary_));
  CU(cuEventRecord(event_, ordinary_));
  CU(cuStreamWaitEvent(stream, event_, 0));
  CU(device_.launch_add(words_.address, count, 1, stream));
  CU(cuStreamSynchronize(stream));
  CUcontext popped = nullptr;
  CU(cuCtxPopCurrent(&popped));
  for (unsigned& word : words_.expected) word += 210 + 100 + 1;
}

void Client::again() {
  for (const CUdevResourceDesc descriptor : {descriptor_, description(group_)}) {
    const HeldGreen green(descriptor);
    green.check();
    use_stream(green, green.streams[1]);
    words_.check();
    for (const CUstream stream : {green.streams[1], green.streams[2]}) CU(cuStreamDestroy(stream));
    CU(cuGreenCtxDestroy(green.handle));
  }
}

std::string Client::more(int count) {
  for (int made = 0; made < count; ++made) {
    CUgreenCtx green = nullptr;
    const CUresult result = cuGreenCtxCreate(&green, descriptor_, 0, CU_GREEN_CTX_DEFAULT_STREAM);
    if (result != CUDA_SUCCESS) return std::to_string(made) + " made, then " + describe(result);
  }
  return "ok";
}

// The flag is there for the kernel alone.
void Client::spin() {
  CUdeviceptr never = 0;
  CU(cuMemAlloc(&never, 4));
  CU(cuMemsetD8(never, 0, 4));
  CU(cuCtxSynchronize());
  void* arguments[] = {&never};
  CU(cuLaunchKernel(device_.wait_flag, 1, 1, 1, 1, 1, 1, 0, greens_.at(0).streams[1], arguments, nullptr));
  CU_GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(greens_.at(0).streams[1]));
}

std::string Client::answer(const std::string& line) {
  std::istringstream words(line);
  std::string command, argument;
  words >> command >> argument;
  if (command == "hold") return hold(), "ok";
  if (command == "use") return use(), "ok";
  if (command == "again") return again(), "ok";
  if (command == "more") return more(std::stoi(argument));
  if (command == "spin") return spin(), "ok";
  if (command == "check") {
    for (const HeldGreen& green : greens_) green.check();
    return "ok";
  }
  if (command == "end_outer") {
    CU(cuGreenCtxDestroy(greens_.at(0).handle));
    greens_.erase(greens_.begin());
    return "ok";
  }
  return "there is no such command";
}

}  // namespace
}  // namespace mpsshim::test

int main() { return mpsshim::test::converse<mpsshim::test::Client>(); }
