// SPDX-License-Identifier: Apache-2.0
// The executor's half of automatic calls: checks a record's ids, ranges and lengths against the session, calls the driver's function with
// what they stand for, and fills the reply. `record` and `trailing` must lie in private memory: each byte is read more than once.
//
// `session` offers, and each says no to what is not its own:
//   bool find(Id<Kind>, std::uint64_t& driver_handle)    bool owns(std::uint64_t address, std::uint64_t bytes)
//   bool may_bind(Id<Kind>)                               void bind(Id<Kind>, std::uint64_t driver_handle)
// Called by the worker that has the session, or by the helper pool for a call out of line.
#pragma once

#include <tuple>
#include <utility>

#include "proto/marshal/array_slots.hpp"
#include "proto/marshal/slots.hpp"

namespace mpsshim::proto {

template <class Result>
struct Served {
  Marshalled outcome = Marshalled::ok;  // anything else: the driver was not called
  Result result{};                      // the driver's answer
  std::size_t reply_trailing_bytes = 0;
};

namespace detail {

template <class Record, class Session>
struct ServeContext {
  Session& session;
  const Record& record;
  StreamId stream;
  typename Arguments<Record>::Reply& reply;
  TrailingCursor<const std::byte> trailing;
  TrailingCursor<std::byte> reply_trailing;
};

template <class... Descriptors>
std::tuple<Slot<Descriptors>...> slots_for(const std::tuple<Descriptors...>&);

}  // namespace detail

// `succeeded(result)` says whether the driver's answer counts as done (CUDA_SUCCESS); only then are ids bound and the reply is filled.
template <class Record, class Session, class Result, class... Parameters, class Succeeded>
[[nodiscard]] Served<Result> serve(Session& session, const Record& record, StreamId stream, std::span<const std::byte> trailing,
                                   typename Arguments<Record>::Reply& reply, std::span<std::byte> reply_trailing, Result (*function)(Parameters...),
                                   Succeeded succeeded) {
  detail::ServeContext<Record, Session> context{session, record, stream, reply, TrailingCursor(trailing), TrailingCursor(reply_trailing)};
  decltype(detail::slots_for(Arguments<Record>::kList)) slots;
  static_assert(std::tuple_size_v<decltype(slots)> == sizeof...(Parameters));
  Served<Result> served;
  const auto prepare = [&](auto&... slot) { return (((served.outcome = slot.prepare(context)) == Marshalled::ok) && ...); };
  if (!std::apply(prepare, slots)) return served;
  served.result = std::apply([&](auto&... slot) { return function(slot.template as<Parameters>()...); }, slots);
  if (!succeeded(served.result)) return served;
  std::apply([&](auto&... slot) { (slot.finish(context), ...); }, slots);
  served.reply_trailing_bytes = context.reply_trailing.used();
  return served;
}

}  // namespace mpsshim::proto
