// SPDX-License-Identifier: Apache-2.0
// The one gate of client memory. Every address, pitch, offset and size that a record or a graph's description brings goes through CheckedMemory,
// whatever the call; what it lets through is of a type that nobody else can make (checked_types.hpp), and CheckedCalls, which alone has the
// driver's functions for it, takes nothing else.
//
// Made and asked on the session's worker. Trust: nothing of what it is asked is. Nothing overflows: a box is known by its first and last byte,
// however it is described.
#pragma once

#include <cstdint>
#include <optional>

#include "broker/executor/memory/checked_resources.hpp"
#include "broker/executor/memory/checked_types.hpp"
#include "broker/executor/memory/checked_words.hpp"
#include "gen/records.hpp"
#include "proto/graph_nodes.hpp"
#include "proto/ids.hpp"

namespace mpsshim::broker {

class MemoryMap;
class SessionArrays;

class CheckedMemory {
 public:
  CheckedMemory(const MemoryMap& memory, SessionArrays& arrays) : memory_(memory), arrays_(arrays) {}

  [[nodiscard]] Checked<CheckedCopy> copy(const proto::CopyRecord& record) const;
  [[nodiscard]] Checked<CheckedBoxCopy> copy(const proto::CopyBoxRecord& record) const;
  [[nodiscard]] Checked<CheckedBoxCopy> copy(const proto::GraphCopy& node) const;
  [[nodiscard]] Checked<CheckedArrayCopy> copy(const proto::ArrayCopyRecord& record) const;
  [[nodiscard]] Checked<CheckedFill> fill(const proto::FillRecord& record) const;
  [[nodiscard]] Checked<CheckedWord> word(std::uint64_t address, bool is_long) const;
  [[nodiscard]] Checked<CheckedSharedRecord> shared_record(const proto::StreamWaitSharedEventRecord& record) const;
  // Handles in `given` are not read: `array` names what is meant.
  [[nodiscard]] Checked<CheckedResource> resource(const CUDA_RESOURCE_DESC& given, proto::ArrayId array) const;
  [[nodiscard]] Checked<CheckedBinding> binding(const proto::ReferenceSetRecord& record, bool is_surface) const;
  // Of external memory; asked by helpers, too.
  [[nodiscard]] Checked<CheckedExternalBuffer> part(const proto::ExternalMapRecord& record) const;
  [[nodiscard]] Checked<CheckedExternalArray> part(const proto::ExternalMapArrayRecord& record) const;

 private:
  struct ArrayEnd;
  [[nodiscard]] std::optional<CheckedRange> range(proto::MemorySpace space, std::uint64_t address, std::uint64_t size_bytes) const;
  [[nodiscard]] std::optional<CheckedRange> anywhere(std::uint64_t address, std::uint64_t size_bytes) const;  // device memory, or pinned
  [[nodiscard]] std::optional<CheckedBox> box(proto::MemorySpace space, std::uint64_t address, const BoxSize& size, std::uint64_t pitch,
                                              std::uint64_t rows) const;
  [[nodiscard]] Checked<CheckedBoxCopy> copy(const BoxSize& size, const std::optional<CheckedBox>& destination,
                                             const std::optional<CheckedBox>& source) const;
  [[nodiscard]] Refusal find_end(const ArrayEnd& given, const BoxSize& size, CUarray& array, std::optional<CheckedBox>& linear) const;
  [[nodiscard]] bool may_be_texels(std::uint64_t address, std::uint64_t size_bytes) const;

  const MemoryMap& memory_;
  SessionArrays& arrays_;
};

}  // namespace mpsshim::broker
