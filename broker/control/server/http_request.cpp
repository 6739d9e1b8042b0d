// SPDX-License-Identifier: Apache-2.0
#include "broker/control/server/http_request.hpp"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

namespace mpsshim::broker::control {

namespace {

constexpr std::string_view kPath = "/metrics";

bool is_token(std::string_view text) {
  constexpr std::string_view kOthers = "!#$%&'*+-.^_`|~";
  return !text.empty() && std::ranges::all_of(text, [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || kOthers.find(c) != std::string_view::npos;
  });
}

// Of a head no byte is one: so TLS and other protocols are told at once that this is none of theirs.
bool is_stray(char c) { return (static_cast<unsigned char>(c) < 0x20 && c != '\r' && c != '\n' && c != '\t') || c == 0x7f; }

std::string_view without_return(std::string_view line) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

unsigned status_of_version(std::string_view version) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  if (version.size() != 8 || !version.starts_with("HTTP/") || !is_digit(version[5]) || version[6] != '.' || !is_digit(version[7])) return 400;
  return version[5] == '1' ? 200 : 505;
}

std::string_view path_of(std::string_view target) {
  constexpr std::string_view kScheme = "http://";
  if (target.starts_with(kScheme)) {
    target.remove_prefix(kScheme.size());
    target.remove_prefix(std::min(target.find('/'), target.size()));
  }
  return target.substr(0, target.find('?'));
}

HttpVerdict judge_line(std::string_view line) {
  const std::size_t first = line.find(' '), second = line.find(' ', first + 1);
  if (first == std::string_view::npos || second == std::string_view::npos || line.find(' ', second + 1) != std::string_view::npos) return {400};
  const std::string_view method = line.substr(0, first), target = line.substr(first + 1, second - first - 1);
  if (!is_token(method) || target.empty() || line.find('\t') != std::string_view::npos) return {400};
  if (const unsigned status = status_of_version(line.substr(second + 1)); status != 200) return {status};
  if (method != "GET" && method != "HEAD") return {405};
  return {path_of(target) == kPath ? 200u : 404u, method == "HEAD"};
}

bool is_field(std::string_view line) {
  const std::size_t colon = line.find(':');
  return colon != std::string_view::npos && is_token(line.substr(0, colon));  // one that begins with a blank goes on with another: none does today
}

}  // namespace

HttpVerdict judge_request(std::string_view bytes) {
  std::optional<HttpVerdict> verdict;  // of the first line
  std::string_view left = bytes.substr(0, kMostRequestBytes);
  while (!left.empty()) {
    const std::size_t end = left.find('\n');
    const std::string_view line = left.substr(0, end);
    const std::string_view text = end == std::string_view::npos ? line : without_return(line);
    const bool has_return =
        text.substr(0, text.size() - (end == std::string_view::npos && text.ends_with('\r') ? 1 : 0)).find('\r') != std::string_view::npos;
    if (has_return || std::ranges::any_of(text, is_stray)) return {400};
    if (end == std::string_view::npos) break;
    left.remove_prefix(end + 1);
    if (!verdict) {
      verdict = judge_line(text);
      if (verdict->status == 400 || verdict->status == 505) return *verdict;
    } else if (text.empty()) {
      return *verdict;
    } else if (!is_field(text)) {
      return {400};
    }
  }
  if (bytes.size() >= kMostRequestBytes) return {verdict ? 431u : 414u};
  return {0};
}

std::string_view reason_of(unsigned status) {
  switch (status) {
    case 200: return "OK";
    case 400: return "Bad Request";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 414: return "URI Too Long";
    case 431: return "Request Header Fields Too Large";
    case 505: return "HTTP Version Not Supported";
    default: return "Error";
  }
}

std::string response_head(unsigned status, std::string_view content_type, std::size_t body_bytes) {
  return fmt::format("HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\n{}Connection: close\r\n\r\n", status, reason_of(status),
                     content_type, body_bytes, status == 405 ? "Allow: GET, HEAD\r\n" : "");
}

}  // namespace mpsshim::broker::control
