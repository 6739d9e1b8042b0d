// SPDX-License-Identifier: Apache-2.0
// An executor whose every turn is the input's to take: workers, helpers, windows and the driver's work go on when a step says so, in one thread.
// Three sessions that the input writes for, and a bystander whose work is known. An input is a row of steps, u8 each: bits 0-2 say what, bits 3-7
// which or how much.
//   0, 1: u16 length, then as many bytes behind what is in a session's ring     2: turns of the worker
//   3: jobs of helpers     4: a quiet window     5: work is held (0), ends (31: all, and from now on at once), or so much of each stream's does
//   6: a session's client hangs up, or another comes; memory is announced     7: the bystander posts work, or waits for it
//
// What must hold: every address of every driver call is of the session on whose behalf it is made; nothing ends under work that names it; the
// bystander's work is done, whole and in order; when all sessions have ended, nothing of them is left.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "tests/fuzz/support/control_peer.hpp"
#include "tests/fuzz/support/fuzz_target.hpp"
#include "tests/fuzz/support/record_maker.hpp"
#include "tests/wire/support/wire_fixture.hpp"

namespace mpsshim::fuzz {

class ExecutorStage {
 public:
  static constexpr unsigned kSessions = 3;  // 1, 2, 3; the bystander is behind them

  ExecutorStage();
  ExecutorStage(const ExecutorStage&) = delete;
  ~ExecutorStage();

  void run(std::span<const std::uint8_t> input);
  [[nodiscard]] std::uint64_t records() const { return records_; }
  void count_from(std::uint64_t records) { records_ = records; }

  // An input whose rings `fill` writes for sessions 1 to `sessions`, a record or a few at a call.
  using Fill = std::function<void(RecordMaker&)>;
  [[nodiscard]] static Input make_input(Random& random, unsigned sessions, const Fill& fill);

 private:
  struct Client {
    std::unique_ptr<test::WireClient> wire;
    std::size_t unread = 0;  // records in its ring
    bool is_closing = false;
    bool is_closed = false;
  };

  void open(unsigned index);
  void close(unsigned index);
  void bury();
  void write(unsigned index, std::span<const std::uint8_t> bytes);
  void name_samplers(test::WireClient& client, std::span<std::byte> bytes);
  void turn();
  void hold(unsigned amount);
  void change(unsigned which);
  void announce(unsigned index);
  void go_on();
  void post_bystanders_work();
  void await_bystander();
  void end_all();
  void check();

  const bool is_silent_;  // before anybody logs
  test::FakeFunction function_{"f", {8, 4}};
  test::FakeFunction bystanders_{"bystander", {8}};
  test::WireExecutor executor_{broker::HelperPool::kByHand};
  ControlPeer peer_{executor_};
  std::array<Client, kSessions> clients_;
  std::unique_ptr<test::WireClient> bystander_;
  proto::FunctionId bystanders_function_;
  std::uint64_t bystanders_chunk_ = 0;
  std::uint32_t posted_ = 0;    // by the bystander
  std::uint64_t launched_ = 0;  // of its launches, that the driver has been given
  std::uint64_t records_ = 0;
};

}  // namespace mpsshim::fuzz
