// SPDX-License-Identifier: Apache-2.0
// SessionManager's part in restarts: all sessions are brought to rest, so that replacing their executors costs nobody anything. Whoever does not
// come to rest in time stands in the way, and nothing is changed, unless the order says so.
#include <algorithm>
#include <utility>

#include "broker/control/sessions/session_manager.hpp"
#include "broker/log.hpp"

namespace mpsshim::broker::control {

namespace {
constexpr std::chrono::milliseconds kRestLook{2};
}

void SessionManager::bring_to_rest(const RestOrder& order, std::function<void(const std::string& why)> done, House house) {
  if (rest_ || on_renewed_ || on_retired_) return done("another restart is under way");
  if (quitting_) return done("the broker quits");
  rest_.emplace(Rest{order, house, ++last_order_, std::move(done), EventLoop::Clock::now() + order.patience, false, {}, {}});
  for (const auto& [id, executor] : pool_.all()) {
    if (id.user == house.value_or(id.user)) executor->hold();
  }
  look_for_rest();
}

// Something is half done that would be lost: it is waited for before anybody is asked to rest.
bool SessionManager::is_unsettled(House house) const {
  const bool executors = std::ranges::any_of(pool_.all(), [&](const auto& entry) {
    return entry.second->state() == ExecutorState::starting && entry.first.user == house.value_or(entry.first.user);
  });
  const bool drains = std::ranges::any_of(drains_, [&](const auto& entry) { return entry.first.user == house.value_or(entry.first.user); });
  const bool sessions = std::ranges::any_of(sessions_, [&](const auto& entry) {
    const ClientSession& session = entry.second;
    if (!is_of(session, house)) return false;
    return session.relocation || session.phase == SessionPhase::opening || session.phase == SessionPhase::reopening ||
           session.phase == SessionPhase::terminating;
  });
  return executors || sessions || drains || images_.is_sealing();
}

bool SessionManager::is_of(const ClientSession& session, House house) const {
  if (!house) return true;
  return *house == (session.executor != nullptr ? session.executor->user() : house_of(session.client));
}

void SessionManager::look_for_rest() {
  std::erase_if(rest_->awaited, [&](std::uint64_t id) {
    const ClientSession* session = find(id);
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
  end_rest(fmt::format("{}: its work does not end; -t gives it more time, -f ends its session", find(*rest_->awaited.begin())->name()));
}

void SessionManager::ask_for_rest() {
  rest_->asked = true;
  for (auto& [id, session] : sessions_) {
    if (session.phase != SessionPhase::active || !is_of(session, rest_->house)) continue;
    const std::uint32_t flags = kPauseToRest | (rest_->order.force ? kPauseDespiteVariables : 0);
    session.executor->send(message::SessionPause{.session = id, .order = rest_->number, .flags = flags});
    session.event_times.reset();
    rest_->awaited.insert(id);
  }
}

void SessionManager::came_to_rest(ClientSession& session, CUresult status) {
  const bool was_awaited = rest_->awaited.erase(session.id) != 0;
  session.event_times_hold = was_awaited && status == CUDA_SUCCESS;
  if (!was_awaited || status == CUDA_SUCCESS) return;  // looked at before long
  rest_->look.reset();
  if (heap_step_ == HeapStep::renewing) heaps_[last_heap_].obstacle = session.id;
  end_rest(fmt::format("{}: its modules have variables, whose values would be lost; -f ends its session", session.name()));
}

void SessionManager::end_rest(const std::string& why) {
  if (why.empty()) return std::exchange(rest_->done, nullptr)("");
  const auto done = std::move(rest_->done);
  for (auto& [id, session] : sessions_) {
    if (!rest_->asked || session.phase != SessionPhase::active || !is_of(session, rest_->house)) continue;
    session.executor->send(message::Stay{.session = id});
    session.event_times_hold = false;
  }
  const House house = rest_->house;
  rest_.reset();
  for (const auto& [id, executor] : pool_.all()) {
    if (id.user != house.value_or(id.user)) continue;
    if (!drains_.contains(id)) executor->release();
    if (executor->state() == ExecutorState::active) serve_waiting(*executor);
  }
  done(why);
}

void SessionManager::renew_executors(std::function<void()> renewed, House house) {
  rest_.reset();
  on_renewed_ = std::move(renewed);
  renewed_house_ = house;
  for (const auto& [id, executor] : pool_.all()) {
    if (id.user == house.value_or(id.user)) executor->renew();
  }
}

void SessionManager::retire_executors(std::function<void()> retired) {
  on_retired_ = std::move(retired);
  stop_compilers();  // nothing is loaded: all are at rest
  for (const auto& [id, executor] : pool_.all()) executor->retire();
}

void SessionManager::start_executors(std::function<void()> started) {
  rest_.reset();
  on_renewed_ = std::move(started);
  renewed_house_.reset();
  for (const auto& [id, executor] : pool_.all()) {
    if (executor->state() == ExecutorState::stopped) executor->start();
  }
}

}  // namespace mpsshim::broker::control
