// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/host_functions.hpp"

#include <chrono>

#include <pthread.h>

#include "gen/api_declarations.hpp"
#include "interposer/forward/graphs/capture.hpp"
#include "interposer/library_thread.hpp"
#include "interposer/local/acting_session.hpp"
#include "interposer/local/contexts.hpp"
#include "interposer/local/devices.hpp"
#include "interposer/log.hpp"

namespace mpsshim::interposer::forward {

namespace {

constexpr std::chrono::seconds kLaneIdleTime{5};

}  // namespace

HostFunctions& HostFunctions::instance() {
  return PerSession<HostFunctions>::get([] { return new HostFunctions(); });
}

HostFunctions::Lane& HostFunctions::lane_of(const Stream& stream) {
  const std::lock_guard lock(mutex_);
  Lane& lane = lanes_[stream.word];
  lane.owner = this;
  lane.word = stream.word;
  return lane;
}

// True: the lane has a thread, and keeps it until the item is there or withdraw() was called.
bool HostFunctions::announce(Lane& lane) {
  const std::lock_guard lock(lane.mutex);
  if (!lane.has_thread) {
    lane.has_thread = start_library_thread(thread_main, &lane);
    if (!lane.has_thread) return false;
  }
  ++lane.announced;
  return true;
}

void HostFunctions::withdraw(Lane& lane) {
  const std::lock_guard lock(lane.mutex);
  --lane.announced;
}

CUresult HostFunctions::enqueue(Stream& stream, const HostTask& task) {
  Lane& lane = lane_of(stream);
  std::list<Item> one;
  one.push_back(Item{task, 0, 0});
  if (!announce(lane)) return CUDA_ERROR_OUT_OF_MEMORY;
  const unsigned counted = task.own == nullptr ? 1 : 0;
  under_way_.fetch_add(counted, std::memory_order_relaxed);
  // The item takes its place under the channel's lock, so that items are in the order of their records. Nothing in there allocates.
  const CUresult error = session().channel().post<proto::HostFunctionRecord>(stream.id, 0, [&](proto::HostFunctionRecord& record, std::byte*, Place) {
    Item& item = one.front();
    item.fence_value = record.fence_value = next_fence(stream);
    item.number = record.number = ++lane.last_number;
    stream.has_work.store(true, std::memory_order_relaxed);  // what is held back is not covered by that fence
    stream.has_visible_work.store(true, std::memory_order_relaxed);
    const std::lock_guard lock(lane.mutex);
    lane.items.splice(lane.items.end(), one);
  });
  withdraw(lane);
  if (error != CUDA_SUCCESS) under_way_.fetch_sub(counted, std::memory_order_release);
  if (error == CUDA_SUCCESS) lane.arrived.notify_one();
  return error;
}

void* HostFunctions::thread_main(void* lane) {
  pthread_setname_np(pthread_self(), "mpsshim-host");
  forbid_calls();
  const ActingSession acting(static_cast<Lane*>(lane)->owner->session_);
  serve(*static_cast<Lane*>(lane));
  return nullptr;
}

void HostFunctions::serve(Lane& lane) {
  std::unique_lock lock(lane.mutex);
  for (;;) {
    const bool is_there = lane.arrived.wait_for(lock, kLaneIdleTime, [&]() REQUIRES(lane.mutex) { return !lane.items.empty(); });
    if (!is_there) {
      if (lane.announced != 0) continue;
      lane.has_thread = false;
      return;
    }
    std::list<Item> taken;
    taken.splice(taken.end(), lane.items, lane.items.begin());
    lock.unlock();
    lane.owner->run(lane, taken.front());
    lock.lock();
  }
}

void HostFunctions::run(Lane& lane, const Item& item) {
  const CUresult status = session().wait_fence(lane.word, item.fence_value, "the work in front of a host function");
  if (status == CUDA_SUCCESS) session().take_output();
  const HostTask& task = item.task;
  if (task.own != nullptr) {
    if (const CUresult error = status == CUDA_SUCCESS ? task.own() : CUDA_SUCCESS; error != CUDA_SUCCESS) {
      log_line(
          "A copy between devices, or a wait for another device's event, has failed in its stream's order (CUDA error %d): calls of device %d fail "
          "from now on.",
          static_cast<int>(error), session_device());
      (void)session().give_up(error);
    }
  } else {
    const std::lock_guard one_at_a_time(running_);
    if (task.callback != nullptr) {
      task.callback(task.handle, status, task.user_data);
    } else if (status == CUDA_SUCCESS) {
      task.function(task.user_data);
    }
  }
  if (task.own == nullptr) under_way_.fetch_sub(1, std::memory_order_release);
  if (ManagedMemory::in_use()) ManagedMemory::instance().look_again();
  session().fences().release_host(lane.word, item.number);
  session().channel().link()->wake_executor();
}

}  // namespace mpsshim::interposer::forward

namespace mpsshim::interposer::api {

using namespace forward;

namespace {

// A callback is told of errors, which a node cannot.
CUresult capture_host_task(Stream& stream, const HostTask& task) {
  if (task.function == nullptr) return Captures::instance().refuse(stream);
  WorkRef work;
  if (const CUresult error = make_host_work({task.function, task.user_data}, work); error != CUDA_SUCCESS) return error;
  return Captures::instance().add(stream, std::move(work));
}

CUresult enqueue(CUstream handle, const HostTask& task) {
  if (const CUresult error = begin_on(handle); error != CUDA_SUCCESS) return error;
  Stream* stream = Streams::instance().resolve(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->is_captured.load(std::memory_order_relaxed)) return capture_host_task(*stream, task);
  return HostFunctions::instance().enqueue(*stream, task);
}

}  // namespace

CUresult cuLaunchHostFunc(CUstream hStream, CUhostFn fn, void* userData) {
  if (fn == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return enqueue(hStream, {{}, fn, nullptr, hStream, userData});
}

CUresult cuStreamAddCallback(CUstream hStream, CUstreamCallback callback, void* userData, unsigned int flags) {
  if (callback == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return enqueue(hStream, {{}, nullptr, callback, hStream, userData});
}

}  // namespace mpsshim::interposer::api
