// SPDX-License-Identifier: Apache-2.0
// Where the figures for Prometheus are to be had: a port of this machine's own, or a Unix socket. Plain values, and the socket that they make.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <netinet/in.h>

#include "proto/segment.hpp"

namespace mpsshim::broker::control {

struct MetricsAddress {
  std::string path{};  // of a Unix socket, as it was named; "": it is a port
  bool is_v6 = false;  // of a port
  in_addr v4{};
  in6_addr v6{};
  std::uint16_t port = 0;
  std::string text{};  // for messages

  [[nodiscard]] bool is_loopback() const;  // nobody else's machine comes to it
};

// "9400" and "localhost:9400" (127.0.0.1), "127.0.0.1:9400", "[::1]:9400", or a whole path. Nothing, with a sentence in `why`, where it is
// none of these; and where other machines could come to it, unless `may_be_any`.
[[nodiscard]] std::optional<MetricsAddress> parse_metrics_address(const std::string& text, bool may_be_any, std::string& why);

// A socket that listens there; a Unix socket for its owner alone. In place of one that nobody listens to any more. Invalid, with a sentence in `why`.
[[nodiscard]] proto::FileDescriptor listen_at(const MetricsAddress& address, std::string& why);

}  // namespace mpsshim::broker::control
