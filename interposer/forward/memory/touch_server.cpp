// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/memory/touch_server.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <iterator>
#include <span>
#include <utility>

#include <pthread.h>

#include "interposer/cancellation.hpp"
#include "interposer/environment.hpp"
#include "interposer/forward/begin.hpp"
#include "interposer/forward/memory/managed_advice.hpp"
#include "interposer/forward/other_sessions.hpp"
#include "interposer/forward/streams.hpp"
#include "interposer/library_thread.hpp"
#include "interposer/local/acting_session.hpp"
#include "interposer/log.hpp"
#include "proto/futex.hpp"

namespace mpsshim::interposer::forward {

namespace {

// Work that overtakes a touch is held; then it goes on, since what the touch waits for may wait for it, and is held for twice as long: thousands of
// launches may be in front.
constexpr std::chrono::milliseconds kLongestHold{800};
constexpr std::chrono::microseconds kLook{20};  // as long as that it looks without sleeping
constexpr std::uint64_t kShortSleepUs = 50, kLongSleepUs = 1'000, kIdleSleepUs = 1'000'000;
constexpr std::chrono::milliseconds kLookAtSession{20};

}  // namespace

std::unique_ptr<TouchWatch> TouchWatch::make() {
  std::unique_ptr<TouchWatch> watch;
  const std::string_view way = environment_value(Variable::managed_touches);
  if (way != "signal") watch = make_userfault_watch();
  return watch != nullptr || way == "userfaultfd" ? std::move(watch) : make_signal_watch();
}

bool TouchServer::start(TouchWatch& watch) {
  auto* server = new TouchServer(watch);  // never destroyed
  if (start_library_thread(thread_main, server)) return true;
  delete server;
  return false;
}

void* TouchServer::thread_main(void* server) {
  pthread_setname_np(pthread_self(), "mpsshim-touch");
  const ActingSession acting(static_cast<TouchServer*>(server)->session_);
  static_cast<TouchServer*>(server)->serve();
}

void TouchServer::serve() {
  const NoCancellation hold;
  for (;;) {
    bool has_moved = false;
    for (Pending arrived; watch_.next(arrived.touch); arrived = {}) {
      pending_.push_back(std::move(arrived));
      has_moved = true;
    }
    for (auto each = pending_.begin(); each != pending_.end();) {
      const Stage before = each->stage;
      const bool is_answered = step(*each);
      has_moved |= is_answered || each->stage != before;
      each = is_answered ? pending_.erase(each) : std::next(each);
    }
    if (next_end_ <= Clock::now()) next_end_ = end_spells();
    pause(has_moved);
  }
}

TouchServer::Clock::time_point TouchServer::end_spells() {
  const std::lock_guard lock(memory_.order_);
  const auto now = Clock::now();
  auto next = Clock::time_point::max();
  for (const auto& [address, allocation] : memory_.allocations_) {
    for (const ManagedMemory::Beside& beside : allocation->beside) next = std::min(next, beside.until);
  }
  if (next > now) return next;
  (void)memory_.end_beside();  // an error: the session has ended, which the next touch learns
  return Clock::time_point::max();
}

void TouchServer::pause(bool has_moved) {
  const auto now = Clock::now();
  if (pending_.empty()) {
    if (next_end_ == Clock::time_point::max()) return watch_.sleep(kIdleSleepUs);
    const auto left = std::chrono::ceil<std::chrono::microseconds>(next_end_ - now).count();
    return left > 0 ? watch_.sleep(static_cast<std::uint64_t>(left)) : void();
  }
  if (has_moved) moved_ = now;
  if (now - moved_ < kLook) return proto::cpu_relax();
  watch_.sleep(now - moved_ < std::chrono::milliseconds(5) ? kShortSleepUs : kLongSleepUs);
}

bool TouchServer::step(Pending& pending) {
  if (pending.stage == Stage::arrived) return arrive(pending);
  if (has_ended(pending)) return pending.stage == Stage::beside ? open_beside(pending) : go_on(pending);
  if (pending.stage == Stage::waiting && goes_beside(pending)) return begin_beside(pending);
  const auto now = Clock::now();
  if (now - looked_ < kLookAtSession) return false;
  looked_ = now;
  if (has_several_sessions()) forget_lost();
  const CUresult error = session().look();
  return error != CUDA_SUCCESS && give_up(pending, error);
}

bool TouchServer::arrive(Pending& pending) {
  {
    const std::lock_guard lock(memory_.order_);
    ManagedMemory::Allocation* allocation = memory_.find(pending.touch.address);
    if (allocation == nullptr) {
      watch_.answer(pending.touch, false);
      return true;
    }
    const std::size_t block = (pending.touch.address - allocation->pages.address) / allocation->block_bytes;
    const bool is_write = pending.touch.is_write;
    if (allocation->coherence.opening(block, is_write, watch_.tells_writes()).blocks.count == 0) {
      // Open meanwhile, for another thread. The page is opened once more: where a part cannot be closed more than that part was, and the kernel may
      // have taken a page out of the table.
      const std::uint64_t page = pending.touch.address / proto::kPageBytes * proto::kPageBytes;
      (void)watch_.open({page, proto::kPageBytes}, allocation->coherence.access(block));
      watch_.answer(pending.touch, true);
      return true;
    }
    if (allocation->is_served) return false;
    allocation->is_served = true;
    pending.allocation = allocation->pages.address;
  }
  return fence(pending);
}

// Not under order_: Streams' mutex comes first.
bool TouchServer::fence(Pending& pending) {
  ManagedMemory::Attached attached{};
  proto::StreamId stream;
  std::vector<FenceTarget> targets;
  {
    const std::lock_guard lock(memory_.order_);
    const ManagedMemory::Allocation* allocation = memory_.find(pending.allocation);
    if (allocation == nullptr) return let_go(pending);
    pending.posted = memory_.posted(*allocation);
    targets = allocation->earlier;
    attached = allocation->attached;
    stream = allocation->stream;
  }
  Streams& streams = Streams::instance();
  const bool is_everybody = attached == ManagedMemory::Attached::everybody;
  CUresult error = streams.fence_managed(is_everybody ? proto::StreamId{} : memory_.copies_->id, targets);  // uploads are everybody's affair
  if (error == CUDA_SUCCESS && attached == ManagedMemory::Attached::stream) error = streams.fence_managed(stream, targets);
  if (error != CUDA_SUCCESS) return give_up(pending, error);
  pending.targets.clear();
  await(pending, targets);
  if (is_everybody) fence_others(pending);
  pending.stage = Stage::waiting;
  return has_ended(pending) && go_on(pending);
}

void TouchServer::await(Pending& pending, const std::vector<FenceTarget>& targets) const {
  for (const FenceTarget& target : targets) pending.targets.push_back({ActingSession::index(), target});
}

// Work on other devices, which reach the memory. A session that is over has none.
void TouchServer::fence_others(Pending& pending) const {
  for_each_other_session([&](std::uint32_t) {
    std::vector<FenceTarget> targets;
    if (is_session_alive() && Streams::instance().fence_managed({}, targets) == CUDA_SUCCESS) await(pending, targets);
  });
}

void TouchServer::forget_lost() {
  const auto is_lost = [&](const Awaited& awaited) {
    const ActingSession acting(awaited.session);
    return awaited.session != session_ && session().look() != CUDA_SUCCESS;
  };
  for (Pending& pending : pending_) std::erase_if(pending.targets, is_lost);
}

bool TouchServer::has_ended(const Pending& pending) {
  return std::ranges::all_of(pending.targets, [](const Awaited& awaited) {
    const ActingSession acting(awaited.session);
    return session().fences().reached(awaited.target.word, awaited.target.value);
  });
}

void TouchServer::overtaken(Pending& pending) {
  memory_.held_until_ = Clock::now() + pending.hold;
  pending.hold = std::min(pending.hold * 2, kLongestHold);
}

// What was waited for has ended.
bool TouchServer::go_on(Pending& pending) {
  CUresult error = CUDA_SUCCESS;
  {
    const std::lock_guard lock(memory_.order_);
    ManagedMemory::Allocation* allocation = memory_.find(pending.allocation);
    if (allocation == nullptr) return let_go(pending);
    if (memory_.posted(*allocation) == pending.posted) {
      allocation->is_long_to_read = allocation->is_long_to_write = false;
      error = memory_.end_beside();
      if (error == CUDA_SUCCESS && pending.stage == Stage::downloading) return open(*allocation, pending);
      if (error == CUDA_SUCCESS) error = download(*allocation, pending);
      if (error == CUDA_SUCCESS) return pending.opening.blocks.count == 0 || !pending.opening.downloads ? open(*allocation, pending) : false;
    } else {
      overtaken(pending);
    }
  }
  return error != CUDA_SUCCESS ? give_up(pending, error) : fence(pending);
}

CUresult TouchServer::download(ManagedMemory::Allocation& allocation, Pending& pending) {
  allocation.earlier.clear();
  for (const ManagedMemory::Prefetch& prefetch : allocation.prefetches) {
    if (prefetch.posted == pending.posted) allocation.coherence.downloaded(prefetch.blocks);
  }
  allocation.prefetches.clear();
  const std::size_t block = (pending.touch.address - allocation.pages.address) / allocation.block_bytes;
  pending.opening = allocation.coherence.opening(block, pending.touch.is_write, watch_.tells_writes());
  if (!pending.opening.downloads) return CUDA_SUCCESS;
  const AddressRange range = allocation.range_of(pending.opening.blocks);
  const std::uint64_t to = allocation.shadow + (range.address - allocation.pages.address);
  if (const CUresult error = memory_.post_copy(*memory_.copies_, to, false, range.address, range.size_bytes); error != CUDA_SUCCESS) return error;
  FenceTarget target{memory_.copies_->word, 0};
  if (const CUresult error = Streams::instance().fence(*memory_.copies_, target.value); error != CUDA_SUCCESS) return error;
  pending.targets = {{session_, target}};
  pending.stage = Stage::downloading;
  return CUDA_SUCCESS;
}

// The memory has been freed under the touch: whoever touched meets what is there now.
bool TouchServer::let_go(const Pending& pending) {
  watch_.answer(pending.touch, false);
  memory_.held_until_.reset();
  memory_.goes_on_.notify_all();
  return true;
}

bool TouchServer::open(ManagedMemory::Allocation& allocation, Pending& pending) {
  allocation.coherence.opened(pending.opening);
  return let_in(allocation, pending);
}

bool TouchServer::let_in(ManagedMemory::Allocation& allocation, Pending& pending) {
  const AddressRange range = allocation.range_of(pending.opening.blocks);
  allocation.is_served = false;
  if (!watch_.open(range, pending.opening.access)) {
    log_line("Managed memory at %#llx could not be opened for this program (error %d).", static_cast<unsigned long long>(range.address), errno);
  }
  watch_.answer(pending.touch, true);
  memory_.held_until_.reset();
  memory_.goes_on_.notify_all();
  return true;
}

// The session has ended, or the memory: whoever touched goes on with what there is on the host.
bool TouchServer::give_up(Pending& pending, CUresult error) {
  const std::lock_guard lock(memory_.order_);
  ManagedMemory::Allocation* allocation = memory_.find(pending.touch.address);
  if (allocation != nullptr) {
    if (!std::exchange(has_given_up_, true)) {
      log_line("The contents of managed memory at %#llx are lost to this program, whose session has ended (error %d): it goes on with older ones.",
               static_cast<unsigned long long>(pending.touch.address), static_cast<int>(error));
    }
    const std::size_t block = (pending.touch.address - allocation->pages.address) / allocation->block_bytes;
    pending.opening = {{block, 1}, HostAccess::write, false};
    return open(*allocation, pending);
  }
  return let_go(pending);
}

}  // namespace mpsshim::interposer::forward
