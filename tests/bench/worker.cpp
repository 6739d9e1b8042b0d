// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/worker.hpp"

#include <csignal>
#include <cstdio>
#include <cstring>

#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "tests/bench/tasks.hpp"

namespace mpsshim::bench {

namespace {

Slot* own_slot = nullptr;

void carry_out(Work& work) {
  // The bystander prepares itself before the moment that is measured.
  if (work.order.task != Task::bystander) wait_until(work.order.begin_ns);
  switch (work.order.task) {
    case Task::leave: return;
    case Task::launch_call: return launch_call(work);
    case Task::storm: return storm(work);
    case Task::cluster_storm: return cluster_storm(work);
    case Task::launch_sync: return launch_sync(work);
    case Task::occupy: return occupy(work);
    case Task::allocate: return allocate(work);
    case Task::copy_small: return copy_small(work);
    case Task::copy_large: return copy_large(work);
    case Task::paced_sync: return paced_sync(work);
    case Task::paused_sync: return paused_sync(work);
    case Task::paused_copy: return paused_copy(work);
    case Task::waited_kernel: return waited_kernel(work);
    case Task::upload_steps: return upload_steps(work);
    case Task::long_kernels: return long_kernels(work);
    case Task::endless_kernel: return endless_kernel(work);
    case Task::module_rounds: return module_rounds(work);
    case Task::fresh_image: return fresh_images(work);
    case Task::check_only: return check_only(work);
    case Task::guilty: return guilty(work);
    case Task::bystander: return bystander(work);
  }
}

}  // namespace

void fail(const std::string& reason) {
  if (own_slot != nullptr) {
    std::strncpy(own_slot->reason, reason.c_str(), sizeof own_slot->reason - 1);
    own_slot->state.store(WorkerState::failed, std::memory_order_release);
  }
  std::fprintf(stderr, "mpsbench: worker %d: %s\n", static_cast<int>(getpid()), reason.c_str());
  _exit(1);  // whatever threads a driver has in here are not waited for
}

int run_worker(int stage_fd, unsigned slot_number) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  void* memory = slot_number < kMaxWorkers ? mmap(nullptr, sizeof(Stage), PROT_READ | PROT_WRITE, MAP_SHARED, stage_fd, 0) : MAP_FAILED;
  if (memory == MAP_FAILED) {
    std::fprintf(stderr, "mpsbench: --worker is for mpsbench itself\n");
    return 2;
  }
  close(stage_fd);
  Stage& stage = *static_cast<Stage*>(memory);
  Slot& slot = stage.slots[slot_number];
  const std::span<float> samples_us = slot_number < kSampledWorkers ? std::span(stage.sample_us[slot_number]) : std::span<float>();
  own_slot = &slot;
  Device device(slot.image, slot.launches_first);
  slot.first_launch_ns = now_ns();
  slot.state.store(WorkerState::ready, std::memory_order_release);
  for (std::uint32_t done = 0;;) {
    // Pairs with the store in Crowd::order.
    const std::uint32_t ordered = slot.ordered.load(std::memory_order_acquire);
    if (ordered == done) {
      sleep_while(slot.ordered, done);
      continue;
    }
    if (slot.order.task == Task::leave) return 0;
    Outcome outcome;
    Work work{device, slot.order, slot, outcome, samples_us};
    carry_out(work);
    slot.outcome = outcome;
    done = ordered;
    slot.finished.store(done, std::memory_order_release);  // pairs with the load in Crowd::wait_for
  }
}

}  // namespace mpsshim::bench
