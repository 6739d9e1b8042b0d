// SPDX-License-Identifier: Apache-2.0
// One-dimensional copies (CUDA Driver API manual, "Memory Management"; "API synchronization behavior").
#include "interposer/forward/memory/copy.hpp"

#include <chrono>
#include <cstring>
#include <utility>

#include "gen/api_declarations.hpp"
#include "interposer/forward/across_sessions.hpp"
#include "interposer/forward/graphs/capture.hpp"
#include "interposer/forward/memory/copy_pace.hpp"
#include "interposer/forward/memory/device_leases.hpp"
#include "interposer/forward/memory/device_ranges.hpp"
#include "interposer/forward/memory/external_memory.hpp"
#include "interposer/forward/memory/globals.hpp"
#include "interposer/forward/memory/peer_pieces.hpp"
#include "interposer/forward/memory/pinned.hpp"
#include "interposer/forward/memory/reaching.hpp"
#include "interposer/forward/memory/registered.hpp"
#include "interposer/forward/memory/sync_memops.hpp"
#include "interposer/local/acting_session.hpp"

namespace mpsshim::interposer::forward {

namespace {

bool is_in(const proto::Lease& lease, std::uint64_t address) { return address - lease.address < lease.size_bytes; }

// A call that waits cannot be captured.
CUresult capture_copy(Stream& stream, const CopySide& destination, const CopySide& source, std::size_t bytes, Completion completion) {
  if (completion == Completion::host_safe) return Captures::instance().refuse(stream);
  if (bytes == 0) return CUDA_SUCCESS;
  WorkRef work;
  if (const CUresult error = make_linear_copy_work(destination, source, bytes, work); error != CUDA_SUCCESS) return error;
  return Captures::instance().add(stream, std::move(work));
}

bool is_host(Space space) { return space == Space::pageable || space == Space::registered_host; }

CUresult copy_by_record(Stream& stream, std::uint64_t destination, Space to, std::uint64_t source, Space from, std::size_t bytes) {
  return post_work<proto::CopyRecord>(stream, 0, [&](proto::CopyRecord& record, std::byte*) {
    record.destination = destination;
    record.source = source;
    record.size_bytes = bytes;
    record.destination_space = to;
    record.source_space = from;
  });
}

// Waits for a copy by record, the last work on the stream.
CUresult wait_for_copy(Stream& stream, CopyPace& pace, std::size_t bytes) {
  if (bytes < CopyPace::kLeastBytes) return Streams::instance().wait_for_own_work(stream);
  const auto start = std::chrono::steady_clock::now();
  const CUresult error = Streams::instance().wait_for_own_work(stream, pace.expected_us(bytes));
  if (error == CUDA_SUCCESS) pace.learn(bytes, std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - start));
  return error;
}

// Host to host, at least one side pageable: in this process, at the stream's turn. As CUDA, it does not return before.
CUresult copy_on_host(Stream& stream, std::uint64_t destination, std::uint64_t source, std::size_t bytes) {
  if (const CUresult error = Streams::instance().synchronize(stream); error != CUDA_SUCCESS) return error;
  std::memmove(host_pointer(destination), host_pointer(source), bytes);
  return CUDA_SUCCESS;
}

}  // namespace

