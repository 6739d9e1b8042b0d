// SPDX-License-Identifier: Apache-2.0
// What executors send to SessionManager. The link has held each message against its row; whose session it names is looked at here.
#include <algorithm>

#include "broker/control/sessions/session_manager.hpp"
#include "broker/log.hpp"
#include "broker/log_subject.hpp"

namespace mpsshim::broker::control {

namespace {
constexpr std::chrono::milliseconds kFeedDelay{50};
}

// Packets are served in order: what an executor has sent before a Settle has been dealt with.
void SessionManager::executor_sent(ManagedExecutor& executor, ReceivedMessage& received) {
  ClientSession* session = find(received.session());
  if (session != nullptr && (session->executor != &executor || !session->in_executor())) session = nullptr;
  const LogSubject subject(session != nullptr ? session->client.uid : executor.log_user());
  if (session != nullptr) session_sent(*session, received);
  switch (received.id()) {
    case ExecutorMessage::session_closed:
      if (session == nullptr) free_leases(remnants_.remove(executor, received.session()));
      return;
    case ExecutorMessage::variables_checked: return variables_checked(executor, received.read<message::VariablesChecked>());
    case ExecutorMessage::memory_want: return grant_memory(executor, session, received.read<message::MemoryWant>());
    case ExecutorMessage::image_want: return give_image(executor, received.read<message::ImageWant>());
    case ExecutorMessage::image_check: return check_input(executor, received.take<message::ImageCheck>());
    case ExecutorMessage::link_want: return have_linked(executor, received.take<message::LinkWant>());
    case ExecutorMessage::module_note: return module_noted(executor, received.read<message::ModuleNote>());
    case ExecutorMessage::image_compiled: {
      auto [compiled, fds] = received.take<message::ImageCompiled>();
      return images_.keep_compiled(executor.id().device, compiled.image, std::move(fds.cubin));
    }
    case ExecutorMessage::starved: return starved(executor, received.read<message::Starved>());
    case ExecutorMessage::settle: return executor.send(message::Settled{.ticket = received.read<message::Settle>().ticket});
    case ExecutorMessage::quiesced: return quiesced(executor);
    case ExecutorMessage::printed: return printed(executor, received.read<message::Printed>());
    case ExecutorMessage::session_opened:
    case ExecutorMessage::session_paused:
    case ExecutorMessage::chunk_created:
    case ExecutorMessage::chunk_released:
    case ExecutorMessage::segment_released:
    case ExecutorMessage::lease_released:
    case ExecutorMessage::piece_taken:
    case ExecutorMessage::piece_ended:
    case ExecutorMessage::memory_back:
    case ExecutorMessage::variables_file:
    case ExecutorMessage::event_times:
    case ExecutorMessage::heap_used: return;  // the session's
    case ExecutorMessage::standing_by:
    case ExecutorMessage::ready:
    case ExecutorMessage::fault: return;  // Standby's and ManagedExecutor's own
#define MPSSHIM_TO_EXECUTOR(enumerator, Structure) case ExecutorMessage::enumerator:
#include "gen/message_names.inc"
      return;  // the link has left it out
  }
}

// Of a session that the executor has.
void SessionManager::session_sent(ClientSession& session, ReceivedMessage& received) {
  if (received.is<message::SessionOpened>()) return session_opened(session, static_cast<CUresult>(received.read<message::SessionOpened>().status));
  if (received.is<message::SessionClosed>()) return session_closed(session);
  if (received.is<message::SessionPaused>()) return paused(session, received.read<message::SessionPaused>());
  if (received.is<message::ChunkCreated>()) return chunk_created(session, received.take<message::ChunkCreated>());
  if (received.is<message::ChunkReleased>()) return chunk_released(session, received.read<message::ChunkReleased>().chunk);
  if (received.is<message::LeaseReleased>()) return lease_released(session, received.read<message::LeaseReleased>().address);
  if (received.is<message::SegmentReleased>()) {
    session.segments.release(received.read<message::SegmentReleased>().segment);
  } else if (received.is<message::PieceTaken>()) {
    const auto taken = received.read<message::PieceTaken>();
    if (auto piece = session.announced.extract(taken.memory); !piece.empty()) session.imported[taken.piece] = std::move(piece.mapped());
  } else if (received.is<message::PieceEnded>()) {
    session.imported.erase(received.read<message::PieceEnded>().piece);
  } else if (received.is<message::MemoryBack>()) {
    session.granted.erase(received.read<message::MemoryBack>().question);
  } else if (received.is<message::VariablesFile>()) {
    session.variables = std::move(received.take<message::VariablesFile>().fds.variables);
  } else if (received.is<message::EventTimes>()) {
    session.event_times = std::move(received.take<message::EventTimes>().fds.times);
  } else if (received.is<message::HeapUsed>()) {
    session.uses_heap = true;
  }
}

void SessionManager::module_noted(ManagedExecutor& executor, const message::ModuleNote& note) {
  images_.keep_undone(std::ranges::any_of(pool_.all(), [](const auto& entry) { return entry.second->has_next(); }));
  if (!images_.note({executor.id(), note.kind, note.object, note.copy, note.flags})) {
    log_error("Executor {} notes image {} as loaded, which the control process does not know; its globals cannot be brought back.", executor.label(),
              note.object);
  }
  // Later, when the load has not been the executor's end.
  if (executor.standby() != nullptr) standby_feeds_[executor.id()] = loop_.after(kFeedDelay, [this, &executor] { feed_standby(executor); });
}

void SessionManager::chunk_created(ClientSession& session, Received<message::ChunkCreated> received) {
  auto& [created, fds] = received;
  // Granted before, or another session's; without a limit it has not been asked for.
  DeviceChargeRef charge;
  if (auto shared = session.announced.extract(created.chunk); !shared.empty()) charge = std::move(shared.mapped());
  if (auto granted = session.granted.extract(created.grant); !granted.empty()) charge = std::move(granted.mapped());
  if (charge == nullptr) charge = quota_.add(session.device, session.client.uid, created.size_bytes);
  session.chunks.add(created.chunk, created.size_bytes, std::move(fds.handle), std::move(charge));
}

}  // namespace mpsshim::broker::control
