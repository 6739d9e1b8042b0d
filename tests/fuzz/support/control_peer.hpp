// SPDX-License-Identifier: Apache-2.0
// The control process of an executor whose parts a fuzz target drives: hears what is reported, answers what somebody waits for, announces memory.
// Two threads, one at each end of the link, so that a job that asks and waits can be run by the target itself.
#pragma once

#include <thread>

#include "broker/control_messages.hpp"
#include "tests/wire/support/wire_fixture.hpp"

namespace mpsshim::fuzz {

class ControlPeer {
 public:
  explicit ControlPeer(test::WireExecutor& executor);
  ControlPeer(const ControlPeer&) = delete;
  ~ControlPeer();

  // Memory that a session may have under this id: a segment to be mapped, or memory of another interface. Known to whoever asks afterwards.
  void announce_segment(std::uint64_t session, std::uint64_t segment, std::uint64_t address, std::uint64_t size_bytes);
  void announce_external(std::uint64_t session, proto::ExternalMemoryId memory, std::uint64_t size_bytes);

 private:
  void answer();

  test::WireExecutor& executor_;
  std::thread filing_;
  std::thread answering_;
};

}  // namespace mpsshim::fuzz
