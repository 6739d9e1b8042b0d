// SPDX-License-Identifier: Apache-2.0
// How a session gets its share of the multiprocessors, if it is not to have all (green/session_share.hpp).
#include <memory>
#include <utility>

#include "broker/executor/sessions/session.hpp"
#include "broker/log.hpp"
#include "proto/provision.hpp"

namespace mpsshim::broker {

// The driver makes a green context while nothing runs. Until it is there the client's records stay in the ring.
void Session::await_share() {
  if (!awaits_share_ || std::exchange(has_asked_share_, true)) return;
  const auto make = [self = shared_from_this()](WindowResult window) {
    const auto share = std::make_shared<SessionShare>();
    CUresult result = CUDA_ERROR_MPS_SERVER_NOT_READY;
    if (window == WindowResult::open) result = self->parts_.shares.make(self->thread_percentage_, *share);
    self->run_on_worker([self, result, share] { self->take_share(result, std::move(*share)); });
  };
  start_window_call("cuGreenCtxCreate", make);
}

// A client that cannot be held to its share is not served.
void Session::take_share(CUresult result, SessionShare share) {
  has_asked_share_ = false;
  if (!is_reading() || (paused_ && result == CUDA_ERROR_MPS_SERVER_NOT_READY)) return;  // it goes elsewhere; if not, it asks again
  awaits_share_ = false;
  share_ = std::move(share);
  if (result == CUDA_SUCCESS) result = streams_.confine(share_.green);
  if (result == CUDA_SUCCESS) return;
  failed_ = true;
  parts_.faults.check(result, id_, "cuGreenCtxCreate");
  log_error("Session {} (pid {}): it is to have {} % of the multiprocessors, and no green context can be made for that: {}. The session ends", id_,
            client_pid_, proto::percentage_text(thread_percentage_), parts_.driver.describe(result));
  channel_.set_failed(result);
  abandon_jobs();
}

}  // namespace mpsshim::broker
