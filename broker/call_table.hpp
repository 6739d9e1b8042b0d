// SPDX-License-Identifier: Apache-2.0
// In whose driver call each thread of an executor is: memory that executor and control process share, like the progress table. By it the
// control process notices a call that never returns, and knows afterwards in whose call the executor crashed.
// A thread has one slot and alone writes it: two relaxed stores when a call begins, one when it ends. There is no clock in it: a call lasts as
// long as `call` names it and `count` stands still (broker/control/base/call_watch.hpp).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace mpsshim::broker {

inline constexpr std::uint32_t kCallSlots = 64;  // threads beyond that are not watched

struct alignas(64) CallSlot {
  std::atomic<std::uint64_t> call;    // packed PublishedCall; 0: none
  std::atomic<std::uint32_t> count;   // calls begun so far
  std::atomic<std::uint32_t> signal;  // not 0: this thread raised that signal, and the process died of it
};
static_assert(sizeof(CallSlot) == 64 && std::atomic<std::uint64_t>::is_always_lock_free);

struct CallTable {
  CallSlot slot[kCallSlots];
};

// What a thread may be doing. The number is what is published; both sides are of one release.
inline constexpr std::array kCallNames = std::to_array<std::string_view>({
    "a driver call",
    "cuGraphLaunch",
    "cuLaunchKernel",
    "cuMemcpyAsync",
    "cuMemcpy3DAsync",
    "cuMemsetAsync",
    "cuMemCreate",
    "cuMemMap",
    "cuMemHostRegister",
    "cuStreamQuery",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuModuleGetFunction",
    "cuModuleGetGlobal",
    "cuModuleEnumerateFunctions",
    "compiling an image",
    "serving records",
    "issuing work",
    "opening a session",
    "restoring memory",
    "taking down a session",
    "unmapping memory",
    "a launch that needs more local memory",
    "a call out of line",
    "cuGraphInstantiate",
    "destroying graphs",
    "cuEventRecord",
    "cuEventQuery",
    "reporting a fault",
    "making side contexts",
    "cuImportExternalMemory",
    "reading failed assertions",
});

class CallName {
 public:
  // A literal that is not listed does not compile.
  consteval CallName(const char* name) : index_(find(name)) {  // NOLINT: call sites name calls by literals
    if (index_ == 0) throw "not in kCallNames";
  }
  // "a driver call" where `name` is not listed.
  [[nodiscard]] static constexpr CallName of(std::string_view name) { return CallName(find(name)); }
  [[nodiscard]] static constexpr CallName at(std::uint8_t index) { return CallName(index < kCallNames.size() ? index : std::uint8_t{0}); }
  [[nodiscard]] constexpr std::uint8_t index() const { return index_; }
  [[nodiscard]] constexpr const char* text() const { return kCallNames[index_].data(); }

 private:
  constexpr explicit CallName(std::uint8_t index) : index_(index) {}
  static constexpr std::uint8_t find(std::string_view name) {
    for (std::uint8_t i = 1; i < kCallNames.size(); ++i) {
      if (kCallNames[i] == name) return i;
    }
    return 0;
  }
  std::uint8_t index_;
};

// `patient`: a call that may take long and be right: in a quiet window, a compilation, one that waits for the control process.
enum class Patience : std::uint8_t { prompt, patient };

struct PublishedCall {
  std::uint64_t session = 0;  // 0: nobody's
  CallName name = CallName::at(0);
  Patience patience = Patience::prompt;

  [[nodiscard]] constexpr std::uint64_t packed() const {
    return session << 16 | std::uint64_t{patience == Patience::patient} << 9 | 1u << 8 | name.index();
  }
  [[nodiscard]] static constexpr PublishedCall from(std::uint64_t packed) {
    return {packed >> 16, CallName::at(static_cast<std::uint8_t>(packed)), (packed >> 9 & 1) != 0 ? Patience::patient : Patience::prompt};
  }
};

}  // namespace mpsshim::broker
