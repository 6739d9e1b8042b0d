// SPDX-License-Identifier: Apache-2.0
// One client process on one GPU, from its Attach to its end, across executors: identity, leases, memory, images, the current channel.
// Owned by SessionTable, changed by the parts of SessionManager alone; the control process's thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <cuda.h>
#include <sys/types.h>

#include "broker/control/base/event_loop.hpp"
#include "broker/control/base/output_box.hpp"
#include "broker/control/base/pod_identity.hpp"
#include "broker/control/faults/program_reader.hpp"
#include "broker/control/sessions/channel_memory.hpp"
#include "broker/control/sessions/session_counts_store.hpp"
#include "broker/control/sessions/session_memory.hpp"
#include "proto/handshake.hpp"

namespace mpsshim::broker::control {

struct ClientIdentity {
  pid_t pid = -1;
  uid_t uid = static_cast<uid_t>(-1);
  std::string command;
  std::uint32_t layout_minor = proto::kLayoutMinor;        // what it speaks (proto/version.hpp)
  std::shared_ptr<const ClientProgram> program = nullptr;  // from its first Attach on
  PodIdentity pod{};                                       // where it is in one
};

// False also where nobody knows: of a pid namespace that we do not see.
[[nodiscard]] inline bool is_one_process(const ClientIdentity& a, const ClientIdentity& b) { return a.pid > 0 && a.pid == b.pid && a.uid == b.uid; }

enum class SessionPhase {
  waiting,      // for an executor that is ready; nothing of it is there yet
  opening,      // SessionOpen sent
  active,       // open in the executor
  reopening,    // its leases change: closed in the executor, to be opened again
  moved,        // its executor died; the client is to ask for a new channel
  lost,         // it did not survive its executor, or was terminated; the error is sticky
  terminating,  // by a command, or for a kernel without end: SessionClose sent, the client is still there and has lost_error
  closing,      // the client is gone; SessionClose sent
};
[[nodiscard]] const char* phase_name(SessionPhase phase);

class ManagedExecutor;

// A session that starves in its executor goes to another: started first, if need be; then its own is asked to pause it.
struct SessionRelocation {
  ManagedExecutor* to = nullptr;
  enum class Reason : std::uint8_t { starves, blank_heap, collective, probation_over, for_tests };
  Reason reason = Reason::starves;
  bool has_variables = false;  // the target, which has loaded nothing yet, is to make the same loads: nobody else is placed there
  bool asked = false;
  bool has_copies = false;  // of its images, in the target, for it alone
  std::uint64_t order = 0;  // to pause: answers to an earlier one say nothing any more
  EventLoop::Timer limit;
};

// It may have caused a fault: what it had launched is to be run again, in an executor for that, and then it is lost (Trials).
struct SessionTrial {
  std::uint64_t number = 0;
  EventLoop::Timer limit;  // since its client has asked for it
};

struct ClientSession {
  // Must not end the session it is called with: whoever answers may go on with it.
  using Answer = std::function<void(CUresult status, ClientSession& session)>;

  std::uint64_t id = 0;
  ClientIdentity client;
  unsigned device = 0;
  ManagedExecutor* executor = nullptr;  // where it is placed, from its first Attach on; nullptr also when that one is gone for good
  SessionPhase phase = SessionPhase::waiting;
  std::uint64_t epoch = 0;
  CUresult lost_error = CUDA_SUCCESS;
  unsigned deaths_while_opening = 0;  // executors that died while it was being opened
  bool has_lived = false;             // was active once: the client holds memory and handles of it
  bool delivered = false;             // the client has the current channel
  bool end_is_slow = false;           // the log has said so
  bool uses_heap = false;             // its kernels may have taken memory of the device's heap of its executor
  bool wants_heap = false;            // HeapWanted is to be answered
  bool changing_lease = false;        // `answer` is that of a LeaseReplace

