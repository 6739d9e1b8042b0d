// SPDX-License-Identifier: Apache-2.0
#include "broker/control/executor.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <unistd.h>

#include "broker/log.hpp"

namespace mpsshim::broker::control {

using std::chrono::milliseconds;

namespace {

constexpr std::size_t kDeathsForFault = 5;
constexpr std::chrono::seconds kDeathWindow{10};

long long since_ms(EventLoop::Clock::time_point start) {
  return std::chrono::duration_cast<milliseconds>(EventLoop::Clock::now() - start).count();
}

}  // namespace

const char* state_name(ExecutorState state) {
  switch (state) {
    case ExecutorState::stopped: return "STOPPED";
    case ExecutorState::starting: return "INITIALIZING";
    case ExecutorState::active: return "ACTIVE";
    case ExecutorState::draining: return "DRAINING";
    case ExecutorState::fault: return "FAULT";
  }
  return "?";
}

Executor::Executor(EventLoop& loop, ExecutorLauncher& launcher, const ExecutorSettings& settings, ExecutorId id, ExecutorOwner& owner)
    : loop_(loop),
      launcher_(launcher),
      settings_(settings),
      id_(id),
      label_(id.ordinal == 0 ? std::to_string(id.device) : fmt::format("{}.{}", id.device, id.ordinal)),
      owner_(owner) {}

void Executor::start() {
  state_ = ExecutorState::starting;
  report_ = DeathReport{};
  started_at_ = EventLoop::Clock::now();
  auto life = launcher_.launch({driver(), id_.device, settings_.workers, settings_.log_dir, settings_.connections, label_, settings_.module_cache_mib});
  if (life) progress_ = proto::Mapping::map(life->progress, 0, sizeof(ProgressTable), proto::Access::read_only);
  if (!life || !progress_) {
    log_error("Executor {} could not be started ({}); next try in {} ms.", label_, std::strerror(errno), settings_.retry_delay.count());
    state_ = ExecutorState::fault;
    limit_ = loop_.after(settings_.retry_delay, [this] { start(); });
    return;
  }
  ++epoch_;
  life_ = std::make_unique<ExecutorLife>(std::move(*life));
  link_ = std::make_unique<ExecutorLink>(
      loop_, std::move(life_->link), [this](const ExecutorPacket& packet, proto::ReceivedFds& fds) { arrived(packet, fds); },
      [this] { kill(); });
  death_watch_ = loop_.watch(life_->pidfd.get(), EPOLLIN, [this](EventLoop::Events) { died(); });
  limit_ = loop_.after(settings_.start_limit, [this] {
    log_error("Executor {} (pid {}) was not ready after {} s and is killed.", label_, pid(), settings_.start_limit.count() / 1000);
    kill();
  });
}

void Executor::send(const ExecutorPacket& packet, std::span<const int> fds) {
  if (link_) link_->send(packet, fds);
}

void Executor::begin_drain() {
  state_ = ExecutorState::draining;
  ExecutorPacket packet;
  packet.header.type = ExecutorMessage::quiesce;
  send(packet);
}

void Executor::replace() {
  if (report_.cause != DeathReport::Cause::fault) report_.cause = DeathReport::Cause::replaced;
  kill();
}

void Executor::quit() {
  quitting_ = true;
  if (!life_) {
    limit_.reset();
    state_ = ExecutorState::stopped;
    return owner_.executor_stopped(*this);
  }
  ExecutorPacket packet;
  packet.header.type = ExecutorMessage::quit;
  send(packet);
  limit_ = loop_.after(settings_.quit_limit, [this] { kill(); });
}

void Executor::kill() {
  if (life_) launcher_.kill(*life_);
}

std::set<std::uint64_t> Executor::busy() const {
  if (!progress_) return {};
  return busy_sessions(*reinterpret_cast<const ProgressTable*>(progress_.data()));
}

bool Executor::is_busy(std::uint64_t session) const {
  return progress_ && control::is_busy(*reinterpret_cast<const ProgressTable*>(progress_.data()), session);
}

void Executor::note_blocked(std::uint64_t session) {
  if (progress_) blocking_ = running_streams(*reinterpret_cast<const ProgressTable*>(progress_.data()), session);
}

bool Executor::is_blocked() {
  if (blocking_.empty()) return false;
  const auto& table = *reinterpret_cast<const ProgressTable*>(progress_.data());
  std::erase_if(blocking_, [&](const RunningStream& stream) { return !runs_on(table, stream); });
  if (!blocking_.empty()) return true;
  log_info("Executor {} (pid {}) is no longer blocked: the kernels that calls waited for have ended.", label_, pid());
  return false;
}

void Executor::arrived(const ExecutorPacket& packet, proto::ReceivedFds& fds) {
  if (packet.header.type == ExecutorMessage::ready) return became_ready(packet);
  if (packet.header.type == ExecutorMessage::fault) {
    const auto error = packet.header.status == CUDA_SUCCESS ? CUDA_ERROR_UNKNOWN : static_cast<CUresult>(packet.header.status);
    report_ = {DeathReport::Cause::fault, error, packet.header.session, packet.text};
    limit_ = loop_.after(milliseconds(0), [this] { give_up_life(); });  // not from inside the link that is calling
    return;
  }
  owner_.executor_sent(*this, packet, fds);
}

void Executor::became_ready(const ExecutorPacket& packet) {
  if (state_ != ExecutorState::starting) return;
  if (packet.header.status != CUDA_SUCCESS) {
    refusal_status_ = static_cast<CUresult>(packet.header.status);
    refusal_ = fmt::format("{}: {} (CUDA error {})", driver(), packet.text[0] != '\0' ? packet.text : "it does not serve", packet.header.status);
    return kill();
  }
  if (!read_facts()) {
    refusal_ = fmt::format("{}: its executor published facts of another layout or without a device", driver());
    return kill();
  }
  limit_.reset();
  has_served_ = true;
  state_ = ExecutorState::active;
  log_info("Executor {} (pid {}) is ready after {} ms: {} with {}.", label_, pid(), since_ms(started_at_), facts_->device[id_.device].name, driver());
  owner_.executor_ready(*this);
}

bool Executor::read_facts() {
  auto facts = std::make_unique<proto::DriverFacts>();
  const ssize_t got = pread(life_->facts.get(), facts.get(), sizeof *facts, 0);
  if (got != static_cast<ssize_t>(sizeof *facts) || facts->size_bytes != sizeof *facts) return false;
  if (facts->device_count == 0 || facts->device_count > proto::kMaxDevices || id_.device >= facts->device_count) return false;
  for (proto::DeviceFacts& device : facts->device) device.name[sizeof device.name - 1] = '\0';
  facts_ = std::move(facts);
  return true;
}

void Executor::died() {
  link_->drain();
  const std::string end = fmt::format("Executor {} (pid {}) {}", label_, life_->pid, launcher_.reap(*life_));
  end_life(end);
}

// A process that has lost its context takes the driver some 300 ms to take down; the next one starts meanwhile.
void Executor::give_up_life() {
  link_->drain();
  launcher_.kill(*life_);
  const std::string end = fmt::format("Executor {} (pid {}) lost its context", label_, life_->pid);
  death_watch_.reset();  // one descriptor, one watch: the next line's would be refused
  const auto fading = fading_.emplace(fading_.end());
  fading->life = std::move(*life_);
  fading->watch = loop_.watch(fading->life.pidfd.get(), EPOLLIN, [this, fading](EventLoop::Events) {
    log_debug("Executor {} (pid {}) {}", label_, fading->life.pid, launcher_.reap(fading->life));
    fading_.erase(fading);
  });
  end_life(end);
}

void Executor::end_life(const std::string& end) {
  limit_.reset();
  death_watch_.reset();
  const bool was_ready = state_ == ExecutorState::active || state_ == ExecutorState::draining;
  const std::set<std::uint64_t> in_flight = busy();
  link_.reset();
  life_.reset();
  progress_ = proto::Mapping();
  blocking_.clear();
  if (quitting_) {
    state_ = ExecutorState::stopped;
    return owner_.executor_stopped(*this);
  }
  state_ = ExecutorState::starting;
  if (was_ready) {
    const char* what = report_.text.empty() ? "no fault was reported" : report_.text.c_str();
    if (report_.cause == DeathReport::Cause::replaced) what = "it is replaced";
    log_warning("{}: {}.", end, what);
    owner_.executor_died(*this, report_, in_flight);
  }
  start_again(was_ready, end);
}

void Executor::start_again(bool was_ready, const std::string& why) {
  if (!was_ready && !has_served_) return try_next_driver(why);
  if (!was_ready) log_error("{} before it was ready again. {}", why, std::exchange(refusal_, {}));
  const auto now = EventLoop::Clock::now();
  deaths_.push_back(now);
  while (now - deaths_.front() > kDeathWindow) deaths_.pop_front();
  if (deaths_.size() < kDeathsForFault) return start();
  deaths_.clear();
  state_ = ExecutorState::fault;
  log_error("Executor {} died {} times within {} s and is not started again for {} ms; clients with a session wait, new ones get CUDA_ERROR_MPS_SERVER_NOT_READY.",
            label_, kDeathsForFault, kDeathWindow.count(), settings_.retry_delay.count());
  limit_ = loop_.after(settings_.retry_delay, [this] { start(); });
}

void Executor::try_next_driver(const std::string& why) {
  const std::string reason = refusal_.empty() ? fmt::format("{}: {} before it was ready", driver(), why) : refusal_;
  refusal_.clear();
  if (driver_ + 1 < settings_.drivers.size()) {
    log_info("Executor {} goes on to the next driver, {}, because of {}.", label_, settings_.drivers[driver_ + 1], reason);
    ++driver_;
    return start();
  }
  state_ = ExecutorState::fault;
  owner_.executor_cannot_start(*this, reason);
}

}  // namespace mpsshim::broker::control
