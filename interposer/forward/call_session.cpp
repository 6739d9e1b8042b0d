// SPDX-License-Identifier: Apache-2.0
#include "interposer/local/call_session.hpp"

#include <optional>
#include <utility>

#include "interposer/forward/across_sessions.hpp"
#include "interposer/local/acting_session.hpp"
#include "interposer/local/contexts.hpp"
#include "interposer/local/devices.hpp"
#include "proto/ids.hpp"

namespace mpsshim::interposer {

namespace {

using proto::HandleKind;

// Of ids of every kind that a session makes. Nothing: what belongs to the process, and what is none.
std::optional<std::uint32_t> realm_of(std::uint64_t value) {
  const auto kind = static_cast<HandleKind>(value >> 56);
  const bool is_the_process = kind == HandleKind::none || kind == HandleKind::library || kind == HandleKind::kernel || kind == HandleKind::context;
  if (is_the_process || kind > HandleKind::external_memory) return std::nullopt;
  return proto::StreamId{value}.realm();
}

std::optional<std::uint32_t> session_of(const SessionHint& hint) {
  switch (hint.kind) {
    case SessionHint::Kind::stream: {
      const auto realm = realm_of(hint.value);
      return realm ? realm : current_session();
    }
    case SessionHint::Kind::handle: return realm_of(hint.value);
    case SessionHint::Kind::address: {
      const auto realm = realm_of(hint.value);
      return realm ? realm : forward::session_holding(hint.value);
    }
    case SessionHint::Kind::context: {
      const auto context = find_context(to_handle(ContextId{hint.value}));
      return context ? std::optional(interposer::session_of(context->device)) : std::nullopt;
    }
    case SessionHint::Kind::pointer:
    case SessionHint::Kind::none: break;
  }
  return std::nullopt;
}

}  // namespace

std::uint32_t current_session() {
  const auto context = find_context(current_context());
  return context ? session_of(context->device) : 0;
}

std::uint32_t session_of_call(std::span<const SessionHint> hints) {
  using Kind = SessionHint::Kind;
  for (const auto& [first, second] :
       {std::pair{Kind::stream, Kind::stream}, std::pair{Kind::handle, Kind::handle}, std::pair{Kind::address, Kind::context}}) {
    for (const SessionHint& hint : hints) {
      if ((hint.value == 0 && hint.kind != Kind::stream) || (hint.kind != first && hint.kind != second)) continue;
      if (const auto found = session_of(hint)) return *found;
    }
  }
  for (const Kind kind : {Kind::address, Kind::pointer}) {
    for (const SessionHint& hint : hints) {
      if (hint.value == 0 || hint.kind != kind) continue;
      if (const auto found = forward::session_that_made(hint.value)) return *found;
      if (kind != Kind::pointer) continue;
      if (const auto found = forward::session_holding(hint.value)) return *found;  // a device address that is called a pointer
    }
  }
  return current_session();
}

}  // namespace mpsshim::interposer
