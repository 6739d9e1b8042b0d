// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/across_sessions.hpp"

#include <algorithm>
#include <atomic>
#include <vector>

#include "interposer/forward/host_functions.hpp"
#include "interposer/forward/memory/device_leases.hpp"
#include "interposer/forward/memory/peer_pieces.hpp"
#include "interposer/forward/memory/reaching.hpp"
#include "interposer/forward/memory/registered.hpp"
#include "interposer/local/acting_session.hpp"
#include "interposer/local/call_session.hpp"
#include "interposer/local/devices.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::interposer::forward {

namespace {

constexpr std::size_t kPieceBytes = 4u << 20;

// In streams of any session. A session that has failed makes its copies no more, and then the count stays: those of it are over.
std::atomic<unsigned> copies_under_way{0};

// The first session for which `is_its` holds, asked in its name.
template <typename F>
std::optional<std::uint32_t> find_session(F&& is_its) {
  const std::uint32_t count = session_count();
  for (std::uint32_t index = 0; index < count; ++index) {
    const ActingSession acting(index);
    if (session().is_attached() && is_its()) return index;
  }
  return std::nullopt;
}

struct CopyStream {
  Mutex mutex;  // one copy at a time
  Stream* stream GUARDED_BY(mutex) = nullptr;
};
CopyStream& copy_stream() {
  return PerSession<CopyStream>::get([] { return new CopyStream(); });
}

CUresult copy_piece(std::uint32_t index, const CopySide& destination, const CopySide& source, std::size_t bytes) {
  return in_copy_stream(index, [&](Stream& stream) { return copy(stream, destination, source, bytes, Completion::host_safe); });
}

std::uint32_t session_of_side(const CopySide& side) { return session_holding(side.address).value_or(ActingSession::index()); }

CopySide moved_by(const CopySide& side, std::size_t bytes) { return {side.address + bytes, side.named}; }

bool is_reached(const CopyEnd& end) {
  const auto holder = end.side.named == Named::host ? std::nullopt : session_holding(end.side.address);
  return !holder || *holder == ActingSession::index() || PeerPieces::instance().reaches(end.side.address, end.bytes);
}

CUresult transfer(const CopySide& destination, const CopySide& source, std::size_t bytes) {
  const std::uint32_t to = session_of_side(destination), from = session_of_side(source);
  {
    const Reaching reaching;
    if (const auto by = session_reaching({destination, bytes}, {source, bytes})) return copy_piece(*by, destination, source, bytes);
  }
  std::vector<std::byte> piece(std::min(bytes, kPieceBytes));
  const CopySide between{reinterpret_cast<std::uintptr_t>(piece.data()), Named::host};
  for (std::size_t done = 0; done < bytes; done += piece.size()) {
    const std::size_t size = std::min(piece.size(), bytes - done);
    if (const CUresult error = copy_piece(from, between, moved_by(source, done), size); error != CUDA_SUCCESS) return error;
    if (const CUresult error = copy_piece(to, moved_by(destination, done), between, size); error != CUDA_SUCCESS) return error;
  }
  return CUDA_SUCCESS;
}

bool is_pageable(const CopySide& side) { return !session_holding(side.address) && !session_that_made(side.address); }

// Both sides are what they are said to be: refused here, and not in the stream's order, where nobody would be told.
CUresult check_side(const CopySide& side, std::size_t bytes) {
  const ActingSession acting(session_of_side(side));
  std::uint64_t address = side.address;
  Space space{};
  return classify(address, bytes, side.named, space);
}

}  // namespace

std::optional<std::uint32_t> session_holding(std::uint64_t address) {
  return find_session([&] { return DeviceLeases::instance().holds(address); });
}

std::optional<std::uint32_t> session_that_made(std::uint64_t address) {
  return find_session([&] {
    const proto::Lease& pinned = session().pinned_lease();
    return address - pinned.address < pinned.size_bytes || RegisteredMemory::instance().find(address).has_value();
  });
}

