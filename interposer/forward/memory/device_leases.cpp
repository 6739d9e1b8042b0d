// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/memory/device_leases.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "interposer/channel/connection.hpp"
#include "interposer/forward/begin.hpp"
#include "interposer/forward/peer_access.hpp"
#include "interposer/local/acting_session.hpp"
#include "interposer/settle.hpp"

namespace mpsshim::interposer::forward {

namespace {

bool is_in(std::uint64_t begin, std::uint64_t size_bytes, std::uint64_t address) { return address - begin < size_bytes; }

void end_lease(std::uint64_t address) {
  proto::LeaseEndRecord record{};
  record.address = address;
  (void)session().channel().post({}, record);  // fails where the session has ended, and the range with it
}

}  // namespace

DeviceLeases& DeviceLeases::instance() {
  return PerSession<DeviceLeases>::get([] { return new DeviceLeases(); });
}

bool DeviceLeases::holds(std::uint64_t address) const {
  const proto::Lease& first = session().device_lease();
  if (is_in(first.address, first.size_bytes, address)) return true;
  return std::ranges::any_of(further_, [&](const Further& range) {
    return is_in(range.begin.load(std::memory_order_relaxed), range.size_bytes.load(std::memory_order_relaxed), address);
  });
}

DeviceLeases::Further* DeviceLeases::find(std::uint64_t address) {
  const auto found = std::ranges::find_if(further_, [&](const Further& range) { return is_in(range.begin, range.size_bytes, address); });
  return found != further_.end() ? &*found : nullptr;
}

CUresult DeviceLeases::request(std::uint64_t bytes, proto::Reservation& reservation) {
  constexpr int kTries = 8;
  for (int attempt = 0; attempt < kTries; ++attempt) {
    if (const CUresult error = session().look(); error != CUDA_SUCCESS) return error;
    proto::LeaseAdd question;
    question.size_bytes = bytes;
    proto::LeaseAdded answer;
    if (const CUresult error = connection().ask(question, answer); error != CUDA_SUCCESS) return error;
    reservation = proto::Reservation::at(answer.lease.address, answer.lease.size_bytes);
    if (reservation) return CUDA_SUCCESS;
    const bool is_in_use = errno == EEXIST;
    end_lease(answer.lease.address);  // ranges that come back are handed out last: the next one is another
    if (!is_in_use) break;
  }
  return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult DeviceLeases::add(std::uint64_t bytes) {
  const auto place = std::ranges::find_if(further_, [](const Further& range) { return range.begin == 0; });
  if (place == further_.end()) return CUDA_ERROR_OUT_OF_MEMORY;
  proto::Reservation reservation;
  if (const CUresult error = request(bytes, reservation); error != CUDA_SUCCESS) return error;
  proto::LeaseUseRecord record{};
  record.address = reservation.address();
  proto::LeaseUseReply reply{};
  if (const CUresult error = session().channel().call({}, record, {}, reply); error != CUDA_SUCCESS) {
    end_lease(record.address);
    return error;
  }
  place->begin = reservation.address();
  place->size_bytes = reservation.size();
  place->reservation = std::move(reservation);
  place->chunks = 0;
  return CUDA_SUCCESS;
}

void DeviceLeases::chunk_added(std::uint64_t address) {
  if (Further* range = find(address)) ++range->chunks;
}

void DeviceLeases::chunk_removed(std::uint64_t address) {
  Further* range = find(address);
  if (range == nullptr || --range->chunks != 0) return;
  PeerAccess::instance().lease_ends(range->begin);
  end_lease(range->begin);
  range->size_bytes = 0;
  range->begin = 0;
  range->reservation.reset();
}

}  // namespace mpsshim::interposer::forward
