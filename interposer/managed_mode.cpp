// SPDX-License-Identifier: Apache-2.0
#include "interposer/managed_mode.hpp"

#include "interposer/environment.hpp"
#include "interposer/log.hpp"

namespace mpsshim::interposer {

ManagedMode managed_mode() {
  static const ManagedMode mode = [] {
    const std::string_view text = environment_value(Variable::managed);
    if (text == "device") return ManagedMode::device;
    if (text == "host") return ManagedMode::host;
    if (!text.empty() && text != "auto") log_line("MPSSHIM_MANAGED is neither host, device nor auto: it is auto.");
    return ManagedMode::automatic;
  }();
  return mode;
}

}  // namespace mpsshim::interposer
