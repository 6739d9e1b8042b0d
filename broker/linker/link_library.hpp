// SPDX-License-Identifier: Apache-2.0
// Who compiles and links what clients bring: the driver's linker (driver_link.hpp), which works in a context, or a toolkit's nvJitLink
// (nvjitlink.hpp), which works without. Bytes go there as they came, to be compiled and checked. Used by one thread at a time.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "broker/linker/link_job.hpp"

namespace mpsshim::broker {

// One linker, from its creation to its completion, and the logs that it writes.
class Link {
 public:
  Link() = default;
  Link(const Link&) = delete;
  virtual ~Link() = default;

  [[nodiscard]] virtual CUresult create(const std::vector<JitOption>& options) = 0;
  [[nodiscard]] virtual CUresult add(const LinkStep& step) = 0;
  [[nodiscard]] virtual CUresult complete(ImageBytes& code) = 0;
  [[nodiscard]] virtual std::string error_log() const = 0;
  [[nodiscard]] virtual std::string info_log() const = 0;
};

class LinkLibrary {
 public:
  LinkLibrary() = default;
  LinkLibrary(const LinkLibrary&) = delete;
  virtual ~LinkLibrary() = default;

  [[nodiscard]] virtual std::unique_ptr<Link> begin() const = 0;
  // A text that no linker takes, as the driver loads it.
  [[nodiscard]] virtual CUresult try_load(const ImageBytes& text, std::string& error_log) const = 0;
};

}  // namespace mpsshim::broker
