// SPDX-License-Identifier: Apache-2.0
// The thread that answers touches of managed memory (managed_memory.hpp): it waits for the work that may use a block, downloads the block and opens
// it. It serves all touches side by side and waits by looking, so that one that waits for a kernel holds up no other. Where the work takes long, for
// it may wait for the program, the block is opened beside it, for some milliseconds at a time. One a process, started with the first allocation and
// never ended.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <vector>

#include "interposer/forward/memory/managed_memory.hpp"
#include "interposer/local/acting_session.hpp"

namespace mpsshim::interposer::forward {

class TouchServer {
 public:
  // False: there can be no thread.
  [[nodiscard]] static bool start(TouchWatch& watch);

 private:
  using Clock = std::chrono::steady_clock;
  enum class Stage : std::uint8_t {
    arrived,      // nothing has been looked at
    waiting,      // for work: all of `targets`
    downloading,  // `targets` is the copy's
    beside,       // the same, while work goes on
  };
  struct Awaited {
    std::uint32_t session = 0;
    FenceTarget target;
  };
  struct Pending {
    TouchWatch::Touch touch;
    Stage stage = Stage::arrived;
    std::uint64_t allocation = 0;  // its address, while this touch is the one that serves it
    std::uint64_t posted = 0;      // ManagedMemory::posted() when `targets` were fenced
    std::vector<Awaited> targets;
    Coherence::Opening opening;
    bool is_open_beside = false;          // already: nothing is downloaded
    unsigned downloads = 0;               // beside work, two copies each
    std::chrono::milliseconds hold{200};  // of what overtakes it next
    Clock::time_point since = Clock::now();
  };

  explicit TouchServer(TouchWatch& watch) : watch_(watch) {}
  static void* thread_main(void* server);
  [[noreturn]] void serve();
  void pause(bool has_moved);
  // What the program has had beside kernels long enough. When the next one is due.
  Clock::time_point end_spells();

  // True if it has been answered.
  [[nodiscard]] bool step(Pending& pending);
  [[nodiscard]] bool arrive(Pending& pending);
  [[nodiscard]] bool fence(Pending& pending);
  void fence_others(Pending& pending) const;
  void await(Pending& pending, const std::vector<FenceTarget>& targets) const;  // the acting session's
  void forget_lost();                                                           // what touches wait for of sessions that are over
  [[nodiscard]] static bool has_ended(const Pending& pending);
  [[nodiscard]] bool go_on(Pending& pending);
  [[nodiscard]] bool open(ManagedMemory::Allocation& allocation, Pending& pending) REQUIRES(memory_.order_);
  [[nodiscard]] bool let_in(ManagedMemory::Allocation& allocation, Pending& pending) REQUIRES(memory_.order_);
  // Posts the copy that opening the block takes, if it takes one.
  [[nodiscard]] CUresult download(ManagedMemory::Allocation& allocation, Pending& pending) REQUIRES(memory_.order_);
  [[nodiscard]] bool has_to_write(const Pending& pending) const;
  [[nodiscard]] static bool is_for_host(std::uint64_t address);  // as advised
  [[nodiscard]] bool goes_beside(const Pending& pending);
  void have_second_copy(const Pending& pending);
  [[nodiscard]] bool begin_beside(Pending& pending);
  [[nodiscard]] CUresult download_beside(ManagedMemory::Allocation& allocation, Pending& pending) REQUIRES(memory_.order_);
  [[nodiscard]] static bool is_settled(const ManagedMemory::Allocation& allocation, const Pending& pending);
  [[nodiscard]] bool open_beside(Pending& pending);
  [[nodiscard]] bool let_go(const Pending& pending) REQUIRES(memory_.order_);
  [[nodiscard]] bool give_up(Pending& pending, CUresult error);
  void overtaken(Pending& pending) REQUIRES(memory_.order_);
  void tell(const Pending& pending);

  const std::uint32_t session_ = ActingSession::index();
  TouchWatch& watch_;
  ManagedMemory& memory_ = ManagedMemory::instance();
  std::list<Pending> pending_;
  Clock::time_point moved_ = Clock::now();   // when anything last went on
  Clock::time_point looked_ = Clock::now();  // at the session
  Clock::time_point next_end_ = Clock::time_point::max();  // of a spell beside kernels
  bool has_given_up_ = false;
  bool has_told_ = false;
};

}  // namespace mpsshim::interposer::forward
