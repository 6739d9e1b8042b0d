// SPDX-License-Identifier: Apache-2.0
// As much of HTTP/1 (RFC 9112) as an exporter of figures needs: whether what has come so far is a request, and what it is answered with. A connection
// has one request, its body is nobody's. Any bytes may come. Pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace mpsshim::broker::control {

inline constexpr std::size_t kMostRequestBytes = 8'192;  // request line and fields

struct HttpVerdict {
  unsigned status = 0;   // 0: it is not all there yet
  bool is_head = false;  // the answer is to have no body
};
[[nodiscard]] HttpVerdict judge_request(std::string_view bytes);

// Before the body of an answer, which has so many bytes. With 405 it says what is allowed.
[[nodiscard]] std::string response_head(unsigned status, std::string_view content_type, std::size_t body_bytes);
[[nodiscard]] std::string_view reason_of(unsigned status);

}  // namespace mpsshim::broker::control
