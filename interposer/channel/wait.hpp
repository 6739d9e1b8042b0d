// SPDX-License-Identifier: Apache-2.0
// The one way to wait for the broker: for a reply, a fence, room in the ring, a reply slot. Every wait has a reason (for the log), spins
// for a budget that depends on the number of cores, then sleeps in steps of at most 20 ms; after each step it looks at the session's state
// and, every 20 ms, at the connection. So a broker that quits or an executor that is replaced ends every wait: none can hang.
// Any thread. The shared words it looks at are trusted: a broken broker can make this process wait for the 20 ms steps only, not for ever,
// because it dies with its connection.
#pragma once

#include <cstdint>

#include "proto/channel.hpp"
#include "proto/futex.hpp"

namespace mpsshim::interposer {

enum class WaitEnd : std::uint8_t {
  ready,   // what was waited for is there
  moved,   // SessionState::moved: recover, then decide again
  failed,  // SessionState::failed: session_error of the channel header is the answer, now and later
  gone,    // the control process hung up
};

// Tells whether the other end of the connection is there. A function pointer and a state, so that channel code needs no socket.
struct PeerWatch {
  bool (*has_hung_up)(const void* state) = nullptr;
  const void* state = nullptr;
};

class Wait {
 public:
  static constexpr std::uint64_t kStepUs = 20'000;
  static constexpr std::uint64_t kLogAfterUs = 10'000'000;

  // `reason` is a string literal that completes "waiting for ...".
  Wait(const char* reason, const proto::ChannelHeader& header, PeerWatch peer) : reason_(reason), header_(header), peer_(peer) {}

  // `ready()` looks once; `sleep(timeout_us)` sleeps until something may have changed, at most so long.
  template <typename Ready, typename Sleep>
  [[nodiscard]] WaitEnd until(Ready&& ready, Sleep&& sleep) {
    if (ready()) return WaitEnd::ready;
    const std::uint64_t budget_us = spin_budget_us();
    const std::uint64_t started_us = now_us();
    do {
      for (int look = 0; look < kLooksPerClock; ++look) {
        proto::cpu_relax();
        if (ready()) return WaitEnd::ready;
      }
    } while (now_us() - started_us < budget_us);
    started_us_ = started_us;
    for (;;) {
      sleep(kStepUs);
      if (ready()) return WaitEnd::ready;
      if (const WaitEnd end = look_around(); end != WaitEnd::ready) return end;
    }
  }

  // Microseconds to spin before the first sleep: 50 where a core can be spared, 2 on one or two cores.
  [[nodiscard]] static std::uint64_t spin_budget_us();

 private:
  static constexpr int kLooksPerClock = 32;

  [[nodiscard]] static std::uint64_t now_us();
  // WaitEnd::ready: nothing speaks against sleeping on.
  [[nodiscard]] WaitEnd look_around();

  const char* reason_;
  const proto::ChannelHeader& header_;
  PeerWatch peer_;
  std::uint64_t started_us_ = 0;
  std::uint64_t looked_us_ = 0;
  bool logged_ = false;
};

}  // namespace mpsshim::interposer
