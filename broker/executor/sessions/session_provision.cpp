// SPDX-License-Identifier: Apache-2.0
// How a session gets its share of the multiprocessors, if it is not to have all (green/session_share.hpp), and another share or priority while its
// client is at work.
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "broker/executor/sessions/session.hpp"
#include "broker/log.hpp"
#include "proto/provision.hpp"

namespace mpsshim::broker {

// Until it is there the client's records stay in the ring.
void Session::await_share() {
  if (awaits_share_) seek_share();
}

// The driver makes a green context while nothing runs. A session that has a place works there meanwhile.
void Session::seek_share() {
  if (has_asked_share_) return;  // take_share() looks whether that is what is wanted by then
  SessionShare share;
  if (share_wish_.chunks == 0) share_.use = nullptr;  // where it is counts as free for it
  if (wish_.is_whole() || parts_.shares.find(wish_, share)) return take_share(CUDA_SUCCESS, std::move(share), wish_);
  has_asked_share_ = true;
  const auto make = [self = shared_from_this(), wish = wish_](WindowResult window) {
    const auto made = std::make_shared<SessionShare>();
    CUresult result = CUDA_ERROR_MPS_SERVER_NOT_READY;
    if (window == WindowResult::open) result = self->parts_.shares.make(wish, *made);
    self->run_on_worker([self, result, made, wish] {
      self->has_asked_share_ = false;
      self->take_share(result, std::move(*made), wish);
    });
  };
  start_window_call("cuGreenCtxCreate", make);
}

void Session::take_share(CUresult result, SessionShare share, const ShareWish& wish) {
  if (!is_reading() || (paused_ && result == CUDA_ERROR_MPS_SERVER_NOT_READY)) return;  // it goes elsewhere; if not, it asks again
  if (wish != wish_) return seek_share();                                               // another order came meanwhile
  if (awaits_share_) {
    share_ = std::move(share);
    share_wish_ = wish;
    return take_first_share(result);
  }
  if (result == CUDA_SUCCESS) return change_share(std::move(share), wish);
  parts_.faults.check(result, id_, "cuGreenCtxCreate");
  log_error("Session {} (pid {}): it is to have {}, and no green context can be made for that: {}. It keeps what it has", id_, client_pid_,
            wish.text(), parts_.driver.describe(result));
  wish_ = share_wish_;
  provisioned(result);
}

// A client that cannot be held to its share is not served.
void Session::take_first_share(CUresult result) {
  awaits_share_ = false;
  if (result == CUDA_SUCCESS && share_.green != nullptr) result = streams_.confine(share_.green);
  provisioned(result);
  if (result == CUDA_SUCCESS) return;
  failed_ = true;
  parts_.faults.check(result, id_, "cuGreenCtxCreate");
  log_error("Session {} (pid {}): it is to have {}, and no green context can be made for that: {}. The session ends", id_, client_pid_, wish_.text(),
            parts_.driver.describe(result));
  channel_.set_failed(result);
  abandon_jobs();
}

// What it leaves ends with the last stream and the last graph there. Chunks are given in place of what a group lends, so they are likely to be wanted
// again, and then there need be no quiet window.
void Session::change_share(SessionShare share, const ShareWish& wish) {
  std::swap(share_, share);
  if (share_wish_.chunks != 0) left_share_ = std::move(share);
  share_wish_ = wish;
  has_changed_share_ = true;
  streams_.change_places(share_.green);
  confine_graphs([this] { provisioned(CUDA_SUCCESS); });
}

void Session::provision(const message::SessionProvision& wanted, ProvisionAnswer answer) {
  if (!is_reading()) return answer(CUDA_ERROR_INVALID_HANDLE, wanted.thread_percentage);
  provision_answers_.push_back(std::move(answer));
  memory_.change_limit(wanted.device_limit_bytes);
  set_priority_rank(wanted.client_priority);
  wish_ = ShareWish::of(wanted);
  if (awaits_share_ || has_asked_share_ || share_wish_ != wish_) return seek_share();
  if (graphs_to_confine_ == 0) provisioned(CUDA_SUCCESS);
}

void Session::set_priority_rank(unsigned rank) {
  const unsigned before = std::exchange(priority_rank_, rank);
  if (before == rank) return;
  context_.priority_rank = rank;
  parts_.ranks.enter(rank);
  parts_.ranks.leave(before);
  streams_.change_places(share_.green);
}

void Session::provisioned(CUresult result) {
  const std::uint32_t percentage = share_wish_.percentage != 0 ? share_wish_.percentage : proto::kWholePercentage;
  for (const ProvisionAnswer& answer : std::exchange(provision_answers_, {})) answer(result, percentage);
}

// The driver's graphs keep the multiprocessors that their nodes were added for, so they are made anew, one window job each: nothing runs then. Behind
// them it looks again, for what was made meanwhile, or where another order came.
void Session::confine_graphs(std::function<void()> done) {
  const GreenContextRef share = share_.green;
  const std::vector<std::shared_ptr<SessionGraph>> graphs =
      has_changed_share_ ? graphs_.outside(share) : std::vector<std::shared_ptr<SessionGraph>>();
  if (graphs.empty()) return done ? done() : void();
  const auto left = std::make_shared<std::size_t>(graphs.size());
  graphs_to_confine_ += graphs.size();
  for (const std::shared_ptr<SessionGraph>& graph : graphs) {
    const auto confine = [self = shared_from_this(), graph, share, left, done, use = memory_uses_.begin()](WindowResult window) {
      const CUresult result = window == WindowResult::open ? graph->confine(share) : CUDA_ERROR_MPS_SERVER_NOT_READY;
      if (self->parts_.faults.check(result, self->id_, "cuGraphInstantiateWithFlags") != CUDA_SUCCESS) {
        log_error("Session {} (pid {}): a graph keeps the multiprocessors that it was made for, because it cannot be made anew: {}", self->id_,
                  self->client_pid_, self->parts_.driver.describe(result));
      }
      self->run_on_worker([self, left, done] {
        --self->graphs_to_confine_;
        if (--*left == 0) self->confine_graphs(done);
      });
    };
    start_window_call("cuGraphInstantiate", confine, graph->instantiation_time());
  }
}

}  // namespace mpsshim::broker
