// SPDX-License-Identifier: Apache-2.0
#include "broker/control/executors/published_facts.hpp"

#include <cstddef>
#include <utility>

#include <unistd.h>

#include "broker/log.hpp"

namespace mpsshim::broker::control {

namespace {
constexpr std::size_t kOldestFactsBytes = offsetof(proto::DriverFacts, peer);  // of a broker that knew no peers
}

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
  const ssize_t got = file_.valid() ? pread(file_.get(), facts.get(), sizeof *facts, 0) : -1;
  if (got < static_cast<ssize_t>(kOldestFactsBytes) || facts->size_bytes != static_cast<std::uint64_t>(got)) return nullptr;
  if (facts->device_count > proto::kMaxDevices) return nullptr;
  if (facts->size_bytes == sizeof *facts) return facts;
  if (facts->size_bytes != kOldestFactsBytes) return nullptr;
  facts->size_bytes = sizeof *facts;  // clients that come from now on read it as this release's: no device is another's peer
  publish(*facts);
  return facts;
}

}  // namespace mpsshim::broker::control
