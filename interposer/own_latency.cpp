// SPDX-License-Identifier: Apache-2.0
#include "interposer/own_latency.hpp"

#include "interposer/environment.hpp"
#include "interposer/log.hpp"

namespace mpsshim::interposer {

proto::Latency own_latency() {
  static const proto::Latency latency = [] {
    const std::string_view word = environment_value(Variable::latency);
    if (const auto found = proto::parse_latency(word)) return *found;
    if (!word.empty()) log_line("MPSSHIM_LATENCY is none of low, balanced and saving: it is balanced.");
    return proto::Latency::balanced;
  }();
  return latency;
}

}  // namespace mpsshim::interposer
