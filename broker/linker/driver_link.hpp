// SPDX-License-Identifier: Apache-2.0
// One linker of the driver's (cuLink*), and the logs that it writes. Bytes go to the driver as they came, which compiles and checks them. Used by one
// thread at a time, with a context current.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "broker/driver/driver.hpp"
#include "broker/linker/link_job.hpp"

namespace mpsshim::broker {

class DriverLink {
 public:
  explicit DriverLink(const Driver& driver) : driver_(driver) {}
  DriverLink(const DriverLink&) = delete;
  ~DriverLink();

  [[nodiscard]] CUresult create(const std::vector<JitOption>& options);
  [[nodiscard]] CUresult add(const LinkStep& step);
  [[nodiscard]] CUresult complete(ImageBytes& code);
  // A text that no linker takes, as the driver loads it.
  [[nodiscard]] static CUresult try_load(const Driver& driver, const ImageBytes& text, std::string& error_log);

  [[nodiscard]] std::string error_log() const { return text_of(error_log_); }
  [[nodiscard]] std::string info_log() const { return text_of(info_log_); }

 private:
  using Log = std::array<char, kLinkLogBytes>;
  [[nodiscard]] static std::string text_of(const Log& log);

  const Driver& driver_;
  CUlinkState state_ = nullptr;
  Log error_log_{};
  Log info_log_{};
  std::vector<CUjit_option> options_;  // the driver writes the logs' sizes to the values until the state ends
  std::vector<void*> values_;
};

}  // namespace mpsshim::broker
