// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/memory/staging.hpp"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>

#include <unistd.h>

#include "interposer/environment.hpp"
#include "interposer/forward/memory/copy_crew.hpp"
#include "interposer/forward/memory/flights.hpp"
#include "interposer/forward/memory/pinned.hpp"
#include "interposer/local/acting_session.hpp"
#include "proto/futex.hpp"

namespace mpsshim::interposer::forward {

namespace {

constexpr std::size_t kLeastPieceBytes = 128 << 10;
// From here on threads share a copy: below, waking them takes longer than they save.
constexpr std::size_t kSharedUploadBytes = 1 << 20;
constexpr std::size_t kSharedDownloadBytes = 4 << 20;
// From here on a download goes past the caches, whose content is worth more than the end of what was copied.
constexpr std::size_t kPastCachesBytes = 2 << 20;

std::byte* memory_of(const StagingPiece& piece) { return reinterpret_cast<std::byte*>(piece.address); }  // NOLINT(performance-no-int-to-ptr)

void describe(proto::CopyRecord& record, std::uint64_t destination, Space to, std::uint64_t source, Space from, std::uint64_t bytes) {
  record.destination = destination;
  record.source = source;
  record.size_bytes = bytes;
  record.destination_space = to;
  record.source_space = from;
}

// What the environment asks for, in whole granules; 0: nothing.
std::uint64_t fixed_bytes() {
  constexpr std::uint64_t kLeastKib = 512, kMostKib = 1 << 20;
  const std::string_view text = environment_value(Variable::staging_kib);
  std::uint64_t kib = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), kib);
  if (error != std::errc() || end != text.data() + text.size() || kib < kLeastKib || kib > kMostKib) return 0;
  return (kib << 10) / StagingArea::kGranuleBytes * StagingArea::kGranuleBytes;
}

}  // namespace

Staging& Staging::instance() {
  return PerSession<Staging>::get([] { return new Staging(); });
}

CUresult Staging::open() {
  if (total_bytes_.load(std::memory_order_acquire) != 0) [[likely]]
    return CUDA_SUCCESS;
  const std::lock_guard lock(growth_mutex_);
  if (total_bytes_.load(std::memory_order_relaxed) != 0) return CUDA_SUCCESS;
  const std::uint64_t fixed = fixed_bytes();
  if (fixed != 0) cannot_grow_.store(true, std::memory_order_relaxed);
  return add_block(fixed != 0 ? fixed : kFirstBlockBytes);
}

// Pinned memory of no context: nobody but us has its address, and no context's end frees it.
CUresult Staging::add_block(std::uint64_t bytes) {
  void* memory = nullptr;
  if (const CUresult error = PinnedMemory::instance().allocate(bytes, 0, nullptr, memory); error != CUDA_SUCCESS) return error;
  const std::lock_guard lock(mutex_);
  area_.add_block(reinterpret_cast<std::uintptr_t>(memory), bytes);
  used_bytes_ = 0;
  total_bytes_.store(area_.total_bytes(), std::memory_order_release);
  return CUDA_SUCCESS;
}

// Making a block takes as long as copying several times its size: only a process that copies much gets more.
void Staging::grow_if_used() {
  const std::uint64_t total = total_bytes_.load(std::memory_order_relaxed);
  if (total >= kUsualBytes || cannot_grow_.load(std::memory_order_relaxed)) return;
  {
    const std::lock_guard lock(mutex_);
    if (used_bytes_ < kUseForGrowth * total) return;
  }
  if (!growth_mutex_.try_lock()) return;
  const std::lock_guard growing(growth_mutex_, std::adopt_lock);
  if (total_bytes_.load(std::memory_order_relaxed) != total) return;
  if (add_block(kBlockBytes) != CUDA_SUCCESS) cannot_grow_.store(true, std::memory_order_relaxed);  // what is there will do
}

// A power of two, small enough that all threads have work and a stream's share of the room holds several.
std::size_t Staging::piece_bytes(std::size_t left) {
  const std::size_t fair = std::min<std::size_t>(total_bytes_.load(std::memory_order_relaxed) / 8, left / 4);
  return std::min(left, std::clamp(std::bit_floor(std::max<std::size_t>(fair, 1)), kLeastPieceBytes, kMostPieceBytes));
}

bool Staging::try_take(const Stream& stream, std::size_t bytes, StagingPiece& piece) {
  const std::lock_guard lock(mutex_);
  std::optional<StagingPiece> found = area_.take(bytes, stream.word);
  if (!found && area_.reclaim([](std::uint32_t word, std::uint32_t target) { return session().fences().reached(word, target); })) {
    found = area_.take(bytes, stream.word);
  }
  if (!found) return false;
  used_bytes_ += bytes;
  piece = *found;
  return true;
}

CUresult Staging::take(const Stream& stream, std::size_t bytes, StagingPiece& piece) {
  while (!try_take(stream, bytes, piece)) {
    if (const CUresult error = wait_for_room(stream, bytes); error != CUDA_SUCCESS) return error;
  }
  return CUDA_SUCCESS;
}

