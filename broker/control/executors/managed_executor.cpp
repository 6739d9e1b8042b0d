// SPDX-License-Identifier: Apache-2.0
#include "broker/control/executors/managed_executor.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <unistd.h>

#include "broker/log.hpp"
#include "broker/log_subject.hpp"

namespace mpsshim::broker::control {

using std::chrono::milliseconds;

namespace {

std::string label_of(ExecutorId id) {
  const std::string number = id.ordinal == 0 ? std::to_string(id.device) : fmt::format("{}.{}", id.device, id.ordinal);
  return id.user == kHome ? number : fmt::format("{}@{}", number, id.user);
}

long long since_ms(EventLoop::Clock::time_point start) { return std::chrono::duration_cast<milliseconds>(EventLoop::Clock::now() - start).count(); }

}  // namespace

const char* state_name(ExecutorState state) {
  switch (state) {
    case ExecutorState::stopped: return "STOPPED";
    case ExecutorState::starting: return "INITIALIZING";
    case ExecutorState::active: return "ACTIVE";
    case ExecutorState::draining: return "INITIALIZING";  // about to be replaced: as the manual has it, new requests wait
    case ExecutorState::fault: return "FAULT";
  }
  return "?";
}

ManagedExecutor::ManagedExecutor(EventLoop& loop, ExecutorLauncher& launcher, FadingExecutors& fading, const ExecutorSettings& settings,
                                 ExecutorId id, ExecutorOwner& owner)
    : loop_(loop),
      launcher_(launcher),
      fading_(fading),
      settings_(settings),
      id_(id),
      label_(label_of(id)),
      owner_(owner),
      standby_(loop, launcher, label_, fading,
               {[this] { owner_.standby_waits(*this); }, [this](ReceivedMessage& received) { owner_.executor_sent(*this, received); }}),
      trap_sense_(loop) {}

// A life that follows another may find that one's context still being taken down, and a GPU that takes one process at a time refuses it so long.
ExecutorOptions ManagedExecutor::options() const {
  ExecutorOptions options{.driver_path = driver(),
                          .device = id_.device,
                          .workers = settings_.workers,
                          .log_dir = settings_.log_dir,
                          .journal = settings_.journal,
                          .connections = settings_.connections,
                          .copy_connections = settings_.copy_connections,
                          .side_contexts = settings_.side_contexts,
                          .ready_percentages = settings_.ready_percentages,
                          .priority = settings_.priority,
                          .label = label_,
                          .module_cache_mib = settings_.module_cache_mib,
                          .latency = settings_.latency,
                          .patience_s = settings_.patience_s,
                          .stress = settings_.stress,
                          .user_log_mib = settings_.user_log_mib,
                          .dumpable = settings_.dumpable,
                          .keeps_rights = settings_.keeps_rights,
                          .counts_file = settings_.counts_file,
                          .opens_assertions = settings_.opens_assertions,
                          .never_compiles = settings_.never_compiles};
  if (has_served_) options.device_patience_ms = static_cast<unsigned>(settings_.retry_delay.count());
  return options;
}

ExecutorOptions ManagedExecutor::standby_options(StandbyKind kind) const {
  ExecutorOptions options = this->options();
  options.standby = true;
  options.is_cold = kind == StandbyKind::cold || is_exclusive();
  return options;
}

void ManagedExecutor::resume(std::uint64_t epoch, const std::string& driver, const proto::DriverFacts& facts, const ServerNumber& number) {
  epoch_ = epoch;
  number_ = number;
  has_served_ = true;
  facts_ = std::make_unique<proto::DriverFacts>(facts);
  const auto found = std::ranges::find(settings_.drivers, driver);
  if (found != settings_.drivers.end()) driver_ = static_cast<std::size_t>(found - settings_.drivers.begin());
}

void ManagedExecutor::start() {
  const LogSubject subject(log_user());
  state_ = ExecutorState::starting;
  report_ = DeathReport{};
  prepares_next_ = false;
  started_at_ = EventLoop::Clock::now();
  serving_ = standby_.take();
  const bool takes_over = serving_ != nullptr;
  if (!takes_over) serving_ = ExecutorInstance::launch(loop_, launcher_, awaits_context_ ? standby_options(StandbyKind::cold) : options());
  if (!serving_) {
    log_error("Executor {} could not be started ({}); next try in {} ms.", label_, std::strerror(errno), settings_.retry_delay.count());
    state_ = ExecutorState::fault;
    limit_ = loop_.after(settings_.retry_delay, [this] { start(); });
    return;
  }
  ++epoch_;
  serving_->set_handlers({[this](ReceivedMessage& received) { arrived(received); }, [this] { died(); }});
  last_pid_ = pid();
  number_.begin_life(last_pid_, has_served_);
  log_info("Starting new server {} for user {}: executor {}, epoch {}, {}.", last_pid_, id_.user == kHome ? geteuid() : id_.user, label_, epoch_,
           driver());
  log_server(last_pid_, "Creating server context on device {}: server status is INITIALIZING.", id_.device);
  limit_ = loop_.after(settings_.start_limit, [this] {
    log_error("Executor {} (pid {}) was not ready after {} s and is killed.", label_, pid(), settings_.start_limit.count() / 1000);
    serving_->kill();
  });
  if (takes_over) take_over();
}

void ManagedExecutor::start_without_context() {
  awaits_context_ = true;
  start();
}

void ManagedExecutor::make_context() {
  if (std::exchange(awaits_context_, false) && serving_) serving_->make_context();
}

// One that has not come so far goes on as any other that starts.
void ManagedExecutor::take_over() {
  if (epoch_ == 1) {
    log_info("Executor {}: a spare process (pid {}) is its first.", label_, pid());
    if (!awaits_context_) serving_->make_context();
    return;
  }
  const bool is_warm = serving_->stage == ExecutorInstance::Stage::ready;
  log_info("Executor {}: the standby (pid {}) takes over {:.1f} ms after the end of the one before was noticed; {}.", label_, pid(),
           std::chrono::duration<double, std::milli>(EventLoop::Clock::now() - end_noticed_at_).count(),
           is_warm ? fmt::format("its context is made, {} loads are in place", serving_->loads_given) : "its context is not made yet");
  if (is_warm) return activate();
  serving_->make_context();
}

void ManagedExecutor::send(const OutgoingMessage& message) {
  if (serving_) serving_->send(message);
}

void ManagedExecutor::begin_drain() {
  state_ = ExecutorState::draining;
  send(message::Quiesce{});
}

void ManagedExecutor::replace() {
  if (report_.cause != DeathReport::Cause::fault) report_.cause = DeathReport::Cause::replaced;
  if (serving_) serving_->kill();
}

void ManagedExecutor::hold() {
  if (state_ == ExecutorState::active) state_ = ExecutorState::draining;
}

void ManagedExecutor::release() {
  if (state_ == ExecutorState::draining) state_ = ExecutorState::active;
}

void ManagedExecutor::keep_standby() {
  if (settings_.standby == StandbyKind::none || !is_first() || quitting_) return;
  standby_.start(settings_.standby == StandbyKind::warm ? settings_.warm_delay : settings_.cold_delay, standby_options(settings_.standby));
}

void ManagedExecutor::prepare_next() {
  prepares_next_ = true;
  expectation_.reset();
  if (is_exclusive()) return standby_.start(milliseconds(0), standby_options(StandbyKind::cold));
  standby_.warm_up(standby_options(StandbyKind::warm));
}

void ManagedExecutor::drop_next() {
  prepares_next_ = false;
  if (settings_.standby == StandbyKind::warm) return;
  standby_.stop();
  keep_standby();
}

void ManagedExecutor::renew_standby() {
  if (settings_.standby != StandbyKind::warm || prepares_next_ || expectation_) return;
  standby_.stop();
  keep_standby();
}

bool ManagedExecutor::has_next() const {
  return standby_.has_come_to(is_exclusive() ? ExecutorInstance::Stage::standing_by : ExecutorInstance::Stage::ready);
}

void ManagedExecutor::renew() {
  renewing_ = true;
  replace();
}

void ManagedExecutor::retire() {
  standby_.stop();
  retiring_ = true;
  if (serving_) return replace();
  limit_.reset();  // of a pause after too many deaths
  retiring_ = false;
  state_ = ExecutorState::stopped;
  owner_.executor_stopped(*this);
}

void ManagedExecutor::end_with_life() {
  standby_.stop();
  retiring_ = true;
}

void ManagedExecutor::quit() {
  quitting_ = true;
  standby_.stop();
  if (!serving_) {
    limit_.reset();
    state_ = ExecutorState::stopped;
    return owner_.executor_stopped(*this);
  }
  send(message::Quit{});
  limit_ = loop_.after(settings_.quit_limit, [this] { serving_->kill(); });
}

bool ManagedExecutor::is_exclusive() const {
  if (!facts_) return false;
  const proto::DeviceFacts& device = facts_->device[id_.device];
  return device.attribute_status[CU_DEVICE_ATTRIBUTE_COMPUTE_MODE] == CUDA_SUCCESS &&
         device.attribute[CU_DEVICE_ATTRIBUTE_COMPUTE_MODE] == CU_COMPUTEMODE_EXCLUSIVE_PROCESS;
}

std::set<std::uint64_t> ManagedExecutor::busy() const { return serving_ ? busy_sessions(serving_->progress().table) : std::set<std::uint64_t>(); }

std::map<std::uint64_t, std::uint64_t> ManagedExecutor::in_flight() const {
  return serving_ ? work_in_flight(serving_->progress().table) : std::map<std::uint64_t, std::uint64_t>();
}

bool ManagedExecutor::is_busy(std::uint64_t session) const { return serving_ && control::is_busy(serving_->progress().table, session); }

bool ManagedExecutor::has_streams(std::uint64_t session) const { return serving_ && control::has_streams(serving_->progress().table, session); }

ExecutorInstance* ManagedExecutor::standby() const {
  ExecutorInstance* instance = standby_.instance();
  return instance != nullptr && instance->stage == ExecutorInstance::Stage::ready ? instance : nullptr;
}

void ManagedExecutor::note_blocked(std::uint64_t session) {
  if (!serving_) return;
  const std::vector<Blocker> before = std::exchange(blocking_, {});
  for (const RunningStream& stream : running_streams(serving_->progress().table, session)) {
    const auto known = std::ranges::find(before, stream, &Blocker::stream);
    blocking_.push_back({stream, known != before.end() ? known->since : EventLoop::Clock::now()});
  }
}

bool ManagedExecutor::is_blocked() {
  if (blocking_.empty() || !serving_) return false;
  std::erase_if(blocking_, [&](const Blocker& blocker) { return !runs_on(serving_->progress().table, blocker.stream); });
  if (!blocking_.empty()) return true;
  log_info("Executor {} (pid {}) is no longer blocked: the kernels that calls waited for have ended.", label_, pid());
  return false;
}

void ManagedExecutor::arrived(ReceivedMessage& received) {
  const LogSubject subject(log_user());
  if (received.is<message::Ready>()) return became_ready(received.read<message::Ready>());
  if (received.is<message::Fault>()) return met_fault(received.read<message::Fault>());
  owner_.executor_sent(*this, received);
}

void ManagedExecutor::met_fault(const message::Fault& fault) {
  const auto error = fault.status == CUDA_SUCCESS ? CUDA_ERROR_UNKNOWN : static_cast<CUresult>(fault.status);
  report_ = {DeathReport::Cause::fault, error, fault.session, fault.text, {}, -1, {}};
  fault_tick_ = static_cast<ProgressTick>(fault.tick);
  end_noticed_at_ = EventLoop::Clock::now();
  serving_->halt();
  trap_sense_.end();
  limit_ = loop_.after(milliseconds(0), [this] { await_standstill(); });  // not from inside the link that is calling
}

void ManagedExecutor::became_ready(const message::Ready& ready) {
  if (state_ != ExecutorState::starting) return;
  if (ready.status != CUDA_SUCCESS) {
    refusal_status_ = static_cast<CUresult>(ready.status);
    refusal_ = fmt::format("{}: {} (CUDA error {})", driver(), ready.text[0] != '\0' ? ready.text : "it does not serve", ready.status);
    return serving_->kill();
  }
  std::ranges::copy(ready.chunks, chunks_.begin());
  activate();
}

void ManagedExecutor::activate() {
  facts_ = serving_->read_facts(id_.device);
  if (!facts_) {
    refusal_ = fmt::format("{}: its executor published facts of another layout or without a device", driver());
    return serving_->kill();
  }
  limit_.reset();
  has_served_ = true;
  state_ = ExecutorState::active;
  log_info("Executor {} (pid {}) is ready after {} ms: {} with {}.", label_, pid(), since_ms(started_at_), facts_->device[id_.device].name, driver());
  watch_calls();
  owner_.executor_ready(*this);
  keep_standby();
}

// Until a call hangs: then the owner replaces the executor, which ends this.
void ManagedExecutor::watch_calls() {
  if (settings_.hang_limit.count() == 0) return;
  call_look_ = loop_.after(CallWatch::interval(settings_.hang_limit), [this] {
    const auto call = serving_ ? serving_->calls().look() : std::nullopt;
    if (!call || state_ != ExecutorState::active) return watch_calls();
    report_.named_session = call->session;
    report_.text =
        fmt::format("{} did not return within {} ms", call->name.text(),
                    settings_.hang_limit.count() * (call->patience == Patience::patient ? CallWatch::kPatientLooks / CallWatch::kLooks : 1));
    owner_.executor_hangs(*this, *call);
  });
}

}  // namespace mpsshim::broker::control
