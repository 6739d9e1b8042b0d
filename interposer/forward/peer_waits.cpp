// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/peer_waits.hpp"

#include <algorithm>
#include <chrono>

#include <pthread.h>

#include "interposer/library_thread.hpp"
#include "interposer/local/acting_session.hpp"
#include "interposer/local/contexts.hpp"
#include "interposer/local/devices.hpp"
#include "interposer/log.hpp"

namespace mpsshim::interposer::forward {

namespace {

// Between two looks at the sessions that are waited for.
constexpr std::chrono::milliseconds kLookTime{10};
constexpr std::chrono::seconds kIdleTime{5};

// The acting session's streams wait for work of session `source`, which has failed.
CUresult fail_with(CUresult error, std::uint32_t source) {
  if (session().look() != CUDA_SUCCESS) return error;
  CUdevice device = 0;
  {
    const ActingSession acting(source);
    device = session_device();
  }
  log_line("A stream of device %d waits for work of device %d, which has failed (CUDA error %d): calls of device %d fail from now on.",
           session_device(), device, static_cast<int>(error), session_device());
  session().end_with(error);
  return error;
}

bool is_over(std::uint32_t source) {
  const ActingSession acting(source);
  return session().look() != CUDA_SUCCESS;
}

// The event of the acting session, if there is something to wait for.
CUresult find_pending(CUevent handle, Event*& event) {
  event = Events::instance().resolve(handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (event->shared) return CUDA_SUCCESS;
  if (event->is_captured.load(std::memory_order_relaxed)) return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  if (Events::is_complete(*event)) event = nullptr;
  return CUDA_SUCCESS;
}

}  // namespace

PeerWaits& PeerWaits::instance() {
  static PeerWaits& one = *new PeerWaits();
  return one;
}

CUresult PeerWaits::wait(Stream& stream, CUevent handle) {
  const std::uint32_t source = id_of<proto::HandleKind::event>(handle).realm();
  if (source >= session_count()) return CUDA_ERROR_INVALID_HANDLE;
  Event* event = nullptr;
  CUresult failed = CUDA_SUCCESS;
  {
    const ActingSession acting(source);
    failed = session().look();
    if (failed == CUDA_SUCCESS) {
      if (const CUresult error = find_pending(handle, event); error != CUDA_SUCCESS) return error;
    }
  }
  if (failed != CUDA_SUCCESS) return fail_with(failed, source);
  if (stream.is_captured.load(std::memory_order_relaxed)) return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  if (event == nullptr) return CUDA_SUCCESS;
  if (event->shared) return wait_for_shared(stream, source, *event->shared);
  Bridge& bridge = bridge_to(source, stream);
  {
    const std::lock_guard lock(bridge.mutex);
    const Relay* relay = nullptr;
    if (const CUresult error = pass_on(bridge, *event, relay); error != CUDA_SUCCESS) return is_over(source) ? fail_with(error, source) : error;
    if (const CUresult error = SharedEvents::wait_on_stream(relay->waiter, stream, SharedEvents::Abandoned::holds); error != CUDA_SUCCESS)
      return error;
  }
  return begin_watch();
}

CUresult PeerWaits::wait_for_shared(Stream& stream, std::uint32_t source, const SharedEvent& event) {
  const std::lock_guard lock(mutex_);
  SharedEvent& opened = opened_[{ActingSession::index(), event.slot}];
  if (opened.slot == nullptr || opened.generation != event.generation) {
    CUipcEventHandle name{};
    {
      const ActingSession acting(source);
      if (const CUresult error = SharedEvents::instance().name(event, name); error != CUDA_SUCCESS) return error;
    }
    SharedEvent now;
    const CUresult error = SharedEvents::instance().open(name, now);
    if (opened.slot != nullptr) SharedEvents::instance().destroy(opened);  // the slot is another event's
    opened = now;
    if (error != CUDA_SUCCESS) return error;
  }
  return SharedEvents::wait_on_stream(opened, stream);
}

PeerWaits::Bridge& PeerWaits::bridge_to(std::uint32_t source, const Stream& stream) {
  const std::uint32_t waiter = ActingSession::index();
  const std::lock_guard lock(mutex_);
  Bridge& bridge = bridges_[Key{source, waiter, stream.word}];
  bridge.source = source;
  bridge.waiter = waiter;
  return bridge;
}

CUresult PeerWaits::open(Bridge& bridge) {
  return bridge.stream != nullptr ? CUDA_SUCCESS : Streams::instance().create(CU_STREAM_NON_BLOCKING, 0, nullptr, bridge.stream);
}

// One that can be recorded without waiting; in the end there are as many as waits are ever under way.
CUresult PeerWaits::free_relay(Bridge& bridge, const Relay*& relay) {
  const auto found = std::ranges::find_if(bridge.relays, [](const Relay& one) { return SharedEvents::has_room(one.source); });
  if (found != bridge.relays.end()) {
    relay = &*found;
    return CUDA_SUCCESS;
  }
  Relay made;
  CUipcEventHandle name{};
  if (const CUresult error = SharedEvents::instance().create(made.source); error != CUDA_SUCCESS) return error;
  CUresult error = SharedEvents::instance().name(made.source, name);
  if (error == CUDA_SUCCESS) {
    const ActingSession acting(bridge.waiter);
    error = SharedEvents::instance().open(name, made.waiter);
  }
  if (error != CUDA_SUCCESS) {
    SharedEvents::instance().destroy(made.source);
    return error;
  }
  relay = &bridge.relays.emplace_back(made);
  return CUDA_SUCCESS;
}

CUresult PeerWaits::pass_on(Bridge& bridge, Event& event, const Relay*& relay) {
  const ActingSession acting(bridge.source);
  if (const CUresult error = open(bridge); error != CUDA_SUCCESS) return error;
  if (const CUresult error = free_relay(bridge, relay); error != CUDA_SUCCESS) return error;
  if (const CUresult error = Events::instance().wait_on_stream(event, *bridge.stream, CU_EVENT_WAIT_DEFAULT); error != CUDA_SUCCESS) return error;
  return SharedEvents::record(relay->source, *bridge.stream);
}

CUresult PeerWaits::begin_watch() {
  const std::lock_guard lock(mutex_);
  has_begun_ = true;
  if (is_idle_) began_.notify_one();
  if (has_thread_) return CUDA_SUCCESS;
  has_thread_ = start_library_thread(thread_main, this);
  return has_thread_ ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void* PeerWaits::thread_main(void* self) {
  pthread_setname_np(pthread_self(), "mpsshim-peers");
  forbid_calls();
  static_cast<PeerWaits*>(self)->serve();
  return nullptr;
}

void PeerWaits::serve() {
  std::vector<Bridge*> all;
  for (bool is_pending = false;;) {
    {
      std::unique_lock lock(mutex_);
      if (is_pending) {
        (void)began_.wait_for(lock, kLookTime);
      } else {
        is_idle_ = true;
        has_thread_ = began_.wait_for(lock, kIdleTime, [&]() REQUIRES(mutex_) { return has_begun_; });
        is_idle_ = false;
        if (!has_thread_) return;
      }
      has_begun_ = false;
      all.clear();
      for (auto& [key, bridge] : bridges_) all.push_back(&bridge);
    }
    is_pending = false;
    for (Bridge* bridge : all) is_pending |= look_at(*bridge);
  }
}

bool PeerWaits::look_at(Bridge& bridge) {
  const std::lock_guard lock(bridge.mutex);
  if (bridge.is_over || std::ranges::all_of(bridge.relays, [](const Relay& one) { return SharedEvents::has_reached_last(one.source); })) return false;
  CUresult error = CUDA_SUCCESS;
  {
    const ActingSession acting(bridge.source);
    error = session().look();  // if it has moved it is attached again, though no other thread calls
  }
  if (error == CUDA_SUCCESS) return true;
  bridge.is_over = true;
  const ActingSession acting(bridge.waiter);
  (void)fail_with(error, bridge.source);
  return false;
}

}  // namespace mpsshim::interposer::forward
