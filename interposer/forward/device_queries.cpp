// SPDX-License-Identifier: Apache-2.0
// Questions about a device that its published facts do not answer, and calls that concern the context as a whole.
#include "gen/api_declarations.hpp"
#include "interposer/forward/begin.hpp"
#include "interposer/local/acting_session.hpp"
#include "interposer/local/devices.hpp"

namespace mpsshim::interposer::api {

using namespace forward;

namespace {

using proto::ContextAction;
using proto::DeviceQuestion;

// An executor knows its own device: where the process has no session there, one begins.
CUresult ask(CUdevice device, DeviceQuestion query, std::uint32_t first, std::uint32_t second, std::uint64_t& value) {
  if (device_facts(device) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  const ActingSession acting(session_of(device));
  if (const CUresult error = session().ensure_attached(); error != CUDA_SUCCESS) return error;
  const proto::DeviceQueryRecord record{query, first, second, 0};
  proto::DeviceQueryReply reply{};
  const CUresult error = session().channel().call({}, record, {}, reply);
  if (error == CUDA_SUCCESS) value = reply.value;
  return error;
}

CUresult call_whole(ContextAction call, std::uint32_t first, std::uint32_t second) {
  if (const CUresult error = begin(); error != CUDA_SUCCESS) return error;
  const proto::ContextCallRecord record{call, first, second, 0};
  proto::ContextCallReply reply{};
  return session().channel().call({}, record, {}, reply);
}

}  // namespace

CUresult cuDeviceGetTexture1DLinearMaxWidth(size_t* maxWidthInElements, CUarray_format format, unsigned numChannels, CUdevice dev) {
  if (maxWidthInElements == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (device_facts(dev) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  std::uint64_t width = 0;
  if (const CUresult error = ask(dev, DeviceQuestion::texture_width, format, numChannels, width); error != CUDA_SUCCESS) return error;
  *maxWidthInElements = width;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetHostAtomicCapabilities(unsigned int* capabilities, const CUatomicOperation* operations, unsigned int count, CUdevice dev) {
  if (device_facts(dev) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (capabilities == nullptr || operations == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned int i = 0; i < count; ++i) {
    std::uint64_t value = 0;
    const CUresult error = ask(dev, DeviceQuestion::host_atomics, static_cast<std::uint32_t>(operations[i]), 0, value);
    if (error != CUDA_SUCCESS) return error;
    capabilities[i] = static_cast<unsigned int>(value);
  }
  return CUDA_SUCCESS;
}

CUresult cuFlushGPUDirectRDMAWrites(CUflushGPUDirectRDMAWritesTarget target, CUflushGPUDirectRDMAWritesScope scope) {
  return call_whole(ContextAction::flush_remote_writes, target, scope);
}

CUresult cuCtxResetPersistingL2Cache() { return call_whole(ContextAction::reset_persisting_lines, 0, 0); }

}  // namespace mpsshim::interposer::api
