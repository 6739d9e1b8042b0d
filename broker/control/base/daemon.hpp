// SPDX-License-Identifier: Apache-2.0
// Going into the background, and telling whoever started us how it went: the starting process waits until the broker has settled, prints why it
// did not if so, and ends with 0 or 1. A Daemon that never detached does nothing.
#pragma once

#include <string>

#include "proto/segment.hpp"

namespace mpsshim::broker::control {

class Daemon {
 public:
  // True in the process that is to end, with its exit status; false in the broker.
  [[nodiscard]] bool detach(int& exit_status);
  // "": all is well. Once.
  void settled(const std::string& why);
  // Standard output and error, so far the starting terminal's, go to the file: what libraries print must not be lost.
  void redirect_output(const std::string& path) const;

 private:
  proto::FileDescriptor report_;  // to the starting process: "." or a sentence
};

}  // namespace mpsshim::broker::control
