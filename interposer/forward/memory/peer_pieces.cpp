// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/memory/peer_pieces.hpp"

#include <algorithm>
#include <iterator>

#include "interposer/channel/connection.hpp"
#include "interposer/forward/memory/device_ranges.hpp"
#include "interposer/forward/memory/managed_memory.hpp"
#include "interposer/forward/memory/shared_memory.hpp"
#include "interposer/forward/memory/virtual_memory.hpp"
#include "interposer/local/acting_session.hpp"
#include "interposer/settle.hpp"

namespace mpsshim::interposer::forward {

namespace {

void post_release(proto::MemoryId memory) {
  proto::MemoryReleaseRecord record{};
  record.memory = memory;
  (void)session().channel().post({}, record);  // fails where the session has ended, and the memory with it
}

void post_lease_end(std::uint64_t address) {
  proto::LeaseEndRecord record{};
  record.address = address;
  (void)session().channel().post({}, record);
}

}  // namespace

PeerPieces& PeerPieces::instance() {
  return PerSession<PeerPieces>::get([] { return new PeerPieces(); });
}

SharedMutex& PeerPieces::closing_mutex() {
  static SharedMutex& mutex = *new SharedMutex();  // calls arrive after destructors have run
  return mutex;
}

CUresult PeerPieces::ensure_lease(std::uint64_t address) {
  const auto after = leases_.upper_bound(address);
  if (after != leases_.begin() && address - std::prev(after)->first < std::prev(after)->second) return CUDA_SUCCESS;
  if (const CUresult error = session().look(); error != CUDA_SUCCESS) return error;
  proto::PeerLease question;
  question.address = address;
  proto::PeerLeased answer;
  if (const CUresult error = connection().ask(question, answer); error != CUDA_SUCCESS) return error;
  proto::LeaseUseRecord record{};
  record.address = answer.lease.address;
  proto::LeaseUseReply reply{};
  if (const CUresult error = session().channel().call({}, record, {}, reply); error != CUDA_SUCCESS) {
    post_lease_end(record.address);
    return error;
  }
  leases_[answer.lease.address] = answer.lease.size_bytes;
  return CUDA_SUCCESS;
}

CUresult PeerPieces::adopt(std::uint32_t owner, std::uint64_t object, Piece& piece) {
  proto::MemoryName name;
  {
    const ActingSession acting(owner);
    if (const CUresult error = share_memory(object, name); error != CUDA_SUCCESS) return error;
  }
  piece.memory = VirtualMemory::instance().new_id();
  OpenedMemory opened;
  if (const CUresult error = open_shared_memory(name, piece.memory, opened); error != CUDA_SUCCESS) return error;
  proto::MemoryAdoptRecord record{};
  record.memory = piece.memory;
  proto::MemoryAdoptReply reply{};
  return session().channel().call({}, record, {}, reply);
}

CUresult PeerPieces::open(std::uint32_t owner, std::uint64_t object, const AddressRange& range) {
  const std::lock_guard ordering(order_mutex_);
  if (is_open(range.address)) return CUDA_SUCCESS;
  if (const CUresult error = session().ensure_attached(); error != CUDA_SUCCESS) return error;
  if (const CUresult error = ensure_lease(range.address); error != CUDA_SUCCESS) return error;
  Piece piece{range.size_bytes, owner, {}, 0};
  CUresult error = adopt(owner, object, piece);
  // An executor that was replaced meanwhile has not been told of it.
  if (error == CUDA_ERROR_INVALID_VALUE) error = adopt(owner, object, piece);
  if (error != CUDA_SUCCESS) return error;
  proto::MappingCreateRecord record{};
  record.address = range.address;
  record.size_bytes = range.size_bytes;
  record.memory = piece.memory;
  record.is_accessible = true;
  proto::MappingCreateReply reply{};
  error = session().call_kept(record, {}, reply, piece.recipe);
  if (error != CUDA_SUCCESS) {
    post_release(piece.memory);
    return error;
  }
  const std::lock_guard lock(mutex_);
  pieces_.emplace(range.address, piece);
  has_been_used_.store(true, std::memory_order_release);
  return CUDA_SUCCESS;
}

void PeerPieces::close(std::uint64_t address) {
  if (!has_been_used_.load(std::memory_order_acquire)) return;
  const std::lock_guard ordering(order_mutex_);
  const std::lock_guard closing(closing_mutex());
  Piece piece;
  {
    const std::lock_guard lock(mutex_);
    auto node = pieces_.extract(address);
    if (node.empty()) return;
    piece = node.mapped();
  }
  (void)session().channel().post<proto::MappingEndRecord>({}, 0, [&](proto::MappingEndRecord& record, std::byte*, Place place) {
    record.address = address;
    session().end_recipe(piece.recipe, place);
  });
  post_release(piece.memory);
}

void PeerPieces::end_lease(std::uint64_t address) {
  if (!has_been_used_.load(std::memory_order_acquire)) return;
  const std::lock_guard ordering(order_mutex_);
  if (leases_.erase(address) != 0) post_lease_end(address);
}

bool PeerPieces::is_open(std::uint64_t address) const {
  const std::lock_guard lock(mutex_);
  return pieces_.contains(address);
}

bool PeerPieces::find_owner(std::uint64_t address, std::uint64_t bytes, std::uint32_t& owner) const {
  const std::lock_guard lock(mutex_);
  auto piece = pieces_.upper_bound(address);
  if (piece == pieces_.begin()) return false;
  --piece;
  owner = piece->second.owner;
  for (;;) {
    const AddressRange range{piece->first, piece->second.size_bytes};
    if (!range.holds(address, 1) || piece->second.owner != owner) return false;
    if (range.holds(address, bytes)) return true;
    bytes -= range.end() - address;
    address = range.end();
    if (++piece == pieces_.end()) return false;
  }
}

bool PeerPieces::reaches(std::uint64_t address, std::uint64_t bytes) const {
  if (!has_been_used_.load(std::memory_order_acquire)) return false;
  std::uint32_t owner = 0;
  if (!find_owner(address, std::max<std::uint64_t>(bytes, 1), owner)) return false;
  const std::uint32_t own = ActingSession::index();
  const ActingSession acting(owner);
  const auto found = find_device_range(address);
  if (!found || (found->is_managed && !ManagedMemory::is_reached_by(own))) return false;
  // What the application has mapped is open piece by piece, whatever its own device may do there.
  return found->is_mapped || is_usable(address, bytes);
}

bool PeerPieces::has_pieces_of(std::uint32_t owner) const {
  if (!has_been_used_.load(std::memory_order_acquire)) return false;
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(pieces_, [&](const auto& entry) { return entry.second.owner == owner; });
}

}  // namespace mpsshim::interposer::forward
