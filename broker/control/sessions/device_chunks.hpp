// SPDX-License-Identifier: Apache-2.0
// Device memory of sessions that has a handle of its own: granted to executors that ask for it, noted when they have made it or let it go, opened
// by another session, brought from another interface (cuImportExternalMemory). What it counts for is DeviceQuota's.
// Owned by SessionManager; the control process's thread. Requests come from clients, which have named objects as they like; handles are executors'.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include <cuda.h>

#include "broker/control/base/share_table.hpp"
#include "broker/control/sessions/device_quota.hpp"
#include "broker/control/sessions/session_table.hpp"
#include "broker/control_messages.hpp"
#include "proto/client_requests.hpp"
#include "proto/device_facts.hpp"

namespace mpsshim::broker::control {

class DeviceChunks {
 public:
  // Bytes that are left to a session; UINT64_MAX: all.
  using Left = std::function<std::uint64_t(const ClientSession&)>;
  // `limit_bytes`: of a user on each device; 0: no limit. By its own namespace's limit, and by what is kept for others.
  DeviceChunks(std::uint64_t limit_bytes, const SessionTable& sessions, ShareTable& shares, Left namespace_left, Left others_left)
      : quota_(limit_bytes), sessions_(sessions), shares_(shares), namespace_left_(std::move(namespace_left)), others_left_(std::move(others_left)) {}

  [[nodiscard]] const DeviceQuota& quota() const { return quota_; }
  [[nodiscard]] DeviceQuota& quota() { return quota_; }

  // From clients.
  // A name for memory that the session holds; nothing: it holds no such memory.
  [[nodiscard]] std::optional<proto::MemoryName> share(const ClientSession& session, std::uint64_t object);
  // Memory that another session of the same user has named, be it of another device that the session's can reach.
  struct Opened {
    std::uint64_t size_bytes = 0;
    bool is_own = false;  // of the same process
    unsigned device = 0;  // that has it
    std::uint64_t owner = 0;  // session that has named it
  };
  [[nodiscard]] CUresult open(ClientSession& session, const proto::MemoryOpen& request, const proto::DriverFacts& facts, Opened& opened);
  // Memory of another interface, behind a descriptor that the client has: looked at, and handed to its executor.
  [[nodiscard]] CUresult offer_external(ClientSession& session, const proto::ExternalOffer& request, const proto::FileDescriptor& descriptor,
                                        bool is_cpu_device);

  // From executors. `session` may be nullptr: it has ended.
  void grant(ManagedExecutor& executor, ClientSession* session, const message::MemoryWant& want);
  void chunk_created(ClientSession& session, Received<message::ChunkCreated> received);
  void chunk_released(ClientSession& session, std::uint64_t object);

 private:
  DeviceQuota quota_;
  const SessionTable& sessions_;
  ShareTable& shares_;
  const Left namespace_left_;
  const Left others_left_;
  std::uint64_t last_piece_ = 0;  // handed to an executor
};

}  // namespace mpsshim::broker::control
