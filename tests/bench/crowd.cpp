// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/crowd.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <new>
#include <thread>

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

namespace mpsshim::bench {

namespace {

constexpr auto kLook = std::chrono::milliseconds(1);  // between two looks at the workers

std::string how_it_ended(int status) {
  if (WIFSIGNALED(status)) return "ended by signal " + std::to_string(WTERMSIG(status));
  return "ended with status " + std::to_string(WEXITSTATUS(status));
}

// The parent's environment, with these put in the place of those of the same name.
std::vector<char*> merged_environment(std::vector<std::string>& changes) {
  std::vector<char*> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view line(*entry);
    bool is_replaced = false;
    for (const std::string& change : changes) is_replaced |= line.substr(0, line.find('=') + 1) == change.substr(0, change.find('=') + 1);
    if (!is_replaced) result.push_back(*entry);
  }
  for (std::string& change : changes) result.push_back(change.data());
  result.push_back(nullptr);
  return result;
}

}  // namespace

Crowd::Crowd(std::vector<std::string> environment) : environment_(std::move(environment)) {
  stage_fd_ = memfd_create("mpsbench-stage", 0);
  if (stage_fd_ < 0 || ftruncate(stage_fd_, sizeof(Stage)) != 0) throw Failure(std::string("no shared memory for the workers: ") + strerror(errno));
  void* memory = mmap(nullptr, sizeof(Stage), PROT_READ | PROT_WRITE, MAP_SHARED, stage_fd_, 0);
  if (memory == MAP_FAILED) throw Failure(std::string("no shared memory for the workers: ") + strerror(errno));
  stage_ = new (memory) Stage();
}

Crowd::~Crowd() {
  for (unsigned i = 0; i < size(); ++i) {
    if (pids_[i] == 0) continue;
    cancel(i);
    order(i, Order{});
  }
  reap(5);
  for (const pid_t pid : pids_) {
    if (pid != 0) kill(pid, SIGKILL);
  }
  reap(5);
  munmap(stage_, sizeof(Stage));
  close(stage_fd_);
}

unsigned Crowd::start(std::uint64_t image, bool launches_first) {
  const unsigned number = size();
  if (number == kMaxWorkers) throw Failure("mpsbench has room for " + std::to_string(kMaxWorkers) + " workers");
  stage_->slots[number].image = image;
  stage_->slots[number].launches_first = launches_first;
  const std::string fd_text = std::to_string(stage_fd_);
  const std::string slot_text = std::to_string(number);
  const char* arguments[] = {"mpsbench", "--worker", fd_text.c_str(), slot_text.c_str(), nullptr};
  const std::vector<char*> environment = merged_environment(environment_);
  const pid_t child = vfork();
  if (child == 0) {
    execve("/proc/self/exe", const_cast<char**>(arguments), environment.data());
    _exit(127);
  }
  if (child < 0) throw Failure(std::string("no process for a worker: ") + strerror(errno));
  pids_.push_back(child);
  return number;
}

void Crowd::require_alive(unsigned slot) {
  const Slot& worker = stage_->slots[slot];
  const auto who = [slot] { return "worker " + std::to_string(slot) + ": "; };
  if (worker.state.load(std::memory_order_acquire) == WorkerState::failed) throw Failure(who() + worker.reason);
  int status = 0;
  if (pids_[slot] == 0) throw Failure(who() + "has ended before");
  if (waitpid(pids_[slot], &status, WNOHANG) != pids_[slot]) return;
  pids_[slot] = 0;
  // It may have failed with a reason between the two looks.
  const bool has_reason = worker.state.load(std::memory_order_acquire) == WorkerState::failed;
  throw Failure(who() + (has_reason ? worker.reason : how_it_ended(status)));
}

void Crowd::wait_ready(double limit_s) {
  const std::int64_t limit_ns = now_ns() + static_cast<std::int64_t>(limit_s * 1e9);
  for (unsigned i = 0; i < size(); ++i) {
    while (stage_->slots[i].state.load(std::memory_order_acquire) != WorkerState::ready) {
      require_alive(i);
      if (now_ns() > limit_ns)
        throw Failure("worker " + std::to_string(i) + ": not ready within " + std::to_string(static_cast<int>(limit_s)) + " s");
      std::this_thread::sleep_for(kLook);
    }
  }
}

void Crowd::order(unsigned slot, const Order& order) {
  Slot& worker = stage_->slots[slot];
  worker.order = order;
  worker.ordered.fetch_add(1, std::memory_order_release);  // pairs with the load in run_worker
  wake_all(worker.ordered);
}

void Crowd::cancel(unsigned slot) {
  Slot& worker = stage_->slots[slot];
  worker.cancelled.store(worker.ordered.load(std::memory_order_relaxed), std::memory_order_release);
}

const Outcome& Crowd::wait_for(unsigned slot, double grace_s) {
  const Slot& worker = stage_->slots[slot];
  const std::int64_t limit_ns = std::max(worker.order.end_ns, now_ns()) + static_cast<std::int64_t>(grace_s * 1e9);
  while (worker.finished.load(std::memory_order_acquire) != worker.ordered.load(std::memory_order_relaxed)) {
    require_alive(slot);
    if (now_ns() > limit_ns)
      throw Failure("worker " + std::to_string(slot) + ": not done " + std::to_string(static_cast<int>(grace_s)) + " s after its time");
    std::this_thread::sleep_for(kLook);
  }
  return worker.outcome;
}

std::span<const float> Crowd::samples_us(unsigned slot) const {
  if (slot >= kSampledWorkers) throw Failure("worker " + std::to_string(slot) + " leaves no samples");
  return std::span(stage_->sample_us[slot]).first(std::min(stage_->slots[slot].outcome.samples, kMostSamples));
}

// The order that tells a busy worker to leave is seen after the one it is at; those that do not come to it in time are killed.
void Crowd::reap(double limit_s) {
  const std::int64_t limit_ns = now_ns() + static_cast<std::int64_t>(limit_s * 1e9);
  for (pid_t& pid : pids_) {
    while (pid != 0) {
      if (waitpid(pid, nullptr, WNOHANG) != 0) {
        pid = 0;
      } else if (now_ns() > limit_ns) {
        break;
      } else {
        std::this_thread::sleep_for(kLook);
      }
    }
  }
}

}  // namespace mpsshim::bench
