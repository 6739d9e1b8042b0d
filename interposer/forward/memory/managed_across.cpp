// SPDX-License-Identifier: Apache-2.0
// Managed memory that migrates in a process on several devices. An allocation moves between the host and one device, its home, whose session has it;
// the others' devices reach it there, as peers do (PeerAccess), at the same address. So work of any session may use it, and a touch waits for the
// work of all.
#include <algorithm>
#include <cstdint>
#include <mutex>
#include <vector>

#include "interposer/forward/memory/managed_memory.hpp"
#include "interposer/forward/memory/managed_residence.hpp"
#include "interposer/forward/other_sessions.hpp"
#include "interposer/forward/peer_access.hpp"
#include "interposer/forward/streams.hpp"
#include "interposer/local/acting_session.hpp"
#include "interposer/local/devices.hpp"

namespace mpsshim::interposer::forward {

namespace {

constexpr std::chrono::milliseconds kMostForReturn{2'000};  // longer, and a kernel may be waiting for the program

PeerAccess::Reason reason_for(std::uint32_t by, std::uint32_t owner) { return {by, owner, 0, 0}; }

// f(index) for each other session, of those that are there and not over.
template <typename F>
void for_each_live(F&& f) {
  for_each_other_session([&](std::uint32_t index) {
    if (is_session_alive()) f(index);
  });
}

// Where the hardware cannot the memory is its home's alone.
CUresult let_reach(std::uint32_t by, CUdevice device, std::uint32_t owner, CUdevice home) {
  if (!can_access(device, home)) return CUDA_SUCCESS;
  const CUresult error = PeerAccess::instance().enable(reason_for(by, owner));
  return error == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED ? CUDA_SUCCESS : error;
}

}  // namespace

bool ManagedMemory::is_reached_by(std::uint32_t by) { return PeerAccess::instance().is_enabled(reason_for(by, ActingSession::index())); }

// Before the program has the address.
CUresult ManagedMemory::let_others_reach() {
  const std::uint32_t own = ActingSession::index();
  const CUdevice home = session_device();
  CUresult result = CUDA_SUCCESS;
  for_each_live([&](std::uint32_t by) {
    const CUresult error = let_reach(by, session_device(), own, home);
    if (error != CUDA_SUCCESS && session().look() == CUDA_SUCCESS) result = error;
  });
  return result;
}

// What another thread allocates meanwhile is opened by that thread, which finds this session among those that are there.
CUresult ManagedMemory::join() {
  if (!in_use()) return CUDA_SUCCESS;
  const std::uint32_t own = ActingSession::index();
  const CUdevice device = session_device();
  CUresult result = CUDA_SUCCESS;
  for_each_live([&](std::uint32_t owner) {
    bool has_any = false;
    ManagedMemory& theirs = instance();
    {
      const std::lock_guard lock(theirs.order_);
      has_any = !theirs.allocations_.empty();
    }
    // What lives on the host would be the chunk's own memory there.
    if (has_any && !ManagedResidence(theirs).bring_back(kMostForReturn)) result = CUDA_ERROR_NOT_READY;
    const CUresult error = has_any ? let_reach(own, device, owner, session_device()) : CUDA_SUCCESS;
    if (error != CUDA_SUCCESS && session().look() == CUDA_SUCCESS) result = error;
  });
  return result;
}

bool ManagedMemory::devices_work() {
  bool is_any = false;
  for_each_live([&](std::uint32_t) {
    std::vector<FenceTarget> pending;
    is_any |= Streams::instance().fence_managed({}, pending) != CUDA_SUCCESS || !pending.empty();
  });
  return is_any;
}

// What the program has written is on its way in a stream of this session, behind which only this session's work is.
void ManagedMemory::close_for_another() {
  if (watch_ != nullptr) watch_->refresh();
  CUresult error = end_beside();
  for (auto& [address, allocation] : allocations_) {
    if (error != CUDA_SUCCESS || allocation->attached != Attached::everybody || allocation->lives_on_host) continue;
    allocation->prefetches.clear();
    if (allocation->coherence.has_open_blocks()) error = close(*allocation, allocation->coherence.close());
  }
  count_post(nullptr);
  FenceTarget copied{copies_->word, 0};
  if (error == CUDA_SUCCESS) error = Streams::instance().fence(*copies_, copied.value);
  if (error == CUDA_SUCCESS && copied.value != 0) (void)session().wait_fence(copied.word, copied.value, "managed memory to reach its device");
}

// All in the order of the sessions' numbers, whoever posts, so two never wait for each other; and held until the work has been posted. What is to be
// waited for before that is waited for with nothing held.
void ManagedMemory::Work::close_all(const Stream& stream) NO_THREAD_SAFETY_ANALYSIS {
  const std::uint32_t count = session_count();
  for (std::uint32_t index = 0; index < count; ++index) {
    const ActingSession acting(index);
    enter(instance());
    instance().order_.unlock();
  }
  for (std::uint32_t index = 0; index < count; ++index) {
    const ActingSession acting(index);
    ManagedMemory& memory = instance();
    if (index != own_ && !is_session_alive()) continue;
    memory.order_.lock();
    if (index == own_) {
      close_own(memory, stream);
    } else if (memory.allocations_.empty()) {
      memory.order_.unlock();
    } else {
      memory.close_for_another();
      others_.push_back(index);
    }
  }
}

ManagedMemory::Work::Work(const Stream& stream) NO_THREAD_SAFETY_ANALYSIS : own_(ActingSession::index()) {
  if (has_several_sessions()) {
    close_all(stream);
  } else {
    enter(instance());
    close_own(instance(), stream);
  }
}

ManagedMemory::Work::~Work() NO_THREAD_SAFETY_ANALYSIS {
  instance().order_.unlock();
  for (const std::uint32_t index : others_) {
    const ActingSession acting(index);
    instance().order_.unlock();
  }
}

}  // namespace mpsshim::interposer::forward
