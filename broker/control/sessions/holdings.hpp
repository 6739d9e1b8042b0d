// SPDX-License-Identifier: Apache-2.0
// What sessions hold of the broker's descriptors and host memory, and what they may; counted whenever one asks for more. Device memory is
// DeviceQuota's.
// Owned by SessionManager; the control process's thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <sys/types.h>

#include "broker/control/images/image_store.hpp"
#include "broker/control/sessions/device_quota.hpp"
#include "broker/control/sessions/session_table.hpp"

namespace mpsshim::broker::control {

// How many clients sessions are of: a process is one, on however many devices; of several sessions on one device each counts, for they are of as many
// processes, or of one that was begun anew or holds the library twice.
class ClientCount {
 public:
  void add(const ClientIdentity& client, unsigned device);
  [[nodiscard]] std::size_t number() const;

 private:
  std::map<std::pair<pid_t, uid_t>, std::map<unsigned, std::size_t>> sessions_;
  std::size_t unknown_ = 0;  // of pid namespaces that we do not see, where processes cannot be told apart
};

struct Holding {
  std::size_t clients = 0;   // that are there
  std::size_t sessions = 0;  // whose client is there
  std::size_t descriptors = 0;
  std::uint64_t host_bytes = 0;
  std::vector<std::uint64_t> device_bytes{};  // by device
};

class Holdings {
 public:
  Holdings(const SessionLimits& limits, const SessionTable& sessions, const ImageStore& images)
      : limits_(limits), sessions_(sessions), images_(images) {}

  [[nodiscard]] std::map<uid_t, Holding> by_user(const DeviceQuota& device_memory) const;
  // If not, `why` says which limit is reached.
  [[nodiscard]] bool may_open(const ClientIdentity& client, unsigned device, std::string& why) const;
  // A descriptor and so many bytes of host memory more.
  [[nodiscard]] bool may_hold(const ClientSession& session, std::uint64_t more_bytes, std::string& why) const;

 private:
  [[nodiscard]] Holding of(const ClientSession& session) const;

  const SessionLimits& limits_;
  const SessionTable& sessions_;
  const ImageStore& images_;
};

}  // namespace mpsshim::broker::control