// Waits for this stream's oldest lent piece where it has its share, else for the oldest of all. Nothing lent: all is in the hands of other
// threads, which pass it on by themselves.
CUresult Staging::wait_for_room(const Stream& stream, std::size_t bytes) {
  constexpr useconds_t kLookAgainUs = 100;
  std::optional<StagingArea::Lent> oldest;
  {
    const std::lock_guard lock(mutex_);
    const bool has_share = area_.held_bytes(stream.word) + bytes > area_.share_bytes();
    for (const StagingArea::Lent& lent : area_.lent()) {
      if (has_share && lent.piece.word != stream.word) continue;
      oldest = lent;
      break;
    }
  }
  if (!oldest) {
    usleep(kLookAgainUs);
    return session().look();
  }
  // The stream's next fence writes the target; if nobody has posted one since, do it. A destroyed stream has posted its last.
  std::uint32_t covered = 0;
  if (const CUresult error = Streams::instance().fence_of(oldest->stream, covered); error != CUDA_SUCCESS) return error;
  if (has_grown_for(*oldest)) return CUDA_SUCCESS;
  return session().wait_fence(oldest->piece.word, oldest->target, "room for a copy from pageable memory");
}

// A stream that holds room and stands still may do so until its host goes on, which it does not while it waits here: more room then, as long
// as there may be more. Natively such copies return as well.
bool Staging::has_grown_for(const StagingArea::Lent& oldest) {
  constexpr int kQuickLooks = 1'000;  // some 50 us: what a piece takes to go
  constexpr int kLooks = 40;
  constexpr useconds_t kLookAgainUs = 50;
  const auto is_back = [&] { return session().fences().reached(oldest.piece.word, oldest.target); };
  const std::uint64_t total = total_bytes_.load(std::memory_order_relaxed);
  if (total >= kMostBytes || cannot_grow_.load(std::memory_order_relaxed)) return false;
  for (int look = 0; look < kQuickLooks && CopyCrew::instance().has_helpers(); ++look) {  // there are cores to spare
    if (is_back()) return true;
    proto::cpu_relax();
  }
  for (int look = 0; look < kLooks; ++look) {
    if (is_back()) return true;
    usleep(kLookAgainUs);
  }
  const std::lock_guard growing(growth_mutex_);
  if (total_bytes_.load(std::memory_order_relaxed) == total && add_block(kBlockBytes) != CUDA_SUCCESS) {
    cannot_grow_.store(true, std::memory_order_relaxed);
    return false;
  }
  return true;
}

void Staging::give_back(const StagingPiece& piece) {
  const std::lock_guard lock(mutex_);
  area_.give_back(piece);
}

CUresult Staging::pass_on(Stream& stream, const StagingPiece& piece, std::uint64_t destination, Space space, bool is_synchronous) {
  return pass_on<proto::CopyRecord>(stream, piece, space, [&](proto::CopyRecord& record) {
    describe(record, destination, space, piece.address, Space::registered_host, piece.size_bytes);
    if (is_synchronous) record.flags = proto::CopyFlag::before_all_later;
  });
}

void Staging::lend(Stream& stream, const StagingPiece& piece, std::uint32_t target) {
  {
    const std::lock_guard lock(mutex_);
    area_.lend({piece, stream.id, target});
  }
  // A fence now and then, so that room comes back before it is missed.
  const std::uint64_t taken = std::max(piece.size_bytes, StagingArea::kGranuleBytes);
  const std::uint64_t unfenced = unfenced_bytes_.fetch_add(taken, std::memory_order_relaxed) + taken;
  if (unfenced < total_bytes_.load(std::memory_order_relaxed) / 8) return;
  unfenced_bytes_.store(0, std::memory_order_relaxed);
  // The piece is out of the caller's hands. An error here is the session's, which the next call meets as well.
  (void)Streams::instance().fence(stream, target);
}

CUresult Staging::upload(Stream& stream, std::uint64_t destination, Space space, const void* source, std::size_t bytes, bool is_synchronous) {
  if (const CUresult error = open(); error != CUDA_SUCCESS) return error;
  if (bytes > kLeastPieceBytes) return upload_in_pieces(stream, destination, space, static_cast<const std::byte*>(source), bytes, is_synchronous);
  StagingPiece piece;
  if (const CUresult error = take(stream, bytes, piece); error != CUDA_SUCCESS) return error;
  std::memcpy(memory_of(piece), source, bytes);
  const CUresult error = pass_on(stream, piece, destination, space, is_synchronous);
  if (error != CUDA_SUCCESS) give_back(piece);
  return error;
}

CUresult Staging::next_piece(const Stream& stream, std::size_t left, bool may_wait, std::optional<StagingPiece>& piece) {
  grow_if_used();
  const std::size_t size = piece_bytes(left);
  StagingPiece taken;
  if (!try_take(stream, size, taken)) {
    if (!may_wait) return CUDA_SUCCESS;
    if (const CUresult error = take(stream, size, taken); error != CUDA_SUCCESS) return error;
  }
  piece = taken;
  return CUDA_SUCCESS;
}

