// SPDX-License-Identifier: Apache-2.0
// The driver's linker (cuLink*), with a context current.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "broker/driver/driver.hpp"
#include "broker/linker/link_library.hpp"

namespace mpsshim::broker {

class DriverLink final : public Link {
 public:
  explicit DriverLink(const Driver& driver) : driver_(driver) {}
  ~DriverLink() override;

  [[nodiscard]] CUresult create(const std::vector<JitOption>& options) override;
  [[nodiscard]] CUresult add(const LinkStep& step) override;
  [[nodiscard]] CUresult complete(ImageBytes& code) override;
  [[nodiscard]] static CUresult try_load(const Driver& driver, const ImageBytes& text, std::string& error_log);

  [[nodiscard]] std::string error_log() const override { return text_of(error_log_); }
  [[nodiscard]] std::string info_log() const override { return text_of(info_log_); }

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

class DriverLinkLibrary final : public LinkLibrary {
 public:
  explicit DriverLinkLibrary(const Driver& driver) : driver_(driver) {}
  [[nodiscard]] std::unique_ptr<Link> begin() const override { return std::make_unique<DriverLink>(driver_); }
  [[nodiscard]] CUresult try_load(const ImageBytes& text, std::string& error_log) const override {
    return DriverLink::try_load(driver_, text, error_log);
  }

 private:
  const Driver& driver_;
};

}  // namespace mpsshim::broker
