// SPDX-License-Identifier: Apache-2.0
// Restarts of executors: all sessions are brought to rest, so that replacing their executors costs nobody anything; then each executor has its next
// life, or all end and are started again by whoever is in this process then. Whoever does not come to rest in time stands in the way, and nothing is
// changed, unless the order says so. One restart at a time.
// Owned by SessionManager; the control process's thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>

#include "broker/control/executors/executor_pool.hpp"
#include "broker/control/images/image_store.hpp"
#include "broker/control/loading/image_service.hpp"
#include "broker/control/placement/replacements.hpp"
#include "broker/control/sessions/session_table.hpp"
#include "broker/control_messages.hpp"

namespace mpsshim::broker::control {

struct RestOrder {
  std::chrono::milliseconds patience{10'000};
  bool force = false;              // who does not come to rest, or would lose something of what it has, loses its session
  bool is_of_the_program = false;  // of executors the devices' own first ones alone go on, with what they had loaded
};

class Restarts {
 public:
  using Serve = std::function<void(ManagedExecutor&)>;  // those that wait for it, now that it opens sessions again
  Restarts(EventLoop& loop, SessionTable& sessions, ExecutorPool& pool, const ImageStore& images, ImageService& image_service,
           const Replacements& replacements, Serve serve)
      : loop_(loop),
        sessions_(sessions),
        pool_(pool),
        images_(images),
        image_service_(image_service),
        replacements_(replacements),
        serve_(std::move(serve)) {}

  [[nodiscard]] bool prepare_next_lives() { return pool_.prepare_next_lives(); }  // until it says that all are ready
  // At rest: nothing of any session is in flight, all that was read is done; what clients ask meanwhile waits. `done` is called once: with "" when
  // it is so, and then one of the next two must follow; or with what stands in the way, and all goes on as before.
  // `house`: of its sessions and executors alone.
  void bring_to_rest(const RestOrder& order, std::function<void(const std::string& why)> done, House house = {});
  void renew_executors(std::function<void()> renewed, House house = {});  // each by its next life, prepared before
  void retire_executors(std::function<void()> retired);                   // none is left, every session waits for one
  void start_executors(std::function<void()> started);                    // after retire_executors
  void await_first_lives(std::function<void()> started);                  // that are being started after a hand-over
  void quit() { quitting_ = true; }                                       // no restart begins any more

  [[nodiscard]] bool is_quitting() const { return quitting_; }
  [[nodiscard]] bool is_idle() const { return !quitting_ && !rest_ && !on_renewed_ && !on_retired_; }
  [[nodiscard]] bool is_retiring() const { return !quitting_ && on_retired_; }
  [[nodiscard]] bool keeps_at_rest(const ManagedExecutor& executor) const;  // it is to open no session
  // Something is half done that would be lost by a restart.
  [[nodiscard]] bool is_unsettled(House house) const;
  // The session that would have lost something by the last restart that was asked for; 0: none would have.
  [[nodiscard]] std::uint64_t obstacle() const { return obstacle_; }

  void paused(ClientSession& session, const message::SessionPaused& answer);  // asked to rest
  void look_for_renewal();                                                    // an executor is ready, or gone
  void look_for_retired();                                                    // one has stopped

 private:
  struct Rest {
    RestOrder order;
    House house;
    std::uint64_t number = 0;  // as SessionRelocation::order
    std::function<void(const std::string& why)> done;
    EventLoop::Clock::time_point until;
    bool asked = false;
    std::set<std::uint64_t> awaited;
    EventLoop::Timer look;
  };
  void look_for_rest();
  void ask_for_rest();
  void end_rest(const std::string& why);

  EventLoop& loop_;
  SessionTable& sessions_;
  ExecutorPool& pool_;
  const ImageStore& images_;
  ImageService& image_service_;
  const Replacements& replacements_;
  const Serve serve_;
  bool quitting_ = false;
  std::optional<Rest> rest_;
  std::uint64_t last_order_ = 0;  // to rest
  std::uint64_t obstacle_ = 0;
  std::function<void()> on_renewed_;
  House renewed_house_;  // that on_renewed_ is for
  std::function<void()> on_retired_;
};

}  // namespace mpsshim::broker::control
