// SPDX-License-Identifier: Apache-2.0
// Does what requests ask for, one at a time. Keeps the linkers of clients between their steps, the last used ones: the others begin anew when they
// are asked for again.
#pragma once

#include <cstdint>
#include <list>
#include <memory>

#include "broker/linker/link_job.hpp"
#include "broker/linker/link_library.hpp"

namespace mpsshim::broker {

class LinkRunner {
 public:
  static constexpr std::size_t kKeptLinkers = 8;

  explicit LinkRunner(const LinkLibrary& library) : library_(library) {}

  [[nodiscard]] LinkOutcome run(const LinkRequest& request);
  // Those that are kept, which have something in the context.
  void forget() { kept_.clear(); }

 private:
  struct Kept {
    std::uint64_t number = 0;
    std::uint64_t known = 0;  // LinkRequest's
    std::unique_ptr<Link> link;
  };

  [[nodiscard]] LinkOutcome link_all(const LinkRequest& request) const;
  [[nodiscard]] LinkOutcome take_step(const LinkRequest& request);

  const LinkLibrary& library_;
  std::list<Kept> kept_;  // the last used one in front
};

}  // namespace mpsshim::broker