CUresult Staging::upload_in_pieces(Stream& stream, std::uint64_t destination, Space space, const std::byte* source, std::size_t bytes,
                                   bool is_synchronous) {
  CopyCrew& crew = CopyCrew::instance();
  const bool is_shared = bytes >= kSharedUploadBytes && crew.has_helpers();
  Flights flights(crew);
  CUresult error = CUDA_SUCCESS;
  for (std::size_t given = 0; error == CUDA_SUCCESS && (given < bytes || flights.count() != 0);) {
    if (given < bytes && (flights.count() == 0 || (is_shared && flights.has_room()))) {
      std::optional<StagingPiece> piece;
      error = next_piece(stream, bytes - given, flights.count() == 0, piece);
      if (error != CUDA_SUCCESS) break;
      if (piece) {
        Flight& flight = flights.push(*piece, given);
        if (is_shared)
          crew.submit(flight.task, memory_of(*piece), source + given, piece->size_bytes, Caching::usual);
        else
          std::memcpy(memory_of(*piece), source + given, piece->size_bytes);
        given += piece->size_bytes;
        continue;
      }
    }
    Flight& oldest = flights.front();
    crew.finish(oldest.task);
    error = pass_on(stream, oldest.piece, destination + oldest.at, space, is_synchronous);
    if (error == CUDA_SUCCESS) flights.pop();
  }
  for (; flights.count() != 0; flights.pop()) {  // after an error
    crew.finish(flights.front().task);
    give_back(flights.front().piece);
  }
  return error;
}

CUresult Staging::fetch(Stream& stream, const StagingPiece& piece, std::uint64_t source, Space space, std::uint32_t& fence) {
  const CUresult error = post_work<proto::CopyRecord>(stream, 0, [&](proto::CopyRecord& record, std::byte*) {
    describe(record, piece.address, Space::registered_host, source, space, piece.size_bytes);
  });
  return error == CUDA_SUCCESS ? Streams::instance().fence(stream, fence) : error;
}

CUresult Staging::download(Stream& stream, void* destination, std::uint64_t source, Space space, std::size_t bytes) {
  if (const CUresult error = open(); error != CUDA_SUCCESS) return error;
  if (bytes > kLeastPieceBytes) {
    const CUresult error = download_in_pieces(stream, static_cast<std::byte*>(destination), source, space, bytes);
    return error == CUDA_SUCCESS ? session().take_error() : error;
  }
  StagingPiece piece;
  std::uint32_t fence = 0;
  CUresult error = take(stream, bytes, piece);
  if (error == CUDA_SUCCESS) error = fetch(stream, piece, source, space, fence);
  if (error == CUDA_SUCCESS) error = session().wait_fence(stream.word, fence, "a copy to pageable memory");
  if (error != CUDA_SUCCESS) return error;  // the session is over; a piece whose copy may still run is not used again
  std::memcpy(destination, memory_of(piece), bytes);
  give_back(piece);
  return session().take_error();
}

// The GPU fills pieces ahead; a piece that has landed becomes a task of the crew; one that was copied out is filled anew.
CUresult Staging::download_in_pieces(Stream& stream, std::byte* destination, std::uint64_t source, Space space, std::size_t bytes) {
  CopyCrew& crew = CopyCrew::instance();
  const bool is_shared = bytes >= kSharedDownloadBytes && crew.has_helpers();
  const Caching caching = bytes >= kPastCachesBytes ? Caching::past : Caching::usual;
  Flights flights(crew);
  std::size_t landed = 0;  // of the flights, from the front: handed to the crew
  CUresult error = CUDA_SUCCESS;
  for (std::size_t posted = 0; error == CUDA_SUCCESS && (posted < bytes || flights.count() != 0);) {
    while (landed != 0 && CopyCrew::is_done(flights.front().task)) {
      give_back(flights.front().piece);
      flights.pop();
      --landed;
    }
    if (posted < bytes && flights.has_room()) {
      std::optional<StagingPiece> piece;
      error = next_piece(stream, bytes - posted, flights.count() == 0, piece);
      if (error != CUDA_SUCCESS) break;
      if (piece) {
        error = fetch(stream, *piece, source + posted, space, flights.push(*piece, posted).fence);
        posted += piece->size_bytes;
        continue;
      }
    }
    if (landed == flights.count()) {  // all the GPU's part is done
      if (landed != 0) crew.finish(flights.front().task);
      continue;
    }
    Flight& next = flights[landed];
    if (!session().fences().reached(stream.word, next.fence)) {
      if (landed != 0 && crew.help()) continue;
      error = session().wait_fence(stream.word, next.fence, "a copy to pageable memory");
      if (error != CUDA_SUCCESS) break;
    }
    if (is_shared)
      crew.submit(next.task, destination + next.at, memory_of(next.piece), next.piece.size_bytes, caching);
    else
      copy_bytes(destination + next.at, memory_of(next.piece), next.piece.size_bytes, caching);
    ++landed;
  }
  // After an error the session is over, or a record was never posted; pieces whose copy may still run are not used again.
  return error;
}

}  // namespace mpsshim::interposer::forward
