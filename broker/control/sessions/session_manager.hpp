// SPDX-License-Identifier: Apache-2.0
// Sessions and executors together: places sessions in executors, opens them there, brings their memory into the next one, moves those that
// starve, ends them, decides by verdict.hpp what a death costs whom. Knows neither sockets of clients nor the text of commands.
// In thirteen files: session_manager.cpp (opening), session_limits.cpp (what one may hold), session_end.cpp (ending), session_placement.cpp (which
// executor), session_blockers.cpp (kernels without end), session_rest.cpp (restarts), session_handover.cpp (to another program), session_recovery.cpp
// (executors' messages and deaths), session_faults.cpp (who has caused a fault), session_output.cpp (what kernels print), session_external.cpp
// (descriptors of other interfaces), session_heap.cpp (the device's heap), session_images.cpp (images for executors).
// Owned by Server; the control process's thread. Requests come from ClientConnection, which has checked their form; here ids and ranges are
// checked against the session's own objects. Executors are ours, but may crash at any point.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "broker/control/base/handover.hpp"
#include "broker/control/base/lease_table.hpp"
#include "broker/control/base/remnants.hpp"
#include "broker/control/base/resource_limits.hpp"
#include "broker/control/base/share_table.hpp"
#include "broker/control/executors/executor_pool.hpp"
#include "broker/control/executors/managed_executor.hpp"
#include "broker/control/faults/kernel_log.hpp"
#include "broker/control/images/compilers.hpp"
#include "broker/control/images/image_store.hpp"
#include "broker/control/sessions/client_session.hpp"
#include "broker/control/sessions/device_quota.hpp"

