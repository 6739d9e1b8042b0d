// SPDX-License-Identifier: Apache-2.0
// Sessions and executors together. Owns the parts that have a subject each, tells them what they need of each other, hands requests of clients and
// commands to them, and deals out what executors say. Decides nothing itself. Knows neither sockets of clients nor the text of commands. Longer than
// other headers by a line or two for each part.
// Owned by Server; the control process's thread. Requests come from ClientConnection, which has checked their form; the parts check ids and ranges
// against the session's own objects. Executors are ours, but may crash at any point.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "broker/control/executors/executor_pool.hpp"
#include "broker/control/executors/published_facts.hpp"
#include "broker/control/life/client_changes.hpp"
#include "broker/control/life/executor_deaths.hpp"
#include "broker/control/life/multiprocessor_requests.hpp"
#include "broker/control/life/session_opening.hpp"
#include "broker/control/life/trials.hpp"
#include "broker/control/placement/collectives.hpp"
#include "broker/control/placement/probation.hpp"
#include "broker/control/placement/relocations.hpp"
#include "broker/control/placement/spread.hpp"
#include "broker/control/restarts/heap_renewal.hpp"
#include "broker/control/restarts/restarts.hpp"
#include "broker/control/restarts/session_handover.hpp"
#include "broker/control/sessions/device_chunks.hpp"
#include "broker/control/sessions/holdings.hpp"
#include "broker/control/sessions/host_segments.hpp"
#include "broker/control/sessions/memory_limits.hpp"
#include "broker/control/sessions/namespaces.hpp"
#include "broker/control/sessions/sm_partitions.hpp"
#include "broker/control/sessions/thread_percentages.hpp"

namespace mpsshim::broker::control {

class SessionManager final : public ExecutorOwner {
 public:
  struct Events {
    std::function<void()> facts_published;  // the first time
    std::function<void(const std::string& why)> cannot_start;
    std::function<void()> stopped;  // after quit(): every executor is gone
  };
  // Without `compilers` executors read images themselves, without `linkers` they compile and link them.
  SessionManager(EventLoop& loop, ExecutorLauncher& launcher, const ExecutorSettings& executors, const SessionLimits& limits, Events events,
                 CompilerLauncher* compilers = nullptr, CompilerLauncher* linkers = nullptr);
  SessionManager(const SessionManager&) = delete;
  ~SessionManager() override { image_service_.stop(); }  // while there are executors that can be answered

  void start();
  // Every session gets `error`, every executor ends, Events::stopped follows.
  void quit(CUresult error);

  // -1 until an executor was ready; then a sealed, read-only file of DriverFacts.
  [[nodiscard]] int facts_file() const { return facts_file_.file(); }
  [[nodiscard]] const proto::DriverFacts* facts() const;
  [[nodiscard]] const SessionLimits& limits() const { return limits_; }
  [[nodiscard]] const SessionTable::Map& sessions() const { return sessions_.all(); }
  [[nodiscard]] const std::map<ExecutorId, std::unique_ptr<ManagedExecutor>>& executors() const { return pool_.all(); }
  [[nodiscard]] ImageStore& images() { return images_; }
  [[nodiscard]] FaultLedger& faults() { return ledger_; }
  [[nodiscard]] Restarts& restarts() { return restarts_; }
  [[nodiscard]] HeapRenewal& heaps() { return heaps_; }
  [[nodiscard]] std::map<uid_t, Holding> holdings() const { return holdings_.by_user(chunks_.quota()); }

