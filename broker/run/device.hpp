// SPDX-License-Identifier: Apache-2.0
// Which device a program is given (mpsrun --device): one that is named, or of those that there are the one of a rank's number on its machine, as
// launchers say it. A function of the option and the environment; how many devices a broker has is asked of it as a client asks, so that it need not
// take commands from this user.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "broker/run/place.hpp"

namespace mpsshim::broker::run {

// A value of CUDA_VISIBLE_DEVICES: one entry. nullopt: `why` is a sentence.
//   N, GPU-UUID, MIG-UUID: itself
//   local: of the entries of CUDA_VISIBLE_DEVICES, where that is set, else of all `count()` devices, that of the local rank, and round again
[[nodiscard]] std::optional<std::string> choose_device(const std::string& option, const Environment& environment,
                                                       const std::function<std::optional<unsigned>(std::string& why)>& count, std::string& why);

// Of the broker that answers in the directory, once it knows. nullopt: `why` is a sentence.
[[nodiscard]] std::optional<unsigned> count_devices(const std::string& pipe_dir, std::string& why);

// `asked` for all devices, and what is in `limits` already (CUDA_MPS_PINNED_DEVICE_MEM_LIMIT). nullopt: `asked` is no size.
[[nodiscard]] std::optional<std::string> with_memory_limit(const std::string& asked, const std::string& limits);
// `asked`, with or without a percent sign, or what `percentage` holds the program to already (CUDA_MPS_ACTIVE_THREAD_PERCENTAGE), where that is
// lower. nullopt: `asked` is no percentage.
[[nodiscard]] std::optional<std::string> with_gpu_share(const std::string& asked, const std::string& percentage);

}  // namespace mpsshim::broker::run
