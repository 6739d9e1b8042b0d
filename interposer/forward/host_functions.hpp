// SPDX-License-Identifier: Apache-2.0
// Host functions and stream callbacks (cuLaunchHostFunc, cuStreamAddCallback): run here, in the client, in stream order. One record has the
// stream's fence written behind the work so far and makes the executor hold back what follows; when the fence is reached the function runs;
// then its number goes into the stream's host_value (proto::FenceWord), which lets the executor go on. So no wait whose end depends on the
// program is given to the GPU, and a function that never returns holds up its own stream alone.
//
// A stream with functions has a thread that waits for their fences; threads end when idle. The functions themselves run one at a time, as
// NVIDIA's driver runs them: programs may rely on that. After a fatal error callbacks get the error and host functions are not run.
// Any thread may enqueue. Never destroyed: functions may be running while the process exits.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <map>

#include "gen/cuda_api.hpp"
#include "interposer/forward/streams.hpp"
#include "interposer/local/acting_session.hpp"
#include "proto/cond_var.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::interposer::forward {

// One of the three, and what it gets. `own` is the library's, in the stream's order as the others; it waits for no program's function, and what it
// returns, if that is an error, ends the session: what comes behind must not go on without it.
struct HostTask {
  std::function<CUresult()> own;
  CUhostFn function = nullptr;
  CUstreamCallback callback = nullptr;
  CUstream handle = nullptr;  // as the program named the stream
  void* user_data = nullptr;
};

class HostFunctions {
 public:
  [[nodiscard]] static HostFunctions& instance();

  [[nodiscard]] CUresult enqueue(Stream& stream, const HostTask& task);
  // Some function of the program's has been enqueued and has not returned.
  [[nodiscard]] static bool any_under_way() { return under_way_.load(std::memory_order_acquire) != 0; }

 private:
  struct Item {
    HostTask task;
    std::uint32_t fence_value = 0;
    std::uint32_t number = 0;
  };
  // Of one fence word, for whichever streams have it in turn: numbers go on.
  struct Lane {
    HostFunctions* owner = nullptr;
    std::uint32_t word = 0;
    std::uint32_t last_number = 0;  // under the channel's lock, as fence values
    Mutex mutex;                    // the rest
    CondVar arrived;
    std::list<Item> items GUARDED_BY(mutex);
    unsigned announced GUARDED_BY(mutex) = 0;  // items about to be added: the thread stays
    bool has_thread GUARDED_BY(mutex) = false;
  };

  HostFunctions() = default;
  const std::uint32_t session_ = ActingSession::index();
  [[nodiscard]] Lane& lane_of(const Stream& stream);
  [[nodiscard]] static bool announce(Lane& lane);
  static void withdraw(Lane& lane);
  static void* thread_main(void* lane);
  static void serve(Lane& lane);
  void run(Lane& lane, const Item& item);

  static inline std::atomic<unsigned> under_way_{0};  // NOLINT(readability-identifier-naming): a private member
  Mutex mutex_;  // lanes_
  std::map<std::uint32_t, Lane> lanes_ GUARDED_BY(mutex_);
  Mutex running_;  // one function at a time
};

}  // namespace mpsshim::interposer::forward
