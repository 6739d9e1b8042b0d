// SPDX-License-Identifier: Apache-2.0
// The other end of a channel, inside the test's process: memory as the control process makes it, and a thread that reads records with
// RingConsumer, answers calls and sleeps on the doorbell as the executor does.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "interposer/channel/channel.hpp"
#include "proto/ring_consumer.hpp"

namespace mpsshim::test {

// A mapped channel of one epoch, and the executor's ends of its doorbells.
struct ChannelEnds {
  std::shared_ptr<interposer::Link> link;
  proto::FileDescriptor ring_doorbell;
  proto::FileDescriptor completion_doorbell;
};
ChannelEnds make_channel(std::uint64_t epoch);

void answer(interposer::Link& link, std::uint16_t slot, CUresult status, std::span<const std::byte> payload);

class FakeExecutor {
 public:
  // Called for every record, in order, in the executor's thread.
  using Handler = std::function<void(const proto::RecordHeader& header, const std::byte* body)>;

  FakeExecutor(ChannelEnds& ends, Handler handler);
  ~FakeExecutor() { stop(); }
  void stop();
  [[nodiscard]] proto::RingFault fault() const { return fault_; }
  [[nodiscard]] std::uint64_t doorbells() const { return doorbells_; }

 private:
  void run();

  ChannelEnds& ends_;
  Handler handler_;
  proto::RingConsumer consumer_;
  std::atomic<bool> stopping_{false};
  proto::RingFault fault_ = proto::RingFault::none;  // read after stop()
  std::uint64_t doorbells_ = 0;
  std::thread thread_;
};

}  // namespace mpsshim::test
