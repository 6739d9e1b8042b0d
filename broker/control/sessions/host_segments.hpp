// SPDX-License-Identifier: Apache-2.0
// Segments of host memory that clients ask for: made for them, or opened as another session's.
// Owned by SessionManager; the control process's thread. What the client asks for is checked against its session (SegmentStore) and its limits.
#pragma once

#include <cstdint>

#include <cuda.h>

#include "broker/control/base/share_table.hpp"
#include "broker/control/sessions/holdings.hpp"
#include "broker/control/sessions/session_ranges.hpp"
#include "broker/control/sessions/session_table.hpp"
#include "proto/client_requests.hpp"

namespace mpsshim::broker::control {

class HostSegments {
 public:
  HostSegments(const SessionTable& sessions, const Holdings& holdings, const ShareTable& shares, SessionRanges& ranges)
      : sessions_(sessions), holdings_(holdings), shares_(shares), ranges_(ranges) {}

  [[nodiscard]] CUresult create(ClientSession& session, const proto::SegmentCreate& request, std::uint64_t& segment, int& file);
  // A segment of events of another session of the same user.
  [[nodiscard]] CUresult open(ClientSession& session, const proto::SegmentOpen& request, std::uint64_t& segment, int& file);
  // The pinned segment of another session of the same process that begins at the address, for this one's device at the same place.
  [[nodiscard]] CUresult open_peers(ClientSession& session, const proto::PeerSegment& request, std::uint64_t& segment, int& file);

  // For a hand-over.
  [[nodiscard]] std::uint64_t next_segment() const { return next_segment_; }
  void go_on_from(std::uint64_t next_segment) { next_segment_ = next_segment; }

 private:
  template <typename Make>
  [[nodiscard]] CUresult add(ClientSession& session, const proto::SegmentCreate& request, std::uint64_t more_bytes, std::uint64_t& segment, int& file,
                             Make&& make);

  const SessionTable& sessions_;
  const Holdings& holdings_;
  const ShareTable& shares_;
  SessionRanges& ranges_;
  std::uint64_t next_segment_ = 1;
};

// Nothing of the session runs any more: what it has recorded in its segments of events and not completed will not be.
void abandon_events(const ClientSession& session);

}  // namespace mpsshim::broker::control
