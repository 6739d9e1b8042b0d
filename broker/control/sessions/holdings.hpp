// SPDX-License-Identifier: Apache-2.0
// What sessions hold of the broker's descriptors and host memory, and what they may; counted whenever one asks for more. Device memory is
// DeviceQuota's.
// Owned by SessionManager; the control process's thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <sys/types.h>

#include "broker/control/images/image_store.hpp"
#include "broker/control/sessions/device_quota.hpp"
#include "broker/control/sessions/session_table.hpp"

namespace mpsshim::broker::control {

struct Holding {
  std::size_t sessions = 0;  // those whose client is there
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
