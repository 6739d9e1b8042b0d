// SPDX-License-Identifier: Apache-2.0
// Copies and fills. Every range is checked against the session's own memory before the driver sees it.
#include <optional>

#include "broker/executor/dispatch.hpp"
#include "proto/record_flags.hpp"

namespace mpsshim::broker {

namespace {

enum CopySpace : std::uint8_t { device = 0, pinned = 1, staging = 2 };

// The address the driver gets; nullopt: not the session's.
std::optional<std::uint64_t> resolve(const MemoryMap& memory, std::uint8_t space, std::uint64_t address, std::uint64_t size_bytes) {
  switch (space) {
    case CopySpace::device: return memory.owns_device(address, size_bytes) ? std::optional(address) : std::nullopt;
    case CopySpace::pinned: return memory.owns_pinned(address, size_bytes) ? std::optional(address) : std::nullopt;
    default: return memory.segments().staging(address, size_bytes);
  }
}

CopyKind kind_of(bool from_host, bool to_host) {
  if (from_host) return to_host ? CopyKind::host_to_host : CopyKind::host_to_device;
  return to_host ? CopyKind::device_to_host : CopyKind::device_to_device;
}

// Bytes from the first to the last element of a fill; nullopt if they do not fit an address space.
std::optional<std::uint64_t> extent(const proto::FillRecord& record) {
  std::uint64_t row = 0;
  std::uint64_t rows = 0;
  std::uint64_t all = 0;
  if (__builtin_mul_overflow(record.width, record.element_bytes, &row)) return std::nullopt;
  if (record.height > 1 && record.pitch_bytes < row) return std::nullopt;
  if (__builtin_mul_overflow(record.height - 1, record.height > 1 ? record.pitch_bytes : 0, &rows)) return std::nullopt;
  if (__builtin_add_overflow(rows, row, &all)) return std::nullopt;
  return all;
}

// Bytes from the first to the last one of a side of a box; nullopt: the box is none, or fits no address space.
std::optional<std::uint64_t> extent(const proto::CopyBoxRecord& record, std::uint64_t pitch, std::uint64_t rows) {
  std::uint64_t before = 0;
  std::uint64_t all = 0;
  if (pitch < record.width || (record.depth > 1 && rows < record.height)) return std::nullopt;
  if (__builtin_mul_overflow(record.depth - 1, record.depth > 1 ? rows : 0, &before)) return std::nullopt;
  if (__builtin_add_overflow(before, record.height - 1, &before)) return std::nullopt;
  if (__builtin_mul_overflow(before, pitch, &all) || __builtin_add_overflow(all, record.width, &all)) return std::nullopt;
  return all;
}

}  // namespace

void handle(Incoming& incoming, const proto::CopyBoxRecord& record) {
  StreamQueue* queue = incoming.stream();
  if (queue == nullptr) return;
  if (record.destination_space > CopySpace::staging || record.source_space > CopySpace::staging)
    return incoming.malformed("it names an unknown space");
  if (record.width == 0 || record.height == 0 || record.depth == 0) return;
  const std::optional<std::uint64_t> to = extent(record, record.destination_pitch, record.destination_rows);
  const std::optional<std::uint64_t> from = extent(record, record.source_pitch, record.source_rows);
  if (!to || !from) return incoming.reject(CUDA_ERROR_INVALID_VALUE);
  const MemoryMap& memory = incoming.session.memory();
  const auto destination = resolve(memory, record.destination_space, record.destination, *to);
  const auto source = resolve(memory, record.source_space, record.source, *from);
  if (!destination || !source) return incoming.reject(CUDA_ERROR_INVALID_VALUE);
  CopyBoxOp op;
  op.destination = {*destination, record.destination_pitch, record.destination_rows, record.destination_space != CopySpace::device};
  op.source = {*source, record.source_pitch, record.source_rows, record.source_space != CopySpace::device};
  op.width = record.width;
  op.height = record.height;
  op.depth = record.depth;
  StreamSet& streams = incoming.session.streams();
  streams.append(*queue, op);
  if ((record.flags & proto::kCopyComesBeforeAllLater) != 0) streams.order_all_behind(*queue);
}

void handle(Incoming& incoming, const proto::CopyRecord& record) {
  StreamQueue* queue = incoming.stream();
  if (queue == nullptr) return;
  if (record.destination_space > CopySpace::staging || record.source_space > CopySpace::staging)
    return incoming.malformed("it names an unknown space");
  if (record.size_bytes == 0) return;
  const MemoryMap& memory = incoming.session.memory();
  const auto destination = resolve(memory, record.destination_space, record.destination, record.size_bytes);
  const auto source = resolve(memory, record.source_space, record.source, record.size_bytes);
  if (!destination || !source) return incoming.reject(CUDA_ERROR_INVALID_VALUE);
  const CopyKind kind = kind_of(record.source_space != CopySpace::device, record.destination_space != CopySpace::device);
  StreamSet& streams = incoming.session.streams();
  streams.append(*queue, CopyOp{*destination, *source, record.size_bytes, kind});
  if ((record.flags & proto::kCopyComesBeforeAllLater) != 0) streams.order_all_behind(*queue);
}

void handle(Incoming& incoming, const proto::FillRecord& record) {
  StreamQueue* queue = incoming.stream();
  if (queue == nullptr) return;
  if (record.element_bytes != 1 && record.element_bytes != 2 && record.element_bytes != 4) {
    return incoming.malformed("its elements have " + std::to_string(record.element_bytes) + " bytes");
  }
  if (record.width == 0 || record.height == 0) return;
  const std::optional<std::uint64_t> bytes = extent(record);
  const MemoryMap& memory = incoming.session.memory();
  if (!bytes || (!memory.owns_device(record.destination, *bytes) && !memory.owns_pinned(record.destination, *bytes))) {
    return incoming.reject(CUDA_ERROR_INVALID_VALUE);
  }
  incoming.session.streams().append(*queue,
                                    FillOp{record.destination, record.pitch_bytes, record.width, record.height, record.value, record.element_bytes});
}

}  // namespace mpsshim::broker
