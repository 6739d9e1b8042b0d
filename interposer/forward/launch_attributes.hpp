// SPDX-License-Identifier: Apache-2.0
// Launch attributes that a launch gets without naming them: those set on its function (cluster dimensions and policy, cuFuncSetAttribute) and on
// its stream (cuStreamSetAttribute). They are kept here, per process, and go with each launch: the driver's function and stream behind them
// are shared with other clients, or used by others later. So they come back with any executor.
//
// Any thread; what is set while another thread launches may or may not go with that launch.
#pragma once

#include <span>
#include <vector>

#include "gen/cuda_api.hpp"
#include "interposer/forward/functions.hpp"
#include "interposer/forward/streams.hpp"

namespace mpsshim::interposer::forward {

// Whether there is one among them that changes nothing that a program may rely on: without it the launch is the same, and may be in a chain.
// CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION is a permission to begin before the work in front has ended. Here that work may be
// another client's as well as the stream's own, so it is not taken.
[[nodiscard]] bool has_idle_attributes(std::span<const CUlaunchAttribute> attributes);
[[nodiscard]] std::vector<CUlaunchAttribute> without_idle_attributes(std::span<const CUlaunchAttribute> attributes);

// CUDA_ERROR_INVALID_VALUE: an access policy window that the device cannot have. The driver would say so when the launch is issued, too late for it.
[[nodiscard]] CUresult check_windows(std::span<const CUlaunchAttribute> attributes);

// What `given` names itself comes from there, then from the stream, then from the function.
[[nodiscard]] std::vector<CUlaunchAttribute> with_defaults(const Function& function, Stream& stream, std::span<const CUlaunchAttribute> given);

// CUDA_ERROR_INVALID_VALUE: no attribute of streams, or no value of it.
[[nodiscard]] CUresult set_stream_attribute(Stream& stream, CUstreamAttrID id, const CUstreamAttrValue& value);
[[nodiscard]] CUresult get_stream_attribute(Stream& stream, CUstreamAttrID id, CUstreamAttrValue& value);
void copy_stream_attributes(Stream& destination, Stream& source);

}  // namespace mpsshim::interposer::forward