CUresult finish_default_stream(std::uint32_t index) {
  const ActingSession acting(index);
  Stream* const stream = Streams::instance().default_stream();
  return stream != nullptr ? Streams::instance().synchronize(*stream) : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult in_copy_stream(std::uint32_t index, const std::function<CUresult(Stream&)>& f) {
  const ActingSession acting(index);
  CopyStream& own = copy_stream();
  const std::lock_guard lock(own.mutex);
  if (own.stream == nullptr) {
    if (const CUresult error = Streams::instance().create(CU_STREAM_NON_BLOCKING, 0, nullptr, own.stream); error != CUDA_SUCCESS) return error;
  }
  // An upload has read its source when it returns, and may write its destination later, behind which nothing else would come.
  const CUresult error = f(*own.stream);
  return error == CUDA_SUCCESS ? Streams::instance().wait_for_own_work(*own.stream) : error;
}

CUresult begin_in_current_order() {
  const std::uint32_t current = current_session();
  return current == ActingSession::index() ? CUDA_SUCCESS : finish_default_stream(current);
}

CUresult end_in_current_order(CUresult result) {
  if (result != CUDA_SUCCESS || current_session() == ActingSession::index()) return result;
  return finish_default_stream(ActingSession::index());
}

bool is_across(const CopySide& destination, const CopySide& source) {
  const auto is_anothers = [](const CopySide& side) {
    if (side.named == Named::host) return false;
    const auto holder = session_holding(side.address);
    return holder && *holder != ActingSession::index();
  };
  return is_anothers(destination) || is_anothers(source);
}

bool reaches_both(const CopySide& destination, const CopySide& source, std::size_t bytes) {
  return is_reached({destination, bytes}) && is_reached({source, bytes});
}

std::optional<std::uint32_t> session_reaching(const CopyEnd& destination, const CopyEnd& source) {
  for (const std::uint32_t index : {session_of_side(destination.side), session_of_side(source.side), ActingSession::index()}) {
    const ActingSession acting(index);
    if (is_reached(destination) && is_reached(source)) return index;
  }
  return std::nullopt;
}

CUresult finish_default_streams(const CopySide& destination, const CopySide& source) {
  for (const CopySide& side : {destination, source}) {
    if (const CUresult error = finish_default_stream(session_of_side(side)); error != CUDA_SUCCESS) return error;
  }
  return CUDA_SUCCESS;
}

CUresult copy_across_now(CopySide destination, CopySide source, std::size_t bytes) {
  if (bytes == 0) return CUDA_SUCCESS;
  if (const CUresult error = begin_in_current_order(); error != CUDA_SUCCESS) return error;
  for (const CopySide& side : {destination, source}) {
    if (const CUresult error = check_side(side, bytes); error != CUDA_SUCCESS) return error;
  }
  if (const CUresult error = finish_default_streams(destination, source); error != CUDA_SUCCESS) return error;
  return transfer(destination, source, bytes);
}

void finish_copies_across() {
  for (std::uint32_t index = 0; index < session_count() && copies_under_way.load(std::memory_order_acquire) != 0; ++index) {
    const ActingSession acting(index);
    if (!session().is_attached()) continue;
    (void)Streams::instance().synchronize_all();  // one that has failed has no work left
  }
}

CUresult copy_across_later(Stream& stream, CopySide destination, CopySide source, std::size_t bytes) {
  if (stream.is_captured.load(std::memory_order_relaxed)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (bytes == 0) return CUDA_SUCCESS;
  for (const CopySide& side : {destination, source}) {
    if (const CUresult error = check_side(side, bytes); error != CUDA_SUCCESS) return error;
  }
  // As CUDA: pageable memory has been read, or written, when the call returns.
  if (is_pageable(destination) || is_pageable(source)) {
    const CUresult error = Streams::instance().synchronize(stream);
    return error == CUDA_SUCCESS ? transfer(destination, source, bytes) : error;
  }
  HostTask task;
  task.own = [destination, source, bytes] {
    const CUresult error = transfer(destination, source, bytes);
    copies_under_way.fetch_sub(1, std::memory_order_release);
    return error;
  };
  copies_under_way.fetch_add(1, std::memory_order_relaxed);
  const CUresult error = HostFunctions::instance().enqueue(stream, task);
  if (error != CUDA_SUCCESS) copies_under_way.fetch_sub(1, std::memory_order_relaxed);
  return error;
}

}  // namespace mpsshim::interposer::forward