CUresult classify(std::uint64_t& address, std::uint64_t bytes, Named named, Space& space) {
  if (address == 0) return CUDA_ERROR_INVALID_VALUE;
  // Variables of modules lie where the driver puts them and may coincide with a host mapping: only a pointer named host is spared.
  if (named != Named::host) {
    if (const auto variable = Globals::instance().find(address)) {
      space = Space::device;
      return variable->holds(address, bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    }
  }
  if (DeviceLeases::instance().holds(address) || ExternalMemories::instance().find(address)) {
    space = Space::device;
    return is_usable(address, bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  }
  if (is_in(session().pinned_lease(), address)) {
    const auto allocation = PinnedMemory::instance().find(address);
    space = Space::registered_host;
    return allocation && allocation->range.holds(address, bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  }
  if (const auto registered = RegisteredMemory::instance().find(address);
      registered && registered->alias != 0 && registered->range.holds(address, bytes)) {
    space = Space::registered_host;
    address += registered->alias - registered->range.address;
    return CUDA_SUCCESS;
  }
  if (has_several_sessions() && PeerPieces::instance().reaches(address, bytes)) {
    space = Space::device;
    return CUDA_SUCCESS;
  }
  if (has_several_sessions() && PinnedMemory::is_open_here(address, bytes)) {
    space = Space::registered_host;
    return CUDA_SUCCESS;
  }
  // Here it is an address range that is kept free: nothing can be read there.
  if (has_several_sessions() && session_holding(address)) return CUDA_ERROR_NOT_SUPPORTED;
  space = Space::pageable;
  return named == Named::device ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult classify_fixed(std::uint64_t address, std::uint64_t bytes, Named named, Space& space) {
  std::uint64_t executors = address;
  if (const CUresult error = classify(executors, bytes, named, space); error != CUDA_SUCCESS) return error;
  return executors == address ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult copy(Stream& stream, CopySide destination, CopySide source, std::size_t bytes, Completion completion) {
  if (stream.is_captured.load(std::memory_order_relaxed)) return capture_copy(stream, destination, source, bytes, completion);
  if (bytes == 0) return CUDA_SUCCESS;
  Space to{}, from{};
  if (const CUresult error = classify(destination.address, bytes, destination.named, to); error != CUDA_SUCCESS) return error;
  if (const CUresult error = classify(source.address, bytes, source.named, from); error != CUDA_SUCCESS) return error;
  CUresult error = CUDA_SUCCESS;
  if (is_host(to) && is_host(from) && (to == Space::pageable || from == Space::pageable)) {
    return copy_on_host(stream, destination.address, source.address, bytes);
  }
  if (to == Space::pageable) return Staging::instance().download(stream, host_pointer(destination.address), source.address, from, bytes);
  const bool host_sees = is_host(to) || from == Space::registered_host;  // one of the sides while the copy runs
  if (from == Space::pageable) {
    // As CUDA: the stream's work ends first; the source has been read when the function returns, the destination may be written later.
    const bool is_synchronous = completion == Completion::host_safe && !host_sees;
    if (is_synchronous) error = Streams::instance().synchronize_visible(stream);
    if (error == CUDA_SUCCESS)
      error = Staging::instance().upload(stream, destination.address, to, host_pointer(source.address), bytes, is_synchronous);
  } else {
    error = copy_by_record(stream, destination.address, to, source.address, from, bytes);
  }
  if (error != CUDA_SUCCESS || completion == Completion::as_posted || !host_sees) return error;
  static CopyPace to_device, to_host;
  return wait_for_copy(stream, is_host(to) ? to_host : to_device, bytes);
}

}  // namespace mpsshim::interposer::forward

namespace mpsshim::interposer::api {

using namespace forward;

namespace {

CopySide device_side(CUdeviceptr address) { return {address, Named::device}; }
CopySide host_side(const void* address) { return {reinterpret_cast<std::uintptr_t>(address), Named::host}; }
CopySide any_side(CUdeviceptr address) { return {address, Named::by_address}; }

CUresult copy_now(CopySide destination, CopySide source, std::size_t bytes) {
  if (const CUresult error = begin(); error != CUDA_SUCCESS) return error;
  if (has_several_sessions() && is_across(destination, source)) return copy_across_now(destination, source, bytes);
  return in_default_stream(
      [&](Stream& stream) { return SyncMemops::instance().finish(copy(stream, destination, source, bytes, Completion::host_safe), stream); });
}

CUresult copy_later(CopySide destination, CopySide source, std::size_t bytes, CUstream handle) {
  if (const CUresult error = begin_on(handle); error != CUDA_SUCCESS) return error;
  Stream* stream = Streams::instance().resolve(handle);
  if (stream == nullptr) return Streams::instance().missing(handle);
  if (!has_several_sessions() || !is_across(destination, source)) return copy(*stream, destination, source, bytes, Completion::as_posted);
  {
    const Reaching reaching;
    if (reaches_both(destination, source, bytes)) return copy(*stream, destination, source, bytes, Completion::as_posted);
  }
  return copy_across_later(*stream, destination, source, bytes);
}

}  // namespace

CUresult cuMemcpyHtoD_v2(CUdeviceptr dstDevice, const void* srcHost, size_t ByteCount) {
  return copy_now(device_side(dstDevice), host_side(srcHost), ByteCount);
}
CUresult cuMemcpyDtoH_v2(void* dstHost, CUdeviceptr srcDevice, size_t ByteCount) {
  return copy_now(host_side(dstHost), device_side(srcDevice), ByteCount);
}
CUresult cuMemcpyDtoD_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount) {
  return copy_now(device_side(dstDevice), device_side(srcDevice), ByteCount);
}
CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount) { return copy_now(any_side(dst), any_side(src), ByteCount); }

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dstDevice, const void* srcHost, size_t ByteCount, CUstream hStream) {
  return copy_later(device_side(dstDevice), host_side(srcHost), ByteCount, hStream);
}
CUresult cuMemcpyDtoHAsync_v2(void* dstHost, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream) {
  return copy_later(host_side(dstHost), device_side(srcDevice), ByteCount, hStream);
}
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream) {
  return copy_later(device_side(dstDevice), device_side(srcDevice), ByteCount, hStream);
}
CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream) {
  return copy_later(any_side(dst), any_side(src), ByteCount, hStream);
}

}  // namespace mpsshim::interposer::api