namespace mpsshim::broker::control {

struct SessionLimits {
  AddressWindow window;
  std::size_t max_clients = kMaxLeases;
  std::chrono::milliseconds orphan{200};     // how long work of a client that is gone may run on
  std::chrono::milliseconds drain{200};      // how long others' work is waited for before an executor is replaced
  std::chrono::milliseconds answer{10'000};  // how long a client waits for an executor
  std::chrono::milliseconds blocked{0};      // how long kernels may block all of a user's executors while somebody waits; 0: as long as they like
  std::chrono::milliseconds pause{1'000};    // how long the work of a session that is to be moved may take to end
  std::chrono::milliseconds relocate_for_tests{0};  // so often a session moves to another executor; 0: only one that starves
  QuarantineLimits quarantine;
  PoolLimits pool;
  CompilerLimits compilers;
  CompilerLimits linkers{.job = std::chrono::seconds(120)};
  std::chrono::seconds link_time{60};  // of the processor, a job
  std::chrono::milliseconds user_minute{30'000};  // of the processor's time, for a user's images in a minute; 0: no limit
  ResourceLimits resources = limits_of_this_machine();
  bool serves_all_users = false;  // else those of the broker's own uid
  bool shares_executors = false;  // all users are served in the same executors, in one address space
};

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

  void start();
  // Every session gets `error`, every executor ends, Events::stopped follows.
  void quit(CUresult error);

  // -1 until an executor was ready; then a sealed, read-only file of DriverFacts.
  [[nodiscard]] int facts_file() const { return facts_file_.get(); }
  [[nodiscard]] const proto::DriverFacts* facts() const;
  [[nodiscard]] const std::map<std::uint64_t, ClientSession>& sessions() const { return sessions_; }
  [[nodiscard]] const std::map<ExecutorId, std::unique_ptr<ManagedExecutor>>& executors() const { return pool_.all(); }
  [[nodiscard]] ImageStore& images() { return images_; }
  [[nodiscard]] ProgramReader& programs() { return programs_; }
  [[nodiscard]] bool weighs_faults() const { return !suspicions_.empty(); }  // until all programs of their suspects are known
  // Who shares executors and what is kept for them: image cache, load log. kHome, or a user who shares nothing with others.
  [[nodiscard]] uid_t house_of(const ClientIdentity& client) const;
  using House = std::optional<uid_t>;  // nothing: all
  [[nodiscard]] const SessionLimits& limits() const { return limits_; }
  // What clients hold, by user.
  struct Holding {
    std::size_t sessions = 0;  // those whose client is there
    std::size_t descriptors = 0;
    std::uint64_t host_bytes = 0;
    std::vector<std::uint64_t> device_bytes{};  // by device
  };
  [[nodiscard]] std::map<uid_t, Holding> holdings() const;
  // Whether the session may have a descriptor and so many bytes of host memory more; if not, `why` says which limit is reached.
  [[nodiscard]] bool may_hold(const ClientSession& session, std::uint64_t more_bytes, std::string& why) const;

  // nullptr once the session has ended.
  [[nodiscard]] ClientSession* find(std::uint64_t session);
  [[nodiscard]] CUresult create(const ClientIdentity& client, unsigned device, ClientSession*& session);
  // Answers once, now or later, unless the session ends first. CUDA_SUCCESS with lost_error set: the session did not survive its executor.
  void attach(ClientSession& session, ClientSession::Answer answer);
  // A name for memory that the session holds; nothing: it holds no such memory.
  [[nodiscard]] std::optional<proto::MemoryName> share_memory(const ClientSession& session, std::uint64_t object);
  [[nodiscard]] CUresult open_memory(ClientSession& session, const proto::MemoryOpen& request, std::uint64_t& size_bytes, bool& is_own);
  // Memory of another interface, behind a descriptor that the client has: looked at, and handed to its executor.
  [[nodiscard]] CUresult offer_external(ClientSession& session, const proto::ExternalOffer& request, const proto::FileDescriptor& descriptor);
  [[nodiscard]] CUresult create_segment(ClientSession& session, const proto::SegmentCreate& request, std::uint64_t& segment, int& file);
  // A segment of events of another session of the same user.
  [[nodiscard]] CUresult open_segment(ClientSession& session, const proto::SegmentOpen& request, std::uint64_t& segment, int& file);
  void take_output(ClientSession& session, proto::OutputTaken& message);
  // `refused` is one of the session's two leases; the answer means that it has another one in its place.
  void replace_lease(ClientSession& session, const proto::Lease& refused, ClientSession::Answer answer);
  // A further device range of at least `size_bytes`; empty: there is none.
  [[nodiscard]] std::optional<proto::Lease> add_lease(ClientSession& session, std::uint64_t size_bytes);
  void end(ClientSession& session);                          // the client is gone
  void end_all_but(const std::set<std::uint64_t>& claimed);  // after a hand-over: those that no connection has come with
  // The client has CUDA_ERROR_MPS_CLIENT_TERMINATED from now on. `stopped` is called once, when nothing of the session runs any more.
  void terminate(ClientSession& session, std::function<void()> stopped);

  // Restarts (session_rest.cpp). At rest: nothing of any session is in flight, all that was read is done; what clients ask meanwhile waits. `done`
  // is called once: with "" when it is so, and then one of the next two must follow; or with what stands in the way, and all goes on as before.
  struct RestOrder {
    std::chrono::milliseconds patience{10'000};
    bool force = false;  // who does not come to rest, or whose variables would be lost, loses its session
  };
  [[nodiscard]] bool prepare_next_lives() { return pool_.prepare_next_lives(); }  // until it says that all are ready
  // `house`: of its sessions and executors alone.
  void bring_to_rest(const RestOrder& order, std::function<void(const std::string& why)> done, House house = {});
  void renew_executors(std::function<void()> renewed, House house = {});  // each by its next life, prepared before
  void retire_executors(std::function<void()> retired);  // none is left, every session waits for one
  void start_executors(std::function<void()> started);   // after retire_executors
  // Before a command restarts them; `then` at once, or when session_heap.cpp has renewed them, which it may be about.
  void leave_heaps_to_command(std::function<void()> then);
  // session_handover.cpp. After retire_executors.
  void save(StateWriter& state) const;
  // In place of start(). `started` is called when its executors serve. False: what was handed over cannot be served; `why` says why.
  [[nodiscard]] bool resume(StateReader& state, std::string& why, std::function<void()> started);

  void executor_ready(ManagedExecutor& executor) override;
  void executor_sent(ManagedExecutor& executor, ReceivedMessage& received) override;
  [[nodiscard]] bool executor_died(ManagedExecutor& executor, const DeathReport& report, const std::set<std::uint64_t>& busy) override;
  void fault_told(const XidLine& line);  // by the kernel log
  std::optional<ProgressTick> fault_heard(pid_t pid) override { return kernel_log_.first_heard(pid); }
  void executor_hangs(ManagedExecutor& executor, const PublishedCall& call) override;
  void standby_waits(ManagedExecutor& executor) override;
  void executor_cannot_start(ManagedExecutor& executor, const std::string& why) override;
  void executor_stopped(ManagedExecutor& executor) override;

 private:
  [[nodiscard]] Holding holding_of(const ClientSession& session) const;
  [[nodiscard]] bool may_open(const ClientIdentity& client, std::string& why) const;
  [[nodiscard]] bool place(ClientSession& session);
  [[nodiscard]] bool suits(const ManagedExecutor& executor, const ClientSession& session) const;
  [[nodiscard]] ManagedExecutor* place_in_quarantine(const ClientSession& session, const Ward& ward);
  [[nodiscard]] ManagedExecutor* choose_other(const ClientSession& session, const ManagedExecutor& than);
  [[nodiscard]] ManagedExecutor* find_quarantine(const ClientSession& session, const Ward& ward) const;
  void printed(const ManagedExecutor& executor, const message::Printed& part);
  void add_output(ClientSession& session, std::uint32_t stream, std::string_view text);
  void note_fault(const std::vector<std::uint64_t>& suspects, double weight = 1);
  void weigh_faults();
  [[nodiscard]] bool awaits_program(const ClientSession& session) const;
  void programs_known();
  void arm_release();
  [[nodiscard]] bool is_used(const ManagedExecutor& executor) const;
  void release(ManagedExecutor& executor);
  void forget(ManagedExecutor& executor);
  void free_leases(const std::vector<Remnants::Leases>& leases);
  [[nodiscard]] std::string name_of(std::uint64_t session) const;  // for the log, gone or not
  void starved(ManagedExecutor& executor, const message::Starved& report);
  void relocate(ClientSession& session, ManagedExecutor& to);
  void relocate_for_tests();
  void copy_log(const ClientSession& session, const ManagedExecutor& from, const ManagedExecutor& to);
  void ask_for_pause(ClientSession& session);
  void paused(ClientSession& session, const message::SessionPaused& answer);
  void check_variables(ClientSession& session);
  void variables_checked(const ManagedExecutor& executor, const message::VariablesChecked& answer);
  void leave(ClientSession& session);  // for the other executor
  [[nodiscard]] bool are_of_a_kind(const ClientSession& a, const ClientSession& b) const;
  [[nodiscard]] std::size_t blocked_by_kind(const ClientSession& session) const;
  [[nodiscard]] bool blocks_its_share(const ClientSession& session) const;
  [[nodiscard]] bool end_a_blocker(const ClientSession& waiting);
  [[nodiscard]] bool is_kept_clean(const ManagedExecutor& executor) const;
  void stay(ClientSession& session, const char* why);
  void drop_relocation(ClientSession& session);

  void await_executor(ClientSession& session);
  void arm_deadline(ClientSession& session);
  void open_in_executor(ClientSession& session);
  [[nodiscard]] bool ensure_leases(ClientSession& session);
  void restore_memory(ClientSession& session, ManagedExecutor& executor);
  void send_open(ClientSession& session, ManagedExecutor& executor);
  void send_close(ClientSession& session);
  void request_timed_out(ClientSession& session);
  void respond(ClientSession& session, CUresult status);

  void session_opened(ClientSession& session, CUresult status);
  void session_closed(ClientSession& session);
  void fail(ClientSession& session, CUresult error, const char* why);
  void begin_end(ClientSession& session, SessionPhase phase);
  void check_end(std::uint64_t session);
  void report_stopped(ClientSession& session);
  void erase(ClientSession& session);
  void refuse(ClientSession& session, CUresult status);

  void publish_facts(const ManagedExecutor& executor);
  void replay_loads(const ManagedExecutor& executor, ExecutorInstance& instance);
  void feed_standby(ManagedExecutor& executor);
  void forget_variables(ClientSession& session);
  template <typename Make>
  [[nodiscard]] CUresult add_segment(ClientSession& session, const proto::SegmentCreate& request, std::uint64_t& segment, int& file, Make&& make);
  static void abandon_events(const ClientSession& session);
  void release_copies(const ClientSession& session, ManagedExecutor& executor);         // of images, that are kept there for its variables
  using CopyOwners = std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint64_t>;  // {image, copy}: the session
  [[nodiscard]] CopyOwners copy_owners(const ManagedExecutor& executor) const;
  static void add_copies_of(const ClientSession& session, CopyOwners& owners);
  void shorten_log(const ManagedExecutor& executor);
  void session_sent(ClientSession& session, ReceivedMessage& received);
  void module_noted(ManagedExecutor& executor, const message::ModuleNote& note);
  void lease_released(ClientSession& session, std::uint64_t address);
  // To whoever has asked for an image: the executor's process that serves, or that of `asker`.
  struct ImageAnswer {
    message::ImageGive give;
    pid_t asker = 0;
  };
  void give_image(ManagedExecutor& executor, const message::ImageWant& want);
  void check_input(ManagedExecutor& executor, const Received<message::ImageCheck>& received);
  void have_linked(ManagedExecutor& executor, const Received<message::LinkWant>& received);
  void have_made(Compilers& by, ManagedExecutor& executor, const ImageAnswer& answer, const Compilers::Image& image, int file);
  static void give(ManagedExecutor& executor, const ImageAnswer& answer, LentFds<message::ImageGive> files);
  static void refuse_image(ManagedExecutor& executor, const ImageAnswer& answer, CUresult status, const std::string& why);
  void drop_jobs(std::uint64_t session);
  void stop_compilers();
  void forget_images();
  void grant_memory(ManagedExecutor& executor, ClientSession* session, const message::MemoryWant& want);
  void chunk_released(ClientSession& session, std::uint64_t object);
  void chunk_created(ClientSession& session, Received<message::ChunkCreated> received);
  [[nodiscard]] static SessionCondition condition_of(const ClientSession& session, bool busy);
  [[nodiscard]] Guilt investigate(const ManagedExecutor& executor, const DeathReport& report, std::span<const SessionCondition> conditions);
  void apply(const Verdict& verdict, const DeathReport& report);
  void move(ClientSession& session);
  void lose(ClientSession& session, CUresult error);
  [[nodiscard]] DeathReport excused(DeathReport report);
  void begin_replacement(ManagedExecutor& executor, bool is_a_clients);
  void serve_waiting(ManagedExecutor& executor);
  void look_for_renewal();
  void look_for_rest();
  [[nodiscard]] bool is_unsettled(House house) const;
  [[nodiscard]] bool is_of(const ClientSession& session, House house) const;
  void ask_for_rest();
  void came_to_rest(ClientSession& session, CUresult status);
  void end_rest(const std::string& why);
  using Charges = std::map<std::uint64_t, DeviceChargeRef>;  // by the number that they had
  void restore_session(StateReader& state, Charges& charges);
  void restore_memory_of(StateReader& state, ClientSession& session, Charges& charges);
  void make_leases(const proto::DriverFacts& facts);
  void leave_heap(const ClientSession& session);
  void look_at_heaps_soon();
  void look_at_heaps();
  struct Heap;
  void look_at_heap(uid_t house, Heap& heap);
  [[nodiscard]] bool is_alone(uid_t house) const;  // no session is in an executor of it
  [[nodiscard]] bool may_renew_heaps(uid_t house) const;
  [[nodiscard]] std::uint64_t activity(uid_t house) const;
  [[nodiscard]] bool is_silent(uid_t house, Heap& heap);
  void await_next_lives(uid_t house, EventLoop::Clock::time_point until);
  void renew_heaps(uid_t house);
  void give_up_heaps(uid_t house, const std::string& why);
  void end_heap_step();
  [[nodiscard]] bool waits_for_blank_heap(const ClientSession& newcomer);
  void end_newcomers_wait();
  void quiesced(ManagedExecutor& executor);
  void check_drain(ManagedExecutor& executor);

  EventLoop& loop_;
  const SessionLimits limits_;
  const Events events_;
  DeviceQuota quota_;
  ImageStore images_;
  ShareTable shares_;
  std::unique_ptr<LeaseTable> leases_;  // made when the devices' memory is known
  proto::FileDescriptor facts_file_;
  std::uint64_t next_session_ = 1;
  std::uint64_t next_segment_ = 1;
  std::uint64_t last_piece_ = 0;  // handed to an executor
  std::map<std::uint64_t, ClientSession> sessions_;
  ExecutorPool pool_;
  Remnants remnants_;
  KernelLog kernel_log_;
  Quarantine quarantine_;
  std::map<ExecutorId, Ward> reserved_;  // executors that serve what is in quarantine only
  struct Suspicion {                     // of a fault, until all programs are known
    EventLoop::Clock::time_point when;
    double weight = 1;
    std::vector<std::shared_ptr<const ClientProgram>> programs;
  };
  std::vector<Suspicion> suspicions_;
  ProgramReader programs_;
  EventLoop::Timer release_timer_;
  EventLoop::Timer relocation_timer_;  // SessionLimits::relocate_for_tests
  std::uint64_t last_relocated_ = 0;   // a session
  bool quitting_ = false;
  struct Rest {
    RestOrder order;
    House house;
    std::uint64_t number = 0;  // as Relocation::order
    std::function<void(const std::string& why)> done;
    EventLoop::Clock::time_point until;
    bool asked = false;
    std::set<std::uint64_t> awaited;
    EventLoop::Timer look;
  };
  std::optional<Rest> rest_;
  std::uint64_t last_order_ = 0;  // to pause, to rest or to move
  std::function<void()> on_renewed_;
  House renewed_house_;  // that on_renewed_ is for
  std::function<void()> on_retired_;
  enum class HeapStep : std::uint8_t { none, preparing, renewing };
  struct Heap {
    std::set<ExecutorId> left;  // with memory on the device's heap that nobody has any more, perhaps
    EventLoop::Clock::time_point next_alone;   // not before: without sessions
    EventLoop::Clock::time_point next_beside;  // beside sessions
    std::chrono::milliseconds pause{0};        // after a try beside sessions
    std::uint64_t obstacle = 0;                // the session that would have lost something
    std::uint64_t activity = 0;
    EventLoop::Clock::time_point silent_since;
    EventLoop::Timer timer;
  };
  std::map<uid_t, Heap> heaps_;           // of the executors of each house
  HeapStep heap_step_ = HeapStep::none;   // of one house at a time
  uid_t last_heap_ = kHome;               // whose it is, or was
  bool heaps_deferred_ = false;
  EventLoop::Clock::time_point heaps_wait_until_;  // for a command that restarts executors
  EventLoop::Timer newcomer_timer_;
  std::vector<std::function<void()>> heap_commands_;  // that wait for the end of a step
  struct Drain {
    EventLoop::Clock::time_point until;
    bool is_a_clients = false;  // it is replaced for what a client has left running, or because a command ended one: that says nothing against it
    bool quiesced = false;      // until it is, whoever is idle may be busy the next moment
    EventLoop::Timer timer;
  };
  std::map<ExecutorId, Drain> drains_;
  std::map<ExecutorId, EventLoop::Timer> standby_feeds_;  // due: what was loaded of late
  std::uint64_t last_input_ = 0;                          // of a linker
  CompilerLauncher* const linker_launcher_;
  ProcessorShares processor_shares_;                      // of compilers_ and linkers_
  std::unique_ptr<Compilers> compilers_;                  // these end first: they answer whoever waits
  std::unique_ptr<Compilers> linkers_;
};

}  // namespace mpsshim::broker::control
