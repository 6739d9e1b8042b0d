// SPDX-License-Identifier: Apache-2.0
// two_devices converse: a command a line, an answer a line, as test_client. `work N` launches on device N and checks what all launches there have
// made: "ok", or what failed. `enable` lets each device reach the other's memory, 64 MiB more of it and mapped memory of the second among it; then
// `reach N` launches on device N over all that the other has. More commands: two_devices_exports.hpp.
#pragma once

#include <array>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "tests/process/programs/two_devices.hpp"
#include "tests/process/programs/two_devices_exports.hpp"
#include "tests/process/programs/two_devices_managed.hpp"
#include "tests/process/programs/two_devices_meet.hpp"

namespace mpsshim::test {

class Conversing {
 public:
  Conversing() {
    CU(cuInit(0));
    for (int i = 0; i < 2; ++i) sides_[static_cast<std::size_t>(i)].make(i);
  }
  std::string answer(const std::string& line) {
    if (const std::string answer = exports_.answer(line, sides_); !answer.empty()) return answer;
    if (line == "enable") return enable();
    if (line == "managed") return managed_in_common();
    if (line.starts_with("meet")) return meet(line);
    require(line == "work 0" || line == "work 1" || line == "reach 0" || line == "reach 1", "unknown command " + line);
    const std::size_t which = line.back() == '1' ? 1 : 0;
    if (line.starts_with("reach")) return reach(sides_[which], 1 - which);
    const Side& side = sides_[which];
    side.use();
    side.launch_add(side.data, 3);
    CU(cuStreamSynchronize(side.stream));
    require_all(side.read(side.data), 3 * ++launches_[which], "what launches have made");
    return "ok";
  }

 private:
  std::string enable() {
    for (unsigned i = 0; i < 2; ++i) {
      sides_[i].use();
      CU(cuCtxEnablePeerAccess(sides_[1 - i].context, 0));
      more_[i].push_back(sides_[i].data);
      more_[i].push_back(0);
      CU(cuMemAlloc(&more_[i].back(), std::size_t{64} << 20));
      CU(cuMemsetD32(more_[i].back(), 0, kWords));
      void* pinned = nullptr;
      CU(cuMemHostAlloc(&pinned, kBytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
      std::memset(pinned, 0, kBytes);
      more_[i].push_back(reinterpret_cast<CUdeviceptr>(pinned));
      more_[i].push_back(0);
      CU(cuMemAllocManaged(&more_[i].back(), kBytes, CU_MEM_ATTACH_GLOBAL));
      std::memset(reinterpret_cast<void*>(more_[i].back()), 0, kBytes);  // NOLINT(performance-no-int-to-ptr)
    }
    more_[1].push_back(map_for_both(sides_));
    CU(cuMemsetD32(more_[1].back(), 0, kWords));
    CU(cuCtxSynchronize());
    return "ok";
  }
  std::string managed_in_common() {
    if (!managed_) managed_.emplace(sides_);
    managed_->work(40);
    return "ok";
  }
  // What the first device has to do waits for the second's, which is launched later and waited for later.
  std::string meet(const std::string& how) {
    const bool is_polling = how.ends_with("polling");
    if (!meeting_) meeting_.emplace(sides_);
    meeting_->launch(0, true);
    if (how == "meet flooding") flood();
    if (how == "meet loading") {
      sides_[0].use();
      const std::string text = "// " + std::to_string(meeting_->count()) + '\n' + kPlainPtx;
      CUmodule module = nullptr;
      CU(cuModuleLoadData(&module, text.c_str()));
      CU(cuModuleUnload(module));
    }
    if (how.starts_with("meet shared")) wait_for_shared(is_polling);
    for (const Side& side : sides_) {
      side.use();
      CUresult state = is_polling ? cuStreamQuery(side.stream) : cuStreamSynchronize(side.stream);
      while (is_polling && state == CUDA_ERROR_NOT_READY) state = cuStreamQuery(side.stream);
      require(state == CUDA_SUCCESS, "a meeting gives " + describe(state));
    }
    for (unsigned i = 0; i < 2; ++i) {
      sides_[i].use();
      require_all(sides_[i].read(sides_[i].data), meeting_->count() + 3 * launches_[i], "what came behind a meeting");
    }
    return "ok";
  }
  // More than there is room for before the kernel that waits has ended.
  void flood() {
    sides_[0].use();
    if (spare_ == 0) CU(cuMemAlloc(&spare_, sizeof(unsigned)));
    unsigned count = 1, value = 1;
    void* arguments[] = {&spare_, &count, &value};
    for (unsigned i = 0; i < 60'000; ++i) CU(cuLaunchKernel(sides_[0].add, 1, 1, 1, 1, 1, 1, 0, sides_[0].stream, arguments, nullptr));
  }
  // For an event of the first device that other processes may have opened.
  void wait_for_shared(bool is_polling) {
    sides_[0].use();
    CUevent event = nullptr;
    CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS));
    CU(cuEventRecord(event, sides_[0].stream));
    CUresult state = is_polling ? cuEventQuery(event) : cuEventSynchronize(event);
    while (is_polling && state == CUDA_ERROR_NOT_READY) state = cuEventQuery(event);
    require(state == CUDA_SUCCESS, "a shared event behind a meeting gives " + describe(state));
    CU(cuEventDestroy(event));
  }
  // Words of the other device, and its own launches go on from what they find.
  std::string reach(const Side& side, std::size_t owner) {
    side.use();
    for (const CUdeviceptr words : more_[owner]) side.launch_add(words, 3);
    CU(cuStreamSynchronize(side.stream));
    sides_[owner].use();
    ++launches_[owner];
    ++reached_[owner];
    for (const CUdeviceptr words : more_[owner]) {
      require_all(sides_[owner].read(words), 3 * (words == sides_[owner].data ? launches_[owner] : reached_[owner]),
                  "what the other device has made");
    }
    return "ok";
  }

  Sides sides_;
  std::optional<Meeting> meeting_;
  CUdeviceptr spare_ = 0;
  std::optional<ManagedForBoth> managed_;
  std::array<unsigned, 2> launches_{};
  std::array<unsigned, 2> reached_{};
  std::array<std::vector<CUdeviceptr>, 2> more_;
  Exports exports_;
};

}  // namespace mpsshim::test
