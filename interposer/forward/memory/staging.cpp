// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/memory/staging.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include <unistd.h>

namespace mpsshim::interposer::forward {

namespace {

proto::CopyRecord copy_record(std::uint64_t destination, Space destination_space, std::uint64_t source, Space source_space, std::uint64_t bytes) {
  proto::CopyRecord record{};
  record.destination = destination;
  record.source = source;
  record.size_bytes = bytes;
  record.destination_space = static_cast<std::uint8_t>(destination_space);
  record.source_space = static_cast<std::uint8_t>(source_space);
  return record;
}

}  // namespace

Staging& Staging::instance() {
  static auto* staging = new Staging();  // never destroyed
  return *staging;
}

CUresult Staging::open() {
  if (memory_.load(std::memory_order_acquire) != nullptr) [[likely]]
    return CUDA_SUCCESS;
  const std::lock_guard lock(open_mutex_);
  if (memory_.load(std::memory_order_relaxed) != nullptr) return CUDA_SUCCESS;
  proto::FileDescriptor file;
  std::uint64_t segment = 0;
  if (const CUresult error = session().create_segment(proto::SegmentPurpose::staging, StagingArea::kBytes, 0, file, segment); error != CUDA_SUCCESS) {
    return error;
  }
  mapping_ = proto::Mapping::map(file, 0, StagingArea::kBytes, proto::Access::read_write);
  if (!mapping_) return CUDA_ERROR_OUT_OF_MEMORY;
  proto::SegmentMapRecord record{};
  record.segment = segment;
  proto::SegmentMapReply reply{};
  if (const CUresult error = session().channel().call({}, record, {}, Repeat::harmless, reply); error != CUDA_SUCCESS) return error;
  memory_.store(mapping_.data(), std::memory_order_release);
  return CUDA_SUCCESS;
}

CUresult Staging::take(std::size_t bytes, StagingPiece& piece) {
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      std::optional<StagingPiece> found = area_.take(bytes);
      if (!found && area_.reclaim([](std::uint32_t word, std::uint32_t target) { return session().fences().reached(word, target); })) {
        found = area_.take(bytes);
      }
      if (found) {
        piece = *found;
        return CUDA_SUCCESS;
      }
    }
    if (const CUresult error = wait_for_room(); error != CUDA_SUCCESS) return error;
  }
}

// Waits for the oldest lent piece. Nothing lent: all is in the hands of other threads' downloads, which end by themselves.
CUresult Staging::wait_for_room() {
  constexpr useconds_t kLookAgainUs = 100;
  StagingArea::Lent oldest;
  {
    const std::lock_guard lock(mutex_);
    if (!area_.lent().empty()) oldest = area_.lent().front();
  }
  if (oldest.stream == proto::StreamId{}) {
    usleep(kLookAgainUs);
    return session().look();
  }
  // The stream's next fence writes the target; if nobody has posted one since, do it. A destroyed stream has posted its last.
  if (Stream* stream = Streams::instance().resolve(to_handle<CUstream>(oldest.stream))) {
    std::uint32_t covered = 0;
    if (const CUresult error = Streams::instance().fence(*stream, covered); error != CUDA_SUCCESS) return error;
  }
  return session().wait_fence(oldest.word, oldest.target, "room for a copy from pageable memory");
}

void Staging::give_back(const StagingPiece& piece) {
  const std::lock_guard lock(mutex_);
  area_.give_back(piece);
}

void Staging::lend(const StagingPiece& piece, const Stream& stream, std::uint32_t target) {
  const std::lock_guard lock(mutex_);
  area_.lend({piece, stream.id, stream.word, target});
}

CUresult Staging::upload(Stream& stream, std::uint64_t destination, Space space, const void* source, std::size_t bytes) {
  if (const CUresult error = open(); error != CUDA_SUCCESS) return error;
  std::byte* memory = memory_.load(std::memory_order_relaxed);
  for (std::size_t done = 0; done < bytes;) {
    StagingPiece piece;
    if (const CUresult error = take(std::min(bytes - done, kPieceBytes), piece); error != CUDA_SUCCESS) return error;
    std::memcpy(memory + piece.offset, static_cast<const std::byte*>(source) + done, piece.size_bytes);
    std::uint32_t target = 0;
    const CUresult error = post_work<proto::CopyRecord>(stream, 0, [&](proto::CopyRecord& record, std::byte*) {
      record = copy_record(destination + done, space, piece.offset, Space::staging, piece.size_bytes);
      target = session().fences().posted(stream.word).load(std::memory_order_relaxed) + 1;  // what the stream's next fence will write
    });
    if (error != CUDA_SUCCESS) {
      give_back(piece);
      return error;
    }
    lend(piece, stream, target);
    done += piece.size_bytes;
    // A long copy fences every few pieces, so that room comes back while the rest is still being copied.
    if (done % (kPiecesInFlight * kPieceBytes) == 0) {
      if (const CUresult fenced = Streams::instance().fence(stream, target); fenced != CUDA_SUCCESS) return fenced;
    }
  }
  return CUDA_SUCCESS;
}

CUresult Staging::download(Stream& stream, void* destination, std::uint64_t source, Space space, std::size_t bytes) {
  if (const CUresult error = open(); error != CUDA_SUCCESS) return error;
  struct Flight {
    StagingPiece piece;
    std::size_t at = 0;
    std::uint32_t fence = 0;
  };
  std::array<Flight, kPiecesInFlight> flights;
  std::size_t posted = 0, landed = 0, posted_bytes = 0;
  CUresult error = CUDA_SUCCESS;
  while (error == CUDA_SUCCESS && (posted_bytes < bytes || landed < posted)) {
    if (posted_bytes < bytes && posted - landed < kPiecesInFlight) {
      Flight& flight = flights[posted % kPiecesInFlight];
      error = take(std::min(bytes - posted_bytes, kPieceBytes), flight.piece);
      if (error != CUDA_SUCCESS) break;
      flight.at = posted_bytes;
      ++posted;
      posted_bytes += flight.piece.size_bytes;
      error = post_work<proto::CopyRecord>(stream, 0, [&](proto::CopyRecord& record, std::byte*) {
        record = copy_record(flight.piece.offset, Space::staging, source + flight.at, space, flight.piece.size_bytes);
      });
      if (error == CUDA_SUCCESS) error = Streams::instance().fence(stream, flight.fence);
      continue;
    }
    const Flight& flight = flights[landed % kPiecesInFlight];
    error = session().wait_fence(stream.word, flight.fence, "a copy to pageable memory");
    if (error != CUDA_SUCCESS) break;
    const std::byte* memory = memory_.load(std::memory_order_relaxed);
    std::memcpy(static_cast<std::byte*>(destination) + flight.at, memory + flight.piece.offset, flight.piece.size_bytes);
    give_back(flight.piece);
    ++landed;
  }
  // After an error the session is over, or the record was never posted; pieces whose copy may still run are not used again.
  return error == CUDA_SUCCESS ? session().take_error() : error;
}

}  // namespace mpsshim::interposer::forward
