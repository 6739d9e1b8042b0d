// SPDX-License-Identifier: Apache-2.0
#include "broker/control/executors/published_facts.hpp"

#include <utility>

#include <unistd.h>

#include "broker/log.hpp"

namespace mpsshim::broker::control {

// Written, not mapped, so that the content can be sealed.
void PublishedFacts::publish(const proto::DriverFacts& facts) {
  proto::FileDescriptor file = proto::create_memory_file("mpsshim-facts", sizeof facts);
  const bool written = file.valid() && pwrite(file.get(), &facts, sizeof facts, 0) == static_cast<ssize_t>(sizeof facts);
  if (!written || !proto::seal(file, proto::Seal::content)) {
    log_error("The driver's facts could not be published; clients will not find a driver. Free memory or raise the limit of open files.");
    return;
  }
  file_ = std::move(file);
}

std::unique_ptr<proto::DriverFacts> PublishedFacts::resume(proto::FileDescriptor file) {
  file_ = std::move(file);
  auto facts = std::make_unique<proto::DriverFacts>();
  const bool is_whole = file_.valid() && pread(file_.get(), facts.get(), sizeof *facts, 0) == static_cast<ssize_t>(sizeof *facts) &&
                        facts->size_bytes == sizeof *facts && facts->device_count <= proto::kMaxDevices;
  return is_whole ? std::move(facts) : nullptr;
}

}  // namespace mpsshim::broker::control
