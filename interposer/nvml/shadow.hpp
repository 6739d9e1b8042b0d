// SPDX-License-Identifier: Apache-2.0
// libmpsshim-nvml.so: stands in for libnvidia-ml.so.1 in programs that are clients, so that nvidia-smi, NCCL and frameworks see a client's own limit
// of device memory and its own use.
//
// Three cases, told apart once, by the first call that needs to know:
//   - NVIDIA's library is there, and initialises: every call goes to it. Of a broker's client the answers about a device's memory are changed
//   (answers.cpp).
//   - It is not there, as in a container without devices, and a broker serves: what the broker's facts can tell is answered from them, all else is
//     NVML_ERROR_NOT_SUPPORTED.
//   - Neither: NVML_ERROR_LIBRARY_NOT_FOUND from initialisation, and NVML_ERROR_UNINITIALIZED from the rest.
// All functions take six words at most and give one back; exports.cpp makes one of each name. Any thread. Nothing is ever unloaded or destroyed.
#pragma once

#include <array>
#include <cstdint>

#include "interposer/nvml/management_api.hpp"
#include "proto/management_table.hpp"

namespace mpsshim::interposer::nvml {

enum class Function : std::uint16_t {
#define MPSSHIM_NVML_FUNCTION(name) name,
#include "gen/nvml_functions.inc"
#undef MPSSHIM_NVML_FUNCTION
  count
};

using Word = std::uint64_t;
using Words = std::array<Word, 6>;

// How one exported function is answered.
[[nodiscard]] Word answer(Function function, const Words& words);

// The same function of NVIDIA's library; NVML_ERROR_FUNCTION_NOT_FOUND where that one lacks it. Only where has_real().
[[nodiscard]] Word call_real(Function function, const Words& words);
// NVIDIA's library is there, and nothing has shown that it cannot be initialised.
[[nodiscard]] bool has_real();
// It has told that it cannot: from now on there is none.
void give_up_real();

// libmpsshim.so of this process, where a broker serves it; nullptr: none does.
[[nodiscard]] const proto::ManagementTable* client();

[[nodiscard]] constexpr Word word(Result result) { return static_cast<Word>(result); }

}  // namespace mpsshim::interposer::nvml
