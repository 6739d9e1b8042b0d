// SPDX-License-Identifier: Apache-2.0
// The driver's facts as clients get them: a sealed, read-only file that nobody can change, made when the first executor is ready.
// Owned by SessionManager; the control process's thread.
#pragma once

#include <memory>

#include "proto/device_facts.hpp"
#include "proto/segment.hpp"

namespace mpsshim::broker::control {

class PublishedFacts {
 public:
  void publish(const proto::DriverFacts& facts);
  // A file that another program in this process has published. nullptr: it is none.
  [[nodiscard]] std::unique_ptr<proto::DriverFacts> resume(proto::FileDescriptor file);
  [[nodiscard]] bool are_there() const { return file_.valid(); }
  [[nodiscard]] int file() const { return file_.get(); }  // -1: not yet

 private:
  proto::FileDescriptor file_;
};

}  // namespace mpsshim::broker::control