  proto::Lease device_lease;
  proto::Lease pinned_lease;
  std::vector<proto::Lease> more_leases;  // further device ranges
  std::vector<proto::Lease> peer_leases;  // of other sessions of the process, whose device's memory this one's reaches
  std::vector<proto::Lease> peer_pinned_leases;  // of other sessions of the process, whose pinned memory this one's device reaches
  std::vector<proto::Lease> refused;      // ranges the client could not keep free; never offered to it again
  std::optional<ChannelMemory> channel;
  // What it may have of device memory, 0: no limit, set when it is first opened (MemoryLimits); what its client has asked for itself; what it holds.
  std::optional<std::uint64_t> memory_limit_bytes;
  std::uint64_t asked_memory_limit_bytes = 0;
  // What it has of the device's multiprocessors, in hundredths of a percent, set when it is first opened (ThreadPercentages); 0: all. What its client
  // has asked for itself; 0: nothing.
  std::optional<std::uint32_t> thread_percentage;
  std::uint32_t asked_thread_percentage = 0;
  // 0: normal, 1: below normal; set when it is first opened. What its client has asked for itself.
  std::optional<std::uint32_t> client_priority, asked_client_priority;
  std::string name_space;  // Namespaces; empty: of none
  std::uint64_t collective = 0;    // Collectives: its group's least session, 0: of none
  std::uint64_t told_chunks = 0;   // that its executor was told last
  std::uint32_t sm_partition = 0;  // SmPartitions: where its kernels run, in place of a percentage; 0: there are none
  DeviceCharge::Held device_held = std::make_shared<std::uint64_t>(0);
  [[nodiscard]] std::uint64_t memory_left_bytes() const {
    const std::uint64_t limit = memory_limit_bytes.value_or(0);
    return limit == 0 ? UINT64_MAX : limit - std::min(limit, *device_held);
  }
  SegmentStore segments;
  ChunkStore chunks;
  static constexpr std::size_t kMostAnnounced = 64;
  // Memory of other sessions and interfaces that its executor has been handed and has not adopted yet; of interfaces: no charge.
  std::map<std::uint64_t, DeviceChargeRef> announced;
  // What its executor has of device memory that is no chunk, by number: what it may make, or has made and nobody keeps (arrays); what was handed to
  // it for ExternalImport.
  std::map<std::uint64_t, DeviceChargeRef> granted, imported;
  OutputBox output;                 // of its kernels, for its client to take
  proto::FileDescriptor variables;  // broker/kept_variables.hpp; not valid: none of its modules ever had any

  // What its executor has left for the next one (broker/event_times.hpp), and whether the session has done nothing since.
  proto::FileDescriptor event_times;
  bool event_times_hold = false;

  std::optional<SessionRelocation> relocation;
  std::optional<SessionTrial> trial;
  unsigned crashes_while_compiling = 0;  // of executors, over images of this session
  bool is_bound = false;                 // its variables came to other addresses in another executor: it is asked to move no more

  Answer answer;                                  // the client's request under way (Attach or LeaseReplace), if any
  EventLoop::Timer deadline;                      // of that request
  EventLoop::Timer probation;                     // looks whether it may go to where the others are (Probation)
  EventLoop::Timer end_check;                     // closing, terminating: looks whether its work ends
  std::vector<std::function<void()>> on_stopped;  // called once nothing of it runs any more: commands wait for that
  EventLoop::Clock::time_point began_at = EventLoop::Clock::now();  // also before the program was replaced (Restarts)
  SessionCountsStore::Row counts;                                   // of what it does
  EventLoop::Clock::time_point asked_at;
  EventLoop::Clock::time_point ended_at;

  [[nodiscard]] bool in_executor() const;
  // Closing or terminating: nothing of it is to begin any more.
  [[nodiscard]] bool is_ending() const { return phase == SessionPhase::closing || phase == SessionPhase::terminating; }
  void respond(CUresult status);  // to the request under way, if any. Whoever is answered may go on with the session
  void forget_executor();         // that is gone, or has nothing of it yet: what was only there
  // What it has: "25.0 % of the multiprocessors, 4096 MiB of device memory, priority 1".
  [[nodiscard]] std::string provision_text() const;
  // "Session 12 (pid 4711, ./app)"
  [[nodiscard]] std::string name() const;
  // "{4711, 12}": as server.log has it.
  [[nodiscard]] std::string server_name() const;
};

}  // namespace mpsshim::broker::control
