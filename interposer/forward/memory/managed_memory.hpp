// SPDX-License-Identifier: Apache-2.0
// Managed memory that lives where it is used (docs/memory.md, *Managed memory*). An allocation is device memory of this process and, at the same
// address in this process, a shared mapping of a pinned segment, which the executor has at another address (the shadow). Coherence says which of
// the two is current, block by block; TouchWatch tells of this process's touches; a thread of the library serves them (touch_server.cpp).
//
// Work that may use it is posted through Work, which closes what is open and posts the uploads first. Between that and the work's own record no
// block is opened: both happen under order_. A touch is answered when all that was posted by then has ended, and nothing more has been posted; or,
// where that takes long, beside it: the program has a copy of a block for some milliseconds, and what it has changed there goes to the device.
// Any thread; the lock order is Streams' mutex, then order_, then the channel's lock.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "gen/cuda_api.hpp"
#include "interposer/forward/memory/address_range.hpp"
#include "interposer/forward/memory/managed_allocation.hpp"
#include "interposer/forward/memory/touch_watch.hpp"
#include "interposer/forward/stream.hpp"
#include "proto/channel.hpp"
#include "proto/cond_var.hpp"
#include "proto/ids.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::interposer::forward {

class ManagedMemory {
 public:
  [[nodiscard]] static ManagedMemory& instance();

  // True while there is memory that migrates. Programs without it pay for this look at each launch, and nothing else.
  [[nodiscard]] static bool in_use() { return in_use_.load(std::memory_order_relaxed) != 0; }

  [[nodiscard]] CUresult allocate(std::uint64_t bytes, CUcontext context, void*& pointer);
  // For variables of modules, which lie in it at `variables`, relative to its start and in order. They are found one by one.
  [[nodiscard]] CUresult allocate_variables(std::uint64_t bytes, std::vector<AddressRange> variables, void*& pointer);
  // CUDA_ERROR_INVALID_VALUE if `address` is no allocation's base. Waits for this process's own work.
  [[nodiscard]] CUresult free(std::uint64_t address);
  // The same without waiting: nothing uses it any more.
  [[nodiscard]] CUresult release(std::uint64_t address);
  void free_all_of(CUcontext context);

  struct Found {
    AddressRange range;
    CUcontext context = nullptr;
    std::uint64_t buffer_id = 0;
    bool is_variable = false;
  };
  // True if the address lies in memory that migrates; `found`: the allocation or variable there, if any.
  [[nodiscard]] bool look(std::uint64_t address, std::optional<Found>& found) const;

  // cuStreamAttachMemAsync: whose work a touch waits for from now on, and which work the memory is closed for. `stream`: of this session; null:
  // another's, which is nobody's alone.
  [[nodiscard]] CUresult attach(std::uint64_t address, unsigned flags, const Stream* stream);
  // Pages of one allocation. In the stream's order; what cannot be moved ahead is moved when it is touched.
  [[nodiscard]] CUresult prefetch_to_device(AddressRange pages);
  [[nodiscard]] CUresult prefetch_to_host(AddressRange pages, Stream& stream);

  // What Work waits for may have ended: a host function.
  void look_again() { goes_on_.notify_all(); }

  // The acting session, which has just begun, comes to reach what migrates to and from other sessions' devices (managed_across.cpp).
  [[nodiscard]] static CUresult join();
  // Whether session `by` reaches what migrates to and from the acting session's device.
  [[nodiscard]] static bool is_reached_by(std::uint32_t by);

  // From here to its end no touch is answered, of memory of any session. error(): nothing may be posted.
  class Work {
   public:
    explicit Work(const Stream& stream);
    ~Work();
    Work(const Work&) = delete;
    [[nodiscard]] CUresult error() const { return error_; }

   private:
    // Waits while a touch is to come first, or a host function.
    static void enter(ManagedMemory& memory) ACQUIRE(memory.order_);
    void close_own(ManagedMemory& memory, const Stream& stream) REQUIRES(memory.order_);
    void close_all(const Stream& stream);

