// SPDX-License-Identifier: Apache-2.0
// The arrows of timelines (docs/tracing.md): each leads from where a client posts a record that gives the GPU work to where its executor has handed
// that work to the driver. Both sides reckon its number by what they know of the record, so nothing goes over the wire for it.
#pragma once

#include <cstdint>

#include "gen/records.hpp"
#include "proto/trace.hpp"

namespace mpsshim::proto {

constexpr bool has_arrow(RecordId id) {
  return id == RecordId::Launch || id == RecordId::GraphLaunch || id == RecordId::Copy || id == RecordId::CopyBox || id == RecordId::Fill ||
         id == RecordId::ArrayCopy;
}

// Of no other record, unless a million sessions, 4,096 epochs or four thousand million records lie between.
constexpr std::uint64_t arrow_number(std::uint64_t session, std::uint64_t epoch, std::uint32_t sequence) {
  return session << 44 | (epoch & 0xfff) << 32 | sequence;
}

}  // namespace mpsshim::proto
