// SPDX-License-Identifier: Apache-2.0
// Waits for events of another session of the process, that is of another device (CUDA Driver API manual, "cuStreamWaitEvent").
//
// What the event was recorded behind is passed on through memory that both executors have mapped: a *bridge*, a stream of the event's session that
// the program does not know, waits for the event on the GPU and has a record of a shared event written (shared_events.hpp); the waiting stream is
// held back until its executor sees that. A waiting stream has a bridge to each session, so what it waits for is passed on in the order in which
// it waits, and waits of two streams do not hold up each other.
//
// An event that processes share is waited for as by another process: the waiting session opens it.
//
// If the event's session fails, what the stream waits for will not be made. Then the waiting session fails with the same error and its stream goes
// no further: a thread looks for that as long as there are waits that are not over. Any thread; never destroyed, since streams may wait at exit.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "gen/cuda_api.hpp"
#include "interposer/forward/events.hpp"
#include "interposer/forward/shared_events.hpp"
#include "interposer/forward/streams.hpp"
#include "proto/cond_var.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::interposer::forward {

class PeerWaits {
 public:
  [[nodiscard]] static PeerWaits& instance();

  // What comes behind in `stream`, of the acting session, comes behind what `handle`, an event of another one, was recorded behind.
  [[nodiscard]] CUresult wait(Stream& stream, CUevent handle);

 private:
  struct Relay {  // a shared event, as each side has it
    SharedEvent source;
    SharedEvent waiter;
  };
  struct Bridge {
    std::uint32_t source = 0;  // sessions
    std::uint32_t waiter = 0;
    Mutex mutex;  // from a record to the wait for it
    Stream* stream GUARDED_BY(mutex) = nullptr;
    std::vector<Relay> relays GUARDED_BY(mutex);
    bool is_over GUARDED_BY(mutex) = false;  // a side has failed
  };
  // The waiting stream by its fence word: streams that have a word one after the other never have work at the same time.
  struct Key {
    std::uint32_t source, waiter, word;
    friend auto operator<=>(const Key&, const Key&) = default;
  };

  [[nodiscard]] CUresult wait_for_shared(Stream& stream, std::uint32_t source, const SharedEvent& event);
  [[nodiscard]] Bridge& bridge_to(std::uint32_t source, const Stream& stream);
  [[nodiscard]] static CUresult open(Bridge& bridge) REQUIRES(bridge.mutex);
  [[nodiscard]] static CUresult free_relay(Bridge& bridge, const Relay*& relay) REQUIRES(bridge.mutex);
  [[nodiscard]] static CUresult pass_on(Bridge& bridge, Event& event, const Relay*& relay) REQUIRES(bridge.mutex);
  [[nodiscard]] CUresult begin_watch();
  static void* thread_main(void* self);
  void serve();
  // Whether waits of it are not over. Fails the waiting session where the other one has failed.
  [[nodiscard]] static bool look_at(Bridge& bridge);

  Mutex mutex_;
  CondVar began_;
  std::map<Key, Bridge> bridges_ GUARDED_BY(mutex_);
  // Events shared between processes, of other sessions, as a waiting session (first) has opened their slot.
  std::map<std::pair<std::uint32_t, const proto::SharedEventSlot*>, SharedEvent> opened_ GUARDED_BY(mutex_);
  bool has_begun_ GUARDED_BY(mutex_) = false;  // a wait, since the thread last looked
  bool is_idle_ GUARDED_BY(mutex_) = false;    // the thread sleeps until one does
  bool has_thread_ GUARDED_BY(mutex_) = false;
};

}  // namespace mpsshim::interposer::forward
