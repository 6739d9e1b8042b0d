// SPDX-License-Identifier: Apache-2.0
#include "broker/control/restarts/restarts.hpp"

#include <algorithm>
#include <utility>

#include "broker/log.hpp"

namespace mpsshim::broker::control {

namespace {
constexpr std::chrono::milliseconds kRestLook{2};
}

void Restarts::bring_to_rest(const RestOrder& order, std::function<void(const std::string& why)> done, House house) {
  obstacle_ = 0;
  if (rest_ || on_renewed_ || on_retired_) return done("another restart is under way");
  if (quitting_) return done("the broker quits");
  rest_.emplace(Rest{order, house, ++last_order_, std::move(done), EventLoop::Clock::now() + order.patience, false, {}, {}});
  for (const auto& [id, executor] : pool_.all()) {
    if (id.user == house.value_or(id.user)) executor->hold();
  }
  look_for_rest();
}

// Something is half done that would be lost: it is waited for before anybody is asked to rest.
bool Restarts::is_unsettled(House house) const {
  const bool executors = std::ranges::any_of(pool_.all(), [&](const auto& entry) {
    return entry.second->state() == ExecutorState::starting && entry.first.user == house.value_or(entry.first.user);
  });
  const bool sessions = std::ranges::any_of(sessions_.all(), [&](const auto& entry) {
    const ClientSession& session = entry.second;
    if (!sessions_.is_of(session, house)) return false;
    return session.relocation || session.phase == SessionPhase::opening || session.phase == SessionPhase::reopening ||
           session.phase == SessionPhase::terminating;
  });
  return executors || sessions || replacements_.has_any(house) || images_.is_sealing();
}

void Restarts::look_for_rest() {
  std::erase_if(rest_->awaited, [&](std::uint64_t id) {
    const ClientSession* session = sessions_.find(id);
    return session == nullptr || session->phase != SessionPhase::active;
  });
  const bool unsettled = is_unsettled(rest_->house);
  if (!unsettled && !rest_->asked) ask_for_rest();
  if (!unsettled && rest_->awaited.empty()) return end_rest("");
  if (EventLoop::Clock::now() < rest_->until) {
    rest_->look = loop_.after(kRestLook, [this] { look_for_rest(); });
    return;
  }
  if (rest_->order.force && !unsettled) return end_rest("");
  if (rest_->awaited.empty()) return end_rest("the broker does not come to rest: see control.log");
  end_rest(fmt::format("{}: its work does not end; -t gives it more time, -f ends its session", sessions_.find(*rest_->awaited.begin())->name()));
}

void Restarts::ask_for_rest() {
  rest_->asked = true;
  for (auto& [id, session] : sessions_.all()) {
    if (session.phase != SessionPhase::active || !sessions_.is_of(session, rest_->house)) continue;
    const bool keeps_variables = !rest_->order.is_of_the_program || session.executor->id().ordinal == 0;
    const std::uint32_t flags = kPauseToRest | (rest_->order.force ? kPauseDespiteVariables : 0) | (keeps_variables ? 0 : kPauseWithoutVariables);
    session.executor->send(message::SessionPause{.session = id, .order = rest_->number, .flags = flags});
    session.event_times.reset();
    rest_->awaited.insert(id);
  }
}

void Restarts::paused(ClientSession& session, const message::SessionPaused& answer) {
  if (!rest_ || rest_->number != answer.order) return;
  const auto status = static_cast<CUresult>(answer.status);
  const bool was_awaited = rest_->awaited.erase(session.id) != 0;
  session.event_times_hold = was_awaited && status == CUDA_SUCCESS;
  if (!was_awaited || status == CUDA_SUCCESS) return;  // looked at before long
  rest_->look.reset();
  obstacle_ = session.id;
  end_rest(
      fmt::format("{}: what it has would be lost (arrays, external memory, memory of the device's heap, or modules' variables that are not kept); -f "
                  "ends its session",
                  session.name()));
}

bool Restarts::keeps_at_rest(const ManagedExecutor& executor) const { return rest_ && executor.user() == rest_->house.value_or(executor.user()); }

void Restarts::end_rest(const std::string& why) {
  if (why.empty()) return std::exchange(rest_->done, nullptr)("");
  const auto done = std::move(rest_->done);
  for (auto& [id, session] : sessions_.all()) {
    if (!rest_->asked || session.phase != SessionPhase::active || !sessions_.is_of(session, rest_->house)) continue;
    session.executor->send(message::Stay{.session = id});
    session.event_times_hold = false;
  }
  const House house = rest_->house;
  rest_.reset();
  for (const auto& [id, executor] : pool_.all()) {
    if (id.user != house.value_or(id.user)) continue;
    if (!replacements_.has(id)) executor->release();
    if (executor->state() == ExecutorState::active) serve_(*executor);
  }
  done(why);
}

void Restarts::renew_executors(std::function<void()> renewed, House house) {
  rest_.reset();
  on_renewed_ = std::move(renewed);
  renewed_house_ = house;
  for (const auto& [id, executor] : pool_.all()) {
    if (id.user == house.value_or(id.user)) executor->renew();
  }
}

void Restarts::retire_executors(std::function<void()> retired) {
  on_retired_ = std::move(retired);
  image_service_.stop();  // nothing is loaded: all are at rest
  pool_.drop_spares();
  for (const auto& [id, executor] : pool_.all()) executor->retire();
}

void Restarts::start_executors(std::function<void()> started) {
  rest_.reset();
  await_first_lives(std::move(started));
  for (const auto& [id, executor] : pool_.all()) {
    if (executor->state() == ExecutorState::stopped) executor->start();
  }
}

void Restarts::await_first_lives(std::function<void()> started) {
  on_renewed_ = std::move(started);
  renewed_house_.reset();
}

void Restarts::look_for_renewal() {
  const auto is_done = [this](const auto& entry) {
    const ManagedExecutor& executor = *entry.second;
    return executor.state() == ExecutorState::active || executor.is_quitting() || executor.user() != renewed_house_.value_or(executor.user());
  };
  if (on_renewed_ && std::ranges::all_of(pool_.all(), is_done)) std::exchange(on_renewed_, nullptr)();
}

void Restarts::look_for_retired() {
  if (pool_.all_stopped()) std::exchange(on_retired_, nullptr)();
}

}  // namespace mpsshim::broker::control
