// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/memory/box_staging.hpp"

#include <algorithm>
#include <cstring>
#include <deque>

#include "interposer/forward/begin.hpp"

namespace mpsshim::interposer::forward {

namespace {

constexpr std::uint64_t kPartBytes = 256 << 10;
constexpr std::size_t kFlights = 4;  // pieces that the GPU fills ahead

// Walks a box in parts of whole rows of one slice, or of one row where a row is longer than a piece.
class Parts {
 public:
  explicit Parts(const BoxSize& size) : size_(size) {}

  struct Part {
    std::uint64_t x = 0, y = 0, z = 0;
    std::uint64_t width = 0, height = 0;
  };
  [[nodiscard]] bool is_over() const { return at_.z == size_.depth; }
  [[nodiscard]] Part next() {
    Part part = at_;
    part.width = std::min(size_.width - at_.x, kPartBytes);
    part.height = size_.width <= kPartBytes ? std::min(size_.height - at_.y, kPartBytes / size_.width) : 1;
    at_.x += part.width;
    if (at_.x == size_.width) {
      at_.x = 0;
      at_.y += part.height;
    }
    if (at_.y == size_.height) {
      at_.y = 0;
      ++at_.z;
    }
    return part;
  }

 private:
  BoxSize size_;
  Part at_;
};

// The part of a box whose other side is the piece.
BoxSide side_of(const BoxSide& side, const Parts::Part& part) { return {side.row(part.y, part.z) + part.x, side.named, side.pitch, side.rows}; }
BoxSide side_of(const StagingPiece& piece, const Parts::Part& part) { return {piece.address, Named::host, part.width, part.height}; }

// Between the caller's rows and the piece.
void pack(const StagingPiece& piece, const BoxSide& source, const Parts::Part& part) {
  for (std::uint64_t y = 0; y < part.height; ++y) {
    std::memcpy(host_pointer(piece.address + y * part.width), host_pointer(source.row(part.y + y, part.z) + part.x), part.width);
  }
}
void unpack(const BoxSide& destination, const StagingPiece& piece, const Parts::Part& part) {
  for (std::uint64_t y = 0; y < part.height; ++y) {
    std::memcpy(host_pointer(destination.row(part.y + y, part.z) + part.x), host_pointer(piece.address + y * part.width), part.width);
  }
}

struct PartInFlight {
  StagingPiece piece;
  Parts::Part part;
  std::uint32_t fence = 0;
};

CUresult land(Stream& stream, const BoxSide& destination, const PartInFlight& flight) {
  const CUresult error = session().wait_fence(stream.word, flight.fence, "a copy to pageable memory");
  if (error != CUDA_SUCCESS) return error;  // the session is over; a piece whose copy may still run is not used again
  unpack(destination, flight.piece, flight.part);
  Staging::instance().give_back(flight.piece);
  return CUDA_SUCCESS;
}

}  // namespace

void describe_box(proto::CopyBoxRecord& record, const BoxCopy& box, Space to, Space from) {
  record.destination = box.destination.address;
  record.source = box.source.address;
  record.width = box.size.width;
  record.height = box.size.height;
  record.depth = box.size.depth;
  record.destination_pitch = box.destination.pitch;
  record.source_pitch = box.source.pitch;
  record.destination_rows = box.destination.rows;
  record.source_rows = box.source.rows;
  record.destination_space = to;
  record.source_space = from;
}

CUresult upload_box(Stream& stream, const BoxCopy& box, Space space, bool is_synchronous) {
  if (const CUresult error = Staging::instance().open(); error != CUDA_SUCCESS) return error;
  for (Parts parts(box.size); !parts.is_over();) {
    const Parts::Part part = parts.next();
    StagingPiece piece;
    if (const CUresult error = Staging::instance().take(stream, part.width * part.height, piece); error != CUDA_SUCCESS) return error;
    pack(piece, box.source, part);
    const BoxCopy here{side_of(box.destination, part), side_of(piece, part), {part.width, part.height, 1}};
    const CUresult error = Staging::instance().pass_on<proto::CopyBoxRecord>(stream, piece, space, [&](proto::CopyBoxRecord& record) {
      describe_box(record, here, space, Space::registered_host);
      if (is_synchronous) record.flags = proto::CopyFlag::before_all_later;
    });
    if (error != CUDA_SUCCESS) {
      Staging::instance().give_back(piece);
      return error;
    }
  }
  return CUDA_SUCCESS;
}

// A thread that has pieces in hand does not wait for room: it first empties what it has (staging.hpp).
CUresult download_box(Stream& stream, const BoxCopy& box, Space space) {
  if (const CUresult error = Staging::instance().open(); error != CUDA_SUCCESS) return error;
  std::deque<PartInFlight> flights;
  for (Parts parts(box.size); !parts.is_over();) {
    PartInFlight flight;
    flight.part = parts.next();
    const std::size_t bytes = flight.part.width * flight.part.height;
    while (flights.size() == kFlights || (!flights.empty() && !Staging::instance().try_take(stream, bytes, flight.piece))) {
      if (const CUresult error = land(stream, box.destination, flights.front()); error != CUDA_SUCCESS) return error;
      flights.pop_front();
    }
    if (flight.piece.address == 0) {
      if (const CUresult error = Staging::instance().take(stream, bytes, flight.piece); error != CUDA_SUCCESS) return error;
    }
    const BoxCopy here{side_of(flight.piece, flight.part), side_of(box.source, flight.part), {flight.part.width, flight.part.height, 1}};
    CUresult error = post_work<proto::CopyBoxRecord>(
        stream, 0, [&](proto::CopyBoxRecord& record, std::byte*) { describe_box(record, here, Space::registered_host, space); });
    if (error == CUDA_SUCCESS) error = Streams::instance().fence(stream, flight.fence);
    if (error != CUDA_SUCCESS) return error;
    flights.push_back(flight);
  }
  for (; !flights.empty(); flights.pop_front()) {
    if (const CUresult error = land(stream, box.destination, flights.front()); error != CUDA_SUCCESS) return error;
  }
  return session().take_error();
}

}  // namespace mpsshim::interposer::forward