  // Requests of clients and commands.
  [[nodiscard]] ClientSession* find(std::uint64_t session) { return sessions_.find(session); }  // nullptr once it has ended
  [[nodiscard]] CUresult create(const ClientIdentity& client, unsigned device, ClientSession*& session);
  void attach(ClientSession& session, ClientSession::Answer answer) { opening_.attach(session, std::move(answer)); }
  void replace_lease(ClientSession& session, const proto::Lease& refused, ClientSession::Answer answer) {
    opening_.replace_lease(session, refused, std::move(answer));
  }
  [[nodiscard]] std::optional<proto::Lease> add_lease(ClientSession& session, std::uint64_t size_bytes) { return ranges_.add(session, size_bytes); }
  [[nodiscard]] CUresult open_peers(ClientSession& session, std::uint64_t address, proto::Lease& lease);
  [[nodiscard]] CUresult open_memory(ClientSession& session, const proto::MemoryOpen& request, DeviceChunks::Opened& opened);
  [[nodiscard]] bool may_hold(const ClientSession& session, std::uint64_t more_bytes, std::string& why) const {
    return holdings_.may_hold(session, more_bytes, why);
  }
  [[nodiscard]] MemoryLimits& memory_limits() { return memory_limits_; }
  [[nodiscard]] ThreadPercentages& thread_percentages() { return thread_percentages_; }
  // Of clients that come from now on and ask for none; 0: normal, 1: below normal.
  [[nodiscard]] std::uint32_t& default_client_priority() { return default_client_priority_; }
  // What would hold for a session of that user on that device by what its server has; kWholePercentage: all.
  [[nodiscard]] std::uint32_t thread_percentage_of(uid_t user, unsigned device) const {
    return thread_percentages_.of_server({device, 0, limits_.house_of(user)});
  }
  [[nodiscard]] ClientChanges& changes() { return changes_; }
  [[nodiscard]] Namespaces& namespaces() { return namespaces_; }
  [[nodiscard]] MultiprocessorRequests& requests() { return requests_; }
  [[nodiscard]] SmPartitions& partitions() { return partitions_; }
  [[nodiscard]] const SmPartitions& partitions() const { return partitions_; }
  [[nodiscard]] const Namespace* namespace_of(const ClientSession& session) const {
    return session.name_space.empty() ? nullptr : namespaces_.find({limits_.house_of(session.client.uid), session.name_space});
  }
  // Device memory that its clients hold together.
  [[nodiscard]] std::uint64_t namespace_held(const Namespace& of, unsigned device) const;
  // For who names no device; nothing where this broker does not spread newcomers.
  [[nodiscard]] Spread::Place place_newcomer(const ClientIdentity& client) {
    return limits_.spreads_newcomers && facts() != nullptr ? spread_.tell(client, *facts()) : Spread::Place();
  }
  [[nodiscard]] Spread& spread() { return spread_; }
  // All that is set, of the session, its namespace and its user.
  [[nodiscard]] SessionTerms terms_of(const ClientSession& session) const;
  [[nodiscard]] DeviceChunks& chunks() { return chunks_; }
  [[nodiscard]] HostSegments& segments() { return segments_; }
  [[nodiscard]] CUresult offer_external(ClientSession& session, const proto::ExternalOffer& request, const proto::FileDescriptor& descriptor);
  void end(ClientSession& session) { ends_.end(session); }  // the client is gone
  void trial_ended(ClientSession& session, const proto::TrialEnded& ended) { trials_.told(session, ended); }
  // After a hand-over: those that no connection has come with.
  void end_all_but(const std::set<std::uint64_t>& claimed) { ends_.end_all_but(claimed); }
  // The client has CUDA_ERROR_MPS_CLIENT_TERMINATED from now on. `stopped` is called once, when nothing of the session runs any more.
  void terminate(ClientSession& session, std::function<void()> stopped) { ends_.terminate(session, std::move(stopped)); }

  // For a hand-over, after Restarts::retire_executors.
  void save(StateWriter& state);
  // In place of start(). `started` is called when its executors serve. False: what was handed over cannot be served; `why` says why.
  [[nodiscard]] bool resume(StateReader& state, std::string& why, std::function<void()> started);

  void fault_told(const XidLine& line);  // by the kernel log
  void executor_ready(ManagedExecutor& executor) override;
  void executor_sent(ManagedExecutor& executor, ReceivedMessage& received) override;
  [[nodiscard]] bool executor_died(ManagedExecutor& executor, const DeathReport& report, const std::set<std::uint64_t>& busy) override;
  std::optional<ProgressTick> fault_heard(pid_t pid) override { return investigation_.first_heard(pid); }
  void executor_hangs(ManagedExecutor& executor, const PublishedCall& call) override;
  void standby_waits(ManagedExecutor& executor) override { replays_.feed_standby(executor); }
  void executor_cannot_start(ManagedExecutor& executor, const std::string& why) override;
  void executor_stopped(ManagedExecutor& executor) override;

 private:
  void serve(ManagedExecutor& executor);
  void forget(ManagedExecutor& executor);
  void life_ended(const ManagedExecutor& executor);
  void session_sent(ClientSession& session, ReceivedMessage& received);
  void session_closed(ClientSession& session);
  [[nodiscard]] SessionHandover handover();
  void take_default_limits(const proto::DriverFacts& facts);
  void take_default_provision();
  void make_partitions(const proto::DriverFacts& facts);
  void take_requests_back(const proto::DriverFacts& facts);
  // Device memory that a session may still have by its namespace's limit, and by what is kept for the others; UINT64_MAX: all.
  [[nodiscard]] std::uint64_t namespace_left(const ClientSession& session) const;
  [[nodiscard]] std::uint64_t own_group_of(const ClientSession& session) const;  // whose executors serve nobody else; 0: of none
  [[nodiscard]] std::uint64_t others_left(const ClientSession& session) const;

  EventLoop& loop_;
  const SessionLimits limits_;
  const Events events_;
  PublishedFacts facts_file_;
  ImageStore images_;
  ShareTable shares_;
  SessionTable sessions_;
  MemoryLimits memory_limits_;
  ThreadPercentages thread_percentages_;
  Namespaces namespaces_;
  SmPartitions partitions_;
  std::uint32_t default_client_priority_ = 0;
  ExecutorPool pool_;
  SessionRanges ranges_;
  Holdings holdings_;
  DeviceChunks chunks_;
  HostSegments segments_;
  FaultLedger ledger_;
  ImageService image_service_;
  LoadReplays replays_;
  Kinds kinds_;
  ExecutorChoice choice_;
  Blockers blockers_;
  Relocations relocations_;
  Collectives collectives_;
  Spread spread_;
  Probation probation_;
  Replacements replacements_;
  SessionEnds ends_;
  SessionOpening opening_;
  ClientChanges changes_;
  MultiprocessorRequests requests_;
  Investigation investigation_;
  Trials trials_;
  ExecutorDeaths deaths_;
  Restarts restarts_;
  HeapRenewal heaps_;
};

}  // namespace mpsshim::broker::control