    const std::uint32_t own_;
    std::vector<std::uint32_t> others_;  // sessions whose order_ is held as well
    CUresult error_ = CUDA_SUCCESS;
  };

 private:
  friend class ManagedResidence;
  friend class TouchServer;
  friend class Work;

  using Allocation = ManagedAllocation;
  using Attached = Allocation::Attached;
  using Prefetch = Allocation::Prefetch;
  using Beside = Allocation::Beside;
  // On its way to the device.
  struct Change {
    std::uint64_t device = 0;
    std::uint64_t host = 0;
    std::size_t bytes = 0;
    std::chrono::steady_clock::time_point until;  // the block's
  };

  static constexpr std::uint64_t kBlockBytes = 64 << 10;
  static constexpr std::size_t kMergedBytes = 4;
  static constexpr std::size_t kBlocksOfLargest = 1 << 16;

  [[nodiscard]] CUresult start() REQUIRES(start_mutex_);
  [[nodiscard]] CUresult make(std::uint64_t bytes, std::unique_ptr<Allocation>& made);
  [[nodiscard]] CUresult map(Allocation& allocation);
  void unmap(const Allocation& allocation);
  [[nodiscard]] CUresult zero(const Allocation& allocation);
  [[nodiscard]] Allocation* find(std::uint64_t address) const REQUIRES(order_);
  [[nodiscard]] bool concerns(const Allocation& allocation, const Stream& stream) const;
  [[nodiscard]] CUresult close(Allocation& allocation, const Coherence::Closing& closing) REQUIRES(order_);
  [[nodiscard]] CUresult post_upload(const Allocation& allocation, BlockRun blocks) REQUIRES(order_);
  [[nodiscard]] CUresult close_for(const Stream& stream) REQUIRES(order_);
  // The same for work of another session, and waits until what it uses is there. What fails is this session's affair.
  void close_for_another() REQUIRES(order_);
  [[nodiscard]] CUresult add(std::unique_ptr<Allocation> made);
  [[nodiscard]] static CUresult let_others_reach();
  // Whether another device of the process has work under way that may use managed memory.
  [[nodiscard]] static bool devices_work();
  // Takes back what the program has beside kernels, and posts what it has changed there.
  [[nodiscard]] CUresult end_beside() REQUIRES(order_);
  [[nodiscard]] CUresult end_reading_beside(Allocation& allocation, std::size_t block) REQUIRES(order_);
  static void note_changes(const Allocation& allocation, const Beside& beside, std::vector<Change>& changes);
  [[nodiscard]] CUresult post_copy(Stream& stream, std::uint64_t to, bool to_device, std::uint64_t from, std::uint64_t bytes) REQUIRES(order_);
  void count_post(const Stream* stream) REQUIRES(order_);
  [[nodiscard]] std::uint64_t posted(const Allocation& allocation) const REQUIRES(order_);

  static inline std::atomic<std::uint32_t> in_use_{0};  // allocations, of all sessions NOLINT(readability-identifier-naming): a private member

  Mutex start_mutex_;
  bool has_failed_ GUARDED_BY(start_mutex_) = false;
  std::unique_ptr<TouchWatch> watch_;  // set once, before the first allocation
  Stream* copies_ = nullptr;           // of the library's own: never held up by anything of the program's; set likewise

  mutable Mutex order_;
  CondVar goes_on_;
  std::map<std::uint64_t, std::unique_ptr<Allocation>> allocations_ GUARDED_BY(order_);  // by address
  std::uint64_t posted_ GUARDED_BY(order_) = 0;
  std::array<std::uint64_t, proto::kFenceWords> posted_by_word_ GUARDED_BY(order_){};
  // A touch that work has overtaken again and again: no more is posted until then, or until it has been answered.
  std::optional<std::chrono::steady_clock::time_point> held_until_ GUARDED_BY(order_);
};

}  // namespace mpsshim::interposer::forward
