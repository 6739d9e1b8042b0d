// SPDX-License-Identifier: Apache-2.0
#include "broker/control/executors/executor_pool.hpp"

#include <algorithm>

#include "broker/log.hpp"

namespace mpsshim::broker::control {

namespace {

void begin_as(ManagedExecutor& executor, ExecutorPool::Begin begin) {
  begin == ExecutorPool::Begin::at_once ? executor.start() : executor.start_without_context();
}

}  // namespace

ExecutorPool::ExecutorPool(EventLoop& loop, ExecutorLauncher& launcher, const ExecutorSettings& settings, const PoolLimits& limits,
                           ExecutorOwner& owner)
    : loop_(loop), launcher_(launcher), fading_(loop), settings_(settings), limits_(limits), owner_(owner) {}

ManagedExecutor& ExecutorPool::add(ExecutorId id, const ExecutorSettings& settings, Begin begin) {
  auto& executor = executors_[id];
  executor = std::make_unique<ManagedExecutor>(loop_, launcher_, fading_, settings, id, owner_);
  if (!quitting_) begin_as(*executor, begin);
  return *executor;
}

ManagedExecutor& ExecutorPool::first(unsigned device) {
  if (const auto found = executors_.find({device, 0}); found != executors_.end()) return *found->second;
  ExecutorSettings settings = settings_;
  if (device != 0) settings.drivers = {executors_.at({0, 0})->driver()};
  return add({device, 0}, settings, Begin::at_once);
}

void ExecutorPool::resume(ExecutorId id, std::uint64_t epoch, const std::string& driver, const proto::DriverFacts& facts,
                          const ServerNumber& number) {
  ExecutorSettings settings = settings_;
  if (id != ExecutorId{}) settings.drivers = {driver};
  auto& executor = executors_[id];
  executor = std::make_unique<ManagedExecutor>(loop_, launcher_, fading_, settings, id, owner_);
  executor->resume(epoch, driver, facts, number);
  executor->start();
}

ManagedExecutor* ExecutorPool::choose(unsigned device, uid_t user, const Suits& suits, Begin begin) {
  (void)first(device);
  ManagedExecutor* const found =
      any(device, user, [&](const ManagedExecutor& executor) { return !executors_.at(executor.id())->is_blocked() && suits(executor); });
  return found != nullptr ? found : add_another(device, user, begin);
}

ManagedExecutor* ExecutorPool::any(unsigned device, uid_t user, const Suits& suits) const {
  for (auto entry = executors_.lower_bound({device, 0, user}); entry != executors_.end(); ++entry) {
    if (entry->first.device != device || entry->first.user != user) break;
    if (!entry->second->is_quitting() && suits(*entry->second)) return entry->second.get();
  }
  return nullptr;
}

bool ExecutorPool::may_try(unsigned device, uid_t user) {
  const auto [refused, is_new] = refused_until_.try_emplace({device, user}, EventLoop::Clock::time_point::min());
  if (first(device).is_exclusive() && is_new) {
    refused->second = EventLoop::Clock::time_point::max();
    log_warning("Device {} has one executor, because the GPU takes one process at a time (its compute mode): {}.", device,
                user == kHome ? std::string("calls that wait for another client's kernel wait on (--patience-s)")
                              : fmt::format("clients of user {} are refused (--share-executors serves all users in that one)", user));
  }
  return EventLoop::Clock::now() >= refused->second;
}

ManagedExecutor* ExecutorPool::add_another(unsigned device, uid_t user, Begin begin) {
  if (quitting_) return nullptr;
  if (!may_try(device, user)) return nullptr;
  const auto count = std::ranges::count_if(
      executors_, [&](const auto& entry) { return entry.first.device == device && entry.first.user == user && !entry.second->is_quitting(); });
  if (static_cast<unsigned>(count) >= limits_.executors) return nullptr;
  if (auto spare = spares_.extract({device, user}); !spare.empty()) {
    auto& executor = executors_[spare.mapped()->id()];
    executor = std::move(spare.mapped());
    begin_as(*executor, begin);
    return executor.get();
  }
  return &add(next_id(device, user), further_settings(device), begin);
}

ExecutorId ExecutorPool::next_id(unsigned device, uid_t user) const {
  ExecutorId id{device, 0, user};
  while (executors_.contains(id)) ++id.ordinal;
  return id;
}

ExecutorSettings ExecutorPool::further_settings(unsigned device) {
  ExecutorSettings settings = settings_;
  settings.drivers = {first(device).driver()};
  return settings;
}

void ExecutorPool::keep_spare(unsigned device, uid_t user, bool wanted) {
  const auto found = spares_.find({device, user});
  if (!wanted && found != spares_.end()) {
    found->second->drop_first();
    spares_.erase(found);
  }
  const bool may_be_used = limits_.executors > 1 && settings_.standby != StandbyKind::none && !quitting_;
  if (!wanted || found != spares_.end() || !may_be_used || first(device).is_exclusive()) return;
  auto& spare = spares_[{device, user}];
  spare = std::make_unique<ManagedExecutor>(loop_, launcher_, fading_, further_settings(device), next_id(device, user), owner_);
  spare->prepare_first();
}

void ExecutorPool::drop_spares() {
  for (auto& [place, spare] : spares_) spare->drop_first();
  spares_.clear();
}

void ExecutorPool::release(ManagedExecutor& executor, std::function<bool()> unused, bool at_once) {
  if (executor.is_permanent() || executor.is_quitting()) return;
  const bool is_spent = executor.has_heap_remains() && !executor.is_first();  // another one has a blank heap
  const auto idle = is_spent || at_once ? std::chrono::milliseconds(0) : limits_.idle;
  idle_[executor.id()] = loop_.after(idle, [&executor, is_spent, idle, unused = std::move(unused)] {
    if (executor.is_quitting() || !unused()) return;
    log_info("Executor {} (pid {}) has had no session for {} ms{} and ends.", executor.label(), executor.pid(), idle.count(),
             is_spent ? ", its device's heap may hold what they have left," : "");
    executor.quit();
  });
}

void ExecutorPool::refused(ManagedExecutor& executor, const std::string& why) {
  const bool for_good = executor.refusal() == CUDA_ERROR_DEVICE_UNAVAILABLE;
  const auto now = EventLoop::Clock::now();
  refused_until_[{executor.device(), executor.user()}] = for_good ? EventLoop::Clock::time_point::max() : now + limits_.refusal_pause;
  log_warning("Executor {} cannot be had: {}. {} {}", executor.label(), why,
              for_good ? "The GPU takes one process at a time (its compute mode), so it has one executor from now on."
                       : fmt::format("None is tried for {} s.", std::chrono::duration_cast<std::chrono::seconds>(limits_.refusal_pause).count()),
              executor.is_first() ? fmt::format("Clients of user {} get CUDA_ERROR_MPS_SERVER_NOT_READY.", executor.user())
                                  : std::string("Calls that wait for another client's kernel wait on (--patience-s)."));
  executor.quit();
}

void ExecutorPool::forget(ManagedExecutor& executor) {
  loop_.defer([this, id = executor.id()] {
    idle_.erase(id);
    executors_.erase(id);
  });
}

bool ExecutorPool::prepare_next_lives(std::optional<uid_t> user) {
  bool all = true;
  for (const auto& [id, executor] : executors_) {
    if (executor->is_quitting() || id.user != user.value_or(id.user)) continue;
    if (executor->state() != ExecutorState::starting && !executor->prepares_next()) executor->prepare_next();
    all = all && executor->has_next();
  }
  return all;
}

void ExecutorPool::quit() {
  quitting_ = true;
  drop_spares();
  for (auto& [id, executor] : executors_) executor->quit();
}

bool ExecutorPool::all_stopped() const {
  return std::ranges::all_of(executors_, [](const auto& entry) { return entry.second->state() == ExecutorState::stopped; });
}

}  // namespace mpsshim::broker::control
