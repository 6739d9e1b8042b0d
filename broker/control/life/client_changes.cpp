// SPDX-License-Identifier: Apache-2.0
#include "broker/control/life/client_changes.hpp"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "broker/control/executors/managed_executor.hpp"
#include "broker/log.hpp"
#include "proto/provision.hpp"

namespace mpsshim::broker::control {

namespace {

constexpr std::chrono::seconds kPatience{30};       // less than that of mpsctl
constexpr std::chrono::milliseconds kNextLook{20};  // whether the session has left its executor

}  // namespace

void ClientChanges::change(ClientSession& session, const ClientChange& change, Answer answer) {
  if (session.is_ending() || session.phase == SessionPhase::lost) {
    return answer({fmt::format("client {} is ending", session.client.pid), true});
  }
  if (change.memory_limit_bytes) session.memory_limit_bytes = change.memory_limit_bytes;
  if (change.thread_percentage) session.thread_percentage = change.thread_percentage;
  if (change.client_priority) session.client_priority = change.client_priority;
  log_info("{}: a command gives it {}.", session.name(), session.provision_text());
  const bool is_there = session.phase == SessionPhase::opening || session.phase == SessionPhase::active;
  if (!is_there) {  // it is opened with that
    tell_client(session);
    return answer({});
  }
  send(session, std::move(answer));
}

void ClientChanges::refresh(ClientSession& session) {
  const bool is_there = session.phase == SessionPhase::opening || session.phase == SessionPhase::active;
  if (is_there && terms_(session).chunks != session.told_chunks) return send(session, [](const ChangeResult&) {});
  tell_client(session);
}

// In the executor it comes behind SessionOpen.
void ClientChanges::send(ClientSession& session, Answer answer) {
  const std::uint64_t number = ++last_order_;
  Order& order = orders_[number];
  order.session = session.id;
  order.epoch = session.epoch;
  order.answer = std::move(answer);
  order.given_at = EventLoop::Clock::now();
  order.next_look = loop_.after(kNextLook, [this, number] { look(number); });
  const SessionTerms terms = terms_(session);
  session.told_chunks = terms.chunks;
  session.executor->send(message::SessionProvision{
      .session = session.id,
      .order = number,
      .device_limit_bytes = terms.device_limit_bytes,
      .thread_percentage = terms.thread_percentage,
      .client_priority = terms.client_priority,
      .group = terms.group,
      .group_percentage = terms.group_percentage,
      .chunks = terms.chunks,
  });
}

void ClientChanges::tell_client(const ClientSession& session) const {
  if (session.channel) session.channel->tell_thread_percentage(terms_(session).told_percentage());
}

// One that has left its executor is opened in the next with what it has now. Else it may be that no moment comes in which its part can be made.
void ClientChanges::look(std::uint64_t number) {
  Order& order = orders_.at(number);
  const auto session = sessions_.all().find(order.session);
  const bool has_left = session == sessions_.all().end() || !session->second.in_executor();
  const bool is_late = EventLoop::Clock::now() - order.given_at >= kPatience;
  if (!has_left && !is_late) {
    order.next_look = loop_.after(kNextLook, [this, number] { look(number); });
    return;
  }
  if (has_left && session != sessions_.all().end()) tell_client(session->second);  // it may ask for its part before it comes back
  const Order ended = std::move(orders_.extract(number).mapped());
  if (has_left) return ended.answer({});
  ended.answer({fmt::format("not yet: it takes a moment in which no kernel runs on the device, and there was none for {} s", kPatience.count())});
}

void ClientChanges::provisioned(ClientSession& session, const message::SessionProvisioned& message) {
  const auto status = static_cast<CUresult>(message.status);
  const auto found = orders_.find(message.order);
  if (found == orders_.end() || found->second.session != session.id) return;
  const Order order = std::move(orders_.extract(found).mapped());
  const auto is_its = [&](const auto& entry) { return entry.second.session == session.id; };
  if (std::ranges::none_of(orders_, is_its)) {  // else a later one says more
    if (session.told_chunks == 0) session.thread_percentage = message.thread_percentage;  // else it was not asked about that
    tell_client(session);
  }
  if (status == CUDA_SUCCESS) return order.answer({});
  order.answer(
      {fmt::format("server {} cannot give client {} that part of the multiprocessors (CUDA error {}): it keeps {} %",
                   session.executor->number().number(), session.client.pid, message.status, proto::percentage_text(message.thread_percentage))});
}

// Elsewhere, or anew: SessionOpen had it.
void ClientChanges::opened(const ClientSession& session) {
  answer_orders(session.id, {}, [&](const Order& order) { return order.epoch < session.epoch; });
}

void ClientChanges::ended(std::uint64_t session) {
  answer_orders(session, {"the client has ended meanwhile", true}, [](const Order&) { return true; });
}

void ClientChanges::answer_orders(std::uint64_t session, const ChangeResult& result, const std::function<bool(const Order&)>& is_meant) {
  std::vector<Answer> answers;  // which may give further orders
  for (auto order = orders_.begin(); order != orders_.end();) {
    if (order->second.session == session && is_meant(order->second)) {
      answers.push_back(std::move(order->second.answer));
      order = orders_.erase(order);
    } else {
      ++order;
    }
  }
  for (const Answer& answer : answers) answer(result);
}

}  // namespace mpsshim::broker::control
