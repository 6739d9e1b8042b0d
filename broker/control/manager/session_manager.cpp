// SPDX-License-Identifier: Apache-2.0
#include "broker/control/manager/session_manager.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "broker/control/base/complaints.hpp"
#include "broker/control/sessions/session_output.hpp"
#include "broker/log.hpp"
#include "broker/log_subject.hpp"
#include "proto/memory_limit.hpp"
#include "proto/provision.hpp"

namespace mpsshim::broker::control {

namespace {

ExecutorSettings counted(ExecutorSettings executors, const SessionCountsStore& counts) {
  executors.counts_file = counts.file();
  return executors;
}

}  // namespace

SessionManager::SessionManager(EventLoop& loop, ExecutorLauncher& launcher, const ExecutorSettings& executors, const SessionLimits& limits,
                               Events events, CompilerLauncher* compilers, CompilerLauncher* linkers)
    : loop_(loop),
      limits_(limits),
      events_(std::move(events)),
      images_(loop),
      sessions_(limits_),
      pool_(loop, launcher, counted(executors, sessions_.counts()), limits_.pool, *this),
      ranges_(limits_, sessions_),
      holdings_(limits_, sessions_, images_),
      chunks_(
          limits_.resources.user.device_bytes, sessions_, shares_, [this](const ClientSession& session) { return namespace_left(session); },
          [this](const ClientSession& session) { return others_left(session); }),
      segments_(sessions_, holdings_, shares_, ranges_),
      ledger_(loop, limits_.quarantine,
              {.programs_known = [this] { opening_.programs_known(); }, .released = [this](const Ward& ward) { choice_.released(ward); }}),
      image_service_(loop, limits_, sessions_, pool_, images_, compilers, linkers),
      replays_(loop, limits_, sessions_, pool_, images_),
      kinds_(limits_, sessions_, pool_),
      choice_(limits_, sessions_, pool_, ranges_, images_, ledger_, kinds_, [this](const ClientSession& session) { return own_group_of(session); }),
      blockers_(limits_, sessions_, pool_, choice_, kinds_, ledger_,
                [this](ClientSession& session, CUresult error, const char* why) { ends_.fail(session, error, why); }),
      relocations_(loop, limits_, sessions_, choice_, kinds_, blockers_, ranges_, replays_, [this] { return restarts_.is_idle(); }),
      collectives_(loop, sessions_, relocations_),
      spread_(sessions_, pool_),
      probation_(loop, limits_.quarantine.probation, sessions_, ledger_, choice_, relocations_),
      replacements_(loop, limits_, sessions_),
      ends_(loop, limits_,
            {.sessions = sessions_,
             .ranges = ranges_,
             .images = images_,
             .image_service = image_service_,
             .replays = replays_,
             .shares = shares_,
             .choice = choice_,
             .relocations = relocations_,
             .replacements = replacements_,
             .ledger = ledger_},
            {.lost =
                 [this](std::uint64_t session) {
                   changes_.ended(session);
                   trials_.ended(session);
                 },
             .erased =
                 [this](std::uint64_t session) {
                   changes_.ended(session);
                   trials_.ended(session);
                   choice_.prepare_for_trials();
                   heaps_.look_soon();
                 }}),
      opening_(loop, limits_, sessions_, pool_, choice_, ranges_, ledger_, probation_, ends_,
               {.memory_limit =
                    [this](const ClientSession& session, const ManagedExecutor& executor) {
                      memory_limits_.begin(executor.id());
                      return proto::lower_limit(memory_limits_.of_server(executor.id(), session.device), session.asked_memory_limit_bytes);
                    },
                .thread_percentage =
                    [this](const ClientSession& session, const ManagedExecutor& executor) {
                      thread_percentages_.begin(executor.id());
                      if (limits_.has_static_partitions) return proto::kWholePercentage;  // of its partition
                      return proto::lower_percentage(thread_percentages_.of_server(executor.id()), session.asked_thread_percentage);
                    },
                .client_priority =
                    [this](const ClientSession& session) {
                      const Namespace* const of = namespace_of(session);
                      const std::uint32_t otherwise =
                          of != nullptr ? of->client_priority.value_or(default_client_priority_) : default_client_priority_;
                      return std::min(session.asked_client_priority.value_or(otherwise), limits_.client_priorities - 1);
                    },
                .terms = [this](const ClientSession& session) { return terms_of(session); },
                .awaits_turn = [this](ClientSession& session) { return trials_.awaits_turn(session); },
                .is_held_back = [this](const ClientSession& newcomer) { return heaps_.holds_back(newcomer); }}),
      changes_(loop, sessions_, [this](const ClientSession& session) { return terms_of(session); }),
      requests_(loop, {.limits = limits_,
                       .sessions = sessions_,
                       .namespaces = namespaces_,
                       .partitions = partitions_,
                       .facts = [this] { return facts(); },
                       .refresh =
                           [this](std::uint64_t session) {
                             if (ClientSession* const found = sessions_.find(session); found != nullptr) changes_.refresh(*found);
                           }}),
      investigation_(sessions_, ledger_),
      trials_(loop, limits_, sessions_, choice_, ends_, ledger_, [this](ClientSession& session) { opening_.await_executor(session); }),
      deaths_(sessions_, ends_, relocations_, investigation_, trials_, ledger_),
      restarts_(loop, sessions_, pool_, images_, image_service_, replacements_, [this](ManagedExecutor& executor) { serve(executor); }),
      heaps_(loop, sessions_, pool_, restarts_, [this](ManagedExecutor& executor) { serve(executor); }) {}

void SessionManager::start() {
  take_default_provision();
  investigation_.listen(loop_, [this](const XidLine& line) { fault_told(line); });
  (void)pool_.first(0);
}

void SessionManager::quit(CUresult error) {
  restarts_.quit();
  for (auto& [id, session] : sessions_.all()) {
    if (session.channel) session.channel->tell_failed(error);
    if (session.answer) session.respond(error);
  }
  replacements_.clear();
  image_service_.stop();
  pool_.quit();
}

const proto::DriverFacts* SessionManager::facts() const {
  const auto first = pool_.all().find({0, 0});
  return first == pool_.all().end() ? nullptr : first->second->facts();
}

CUresult SessionManager::create(const ClientIdentity& client, unsigned device, ClientSession*& session) {
  if (facts() == nullptr) return CUDA_ERROR_MPS_SERVER_NOT_READY;
  if (device >= facts()->device_count) return CUDA_ERROR_INVALID_DEVICE;
  if (std::string why; !holdings_.may_open(client, device, why)) {
    complain("pid {} ({}) is refused: {}.", client.pid, client.command, why);
    return CUDA_ERROR_MPS_MAX_CLIENTS_REACHED;
  }
  session = &sessions_.add(client, device);
  image_service_.expect(client.uid);
  return CUDA_SUCCESS;
}

CUresult SessionManager::open_peers(ClientSession& session, std::uint64_t address, proto::Lease& lease) {
  std::uint64_t owner = 0;
  const CUresult result = ranges_.open_peers(session, address, *facts(), lease, owner);
  if (result == CUDA_SUCCESS) collectives_.linked(session, owner);
  return result;
}

CUresult SessionManager::open_memory(ClientSession& session, const proto::MemoryOpen& request, DeviceChunks::Opened& opened) {
  const CUresult result = chunks_.open(session, request, *facts(), opened);
  if (result == CUDA_SUCCESS) collectives_.linked(session, opened.owner);
  return result;
}

CUresult SessionManager::offer_external(ClientSession& session, const proto::ExternalOffer& request, const proto::FileDescriptor& descriptor) {
  return chunks_.offer_external(session, request, descriptor, facts()->device[session.device].is_cpu_device != 0);
}

SessionHandover SessionManager::handover() {
  return SessionHandover({.facts = facts_file_,
                          .sessions = sessions_,
                          .segments = segments_,
                          .images = images_,
                          .pool = pool_,
                          .ranges = ranges_,
                          .quota = chunks_.quota(),
                          .ledger = ledger_,
                          .memory_limits = memory_limits_,
                          .thread_percentages = thread_percentages_,
                          .namespaces = namespaces_,
                          .partitions = partitions_,
                          .default_client_priority = default_client_priority_});
}

void SessionManager::save(StateWriter& state) {
  trials_.end_all();
  handover().save(state);
}

bool SessionManager::resume(StateReader& state, std::string& why, std::function<void()> started) {
  SessionHandover former = handover();
  if (!former.restore(state, why)) return false;
  requests_.changed();
  restarts_.await_first_lives(std::move(started));
  former.start_executors();
  return true;
}

void SessionManager::fault_told(const XidLine& line) {
  for (const auto& [id, executor] : pool_.all()) {
    if (line.number == kXidException) executor->rule_out_trap();
    if (executor->pid() == line.pid) executor->expect_fault(line);
  }
}

// The link has held each message against its row; whose session it names is looked at here. Packets are served in order: what an executor has sent
// before a Settle has been dealt with.
void SessionManager::executor_sent(ManagedExecutor& executor, ReceivedMessage& received) {
  ClientSession* session = sessions_.find(received.session());
  if (session != nullptr && (session->executor != &executor || !session->in_executor())) session = nullptr;
  const LogSubject subject(session != nullptr ? session->client.uid : executor.log_user());
  if (session != nullptr) session_sent(*session, received);
  switch (received.id()) {
    case ExecutorMessage::session_closed:
      if (session == nullptr) ranges_.taken_down(executor, received.session());
      return;
    case ExecutorMessage::variables_checked: return relocations_.variables_checked(executor, received.read<message::VariablesChecked>());
    case ExecutorMessage::memory_want: return chunks_.grant(executor, session, received.read<message::MemoryWant>());
    case ExecutorMessage::image_want: return image_service_.give_image(executor, received.read<message::ImageWant>());
    case ExecutorMessage::image_check: return image_service_.check_input(executor, received.take<message::ImageCheck>());
    case ExecutorMessage::link_want: return image_service_.have_linked(executor, received.take<message::LinkWant>());
    case ExecutorMessage::module_note: return replays_.noted(executor, received.read<message::ModuleNote>());
    case ExecutorMessage::image_compiled: {
      auto [compiled, fds] = received.take<message::ImageCompiled>();
      return images_.keep_compiled(executor.id().device, compiled.image, std::move(fds.cubin));
    }
    case ExecutorMessage::starved: return relocations_.starved(executor, received.read<message::Starved>());
    case ExecutorMessage::heap_wanted: return relocations_.heap_wanted(executor, received.read<message::HeapWanted>());
    case ExecutorMessage::settle: return executor.send(message::Settled{.ticket = received.read<message::Settle>().ticket});
    case ExecutorMessage::quiesced: return replacements_.quiesced(executor);
    case ExecutorMessage::printed: return note_output(sessions_, executor, received.read<message::Printed>());
    // The session's.
    case ExecutorMessage::session_opened:
    case ExecutorMessage::session_paused:
    case ExecutorMessage::session_provisioned:
    case ExecutorMessage::chunk_created:
    case ExecutorMessage::chunk_released:
    case ExecutorMessage::segment_released:
    case ExecutorMessage::lease_released:
    case ExecutorMessage::piece_taken:
    case ExecutorMessage::piece_ended:
    case ExecutorMessage::memory_back:
    case ExecutorMessage::variables_file:
    case ExecutorMessage::event_times:
    case ExecutorMessage::heap_used:
    case ExecutorMessage::asserted:
    // Standby's and ManagedExecutor's own.
    case ExecutorMessage::standing_by:
    case ExecutorMessage::ready:
    case ExecutorMessage::fault:
      // The link has left these out.
#define MPSSHIM_TO_EXECUTOR(enumerator, Structure) case ExecutorMessage::enumerator:
#include "gen/message_names.inc"
      return;
  }
}

// Of a session that the executor has.
void SessionManager::session_sent(ClientSession& session, ReceivedMessage& received) {
  if (received.is<message::SessionOpened>()) {
    const auto status = static_cast<CUresult>(received.read<message::SessionOpened>().status);
    // Nothing was opened, nothing will close.
    if (session.is_ending() && status != CUDA_SUCCESS) return session_closed(session);
    changes_.opened(session);
    opening_.opened(session, status);
    return choice_.prepare_for_trials();
  }
  if (received.is<message::SessionProvisioned>()) return changes_.provisioned(session, received.read<message::SessionProvisioned>());
  if (received.is<message::SessionClosed>()) return session_closed(session);
  if (received.is<message::SessionPaused>()) {
    const auto answer = received.read<message::SessionPaused>();
    if ((answer.flags & kPauseLast) != 0) return replacements_.paused(session, answer);
    return (answer.flags & kPauseToRest) != 0 ? restarts_.paused(session, answer) : relocations_.paused(session, answer);
  }
  if (received.is<message::ChunkCreated>()) return chunks_.chunk_created(session, received.take<message::ChunkCreated>());
  if (received.is<message::ChunkReleased>()) return chunks_.chunk_released(session, received.read<message::ChunkReleased>().chunk);
  if (received.is<message::LeaseReleased>()) return ranges_.released(session, received.read<message::LeaseReleased>().address);
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
  } else if (received.is<message::Asserted>()) {
    const auto [asserted, fds] = received.take<message::Asserted>();
    if (session.is_ending()) return;
    add_output(session, OutputBox::kStandardError, read_words(fds.words, asserted.size_bytes));
    log_warning("{}: its kernels have failed in assertions; it gets CUDA error {}. Nobody else is concerned.", session.name(),
                static_cast<int>(CUDA_ERROR_ASSERT));
    ends_.fail(session, CUDA_ERROR_ASSERT, "its kernels have failed in assertions");
  }
}

void SessionManager::session_closed(ClientSession& session) {
  heaps_.session_left(session);
  if (session.phase == SessionPhase::reopening) return opening_.reopen(session);
  ends_.closed(session);
}

}  // namespace mpsshim::broker::control
