// SPDX-License-Identifier: Apache-2.0
// What operators change for clients that are connected (`client set`): device memory, part of the multiprocessors, priority. The session has it from
// then on, in whatever executor. Where it is in one, that is told, and who has asked hears when it holds there: for all launches and allocations that
// come. Owned by SessionManager; the control process's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "broker/control/base/event_loop.hpp"
#include "broker/control/life/session_opening.hpp"
#include "broker/control/sessions/session_table.hpp"
#include "broker/control_messages.hpp"

namespace mpsshim::broker::control {

// What is to be another.
struct ClientChange {
  std::optional<std::uint64_t> memory_limit_bytes;  // 0: none
  std::optional<std::uint32_t> thread_percentage;   // in hundredths of a percent (proto/provision.hpp)
  std::optional<std::uint32_t> client_priority;     // 0: normal; the higher the less
};

struct ChangeResult {
  std::string fault;              // "": it holds
  bool has_client_ended = false;  // that is the fault: there is nobody for whom it would have to hold
};

class ClientChanges {
 public:
  using Answer = std::function<void(const ChangeResult&)>;
  ClientChanges(EventLoop& loop, const SessionTable& sessions, std::function<SessionTerms(const ClientSession&)> terms)
      : loop_(loop), sessions_(sessions), terms_(std::move(terms)) {}

  // Answers once, now or later. A change of nothing: of what its namespace has.
  void change(ClientSession& session, const ClientChange& change, Answer answer);

  // Of a session that is in an executor, where it may be to run on other chunks, or to count others: executor and client hear of it.
  void refresh(ClientSession& session);

  // From executors, and when a session has come into one or ends.
  void provisioned(ClientSession& session, const message::SessionProvisioned& message);
  void opened(const ClientSession& session);
  void ended(std::uint64_t session);

 private:
  struct Order {
    std::uint64_t session = 0;
    std::uint64_t epoch = 0;
    Answer answer;
    EventLoop::Clock::time_point given_at;
    EventLoop::Timer next_look;
  };
  void send(ClientSession& session, Answer answer);
  void look(std::uint64_t number);
  void tell_client(const ClientSession& session) const;  // for what it answers by itself
  // Answers those of the session that `is_meant` holds for.
  void answer_orders(std::uint64_t session, const ChangeResult& result, const std::function<bool(const Order&)>& is_meant);

  EventLoop& loop_;
  const SessionTable& sessions_;
  const std::function<SessionTerms(const ClientSession&)> terms_;
  std::map<std::uint64_t, Order> orders_;  // by number
  std::uint64_t last_order_ = 0;
};

}  // namespace mpsshim::broker::control
