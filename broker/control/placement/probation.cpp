// SPDX-License-Identifier: Apache-2.0
#include "broker/control/placement/probation.hpp"

namespace mpsshim::broker::control {

// Whoever is opened again behind a fault of somebody else's goes on with its time.
void Probation::served(ClientSession& session) {
  if (length_.count() == 0 || !choice_.serves_probation(session.executor->id())) return session.probation.reset();
  if (!session.probation) look_after(session, length_);
}

void Probation::look_after(ClientSession& session, std::chrono::seconds wait) {
  session.probation = loop_.after(wait, [this, id = session.id, wait] {
    ClientSession* const found = sessions_.find(id);
    if (found == nullptr) return;
    look_after(*found, 2 * wait);
    pass(*found);
  });
}

// It may have lost its executor meanwhile, and be on its way to the next: then it is not known whose the fault was.
void Probation::pass(ClientSession& session) {
  if (session.phase != SessionPhase::active) return;
  ledger_.note_good(*session.client.program);
  (void)relocations_.leave_probation(session);
}

}  // namespace mpsshim::broker::control
