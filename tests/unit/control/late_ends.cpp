// SPDX-License-Identifier: Apache-2.0
// Which ends of work may be those of the work that has faulted.
#include <memory>
#include <set>

#include "broker/control/faults/verdict.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::broker;
using namespace mpsshim::broker::control;

TEST_CASE("which ends are late ones where the kernel log has told of the fault") {
  auto table = std::make_unique<ProgressTable>();
  const ProgressTick report = 1'000'000;
  const ProgressTick heard = report - 1'000;
  const auto end = [&](std::size_t stream, ProgressTick when) {
    table->stream[stream].session = stream + 1;
    table->stream[stream].issued = 7;
    table->stream[stream].completed = 7;
    note_end(table->stream[stream], 7, when);
  };
  end(0, heard - kLogDelay);      // about when the fault was
  end(1, heard - kLogDelay - 1);  // before
  end(2, heard + kLateEnd + 1);   // later, which nothing does but words behind a fault after which there are such
  end(3, report - kLateEnd);      // when the work was taken off the GPU
  using Sessions = std::set<std::uint64_t>;
  CHECK(busy_sessions(*table, late_ends(*table, report, CUDA_ERROR_MISALIGNED_ADDRESS, heard)) == Sessions{1, 3, 4});
  CHECK(busy_sessions(*table, late_ends(*table, report, CUDA_ERROR_LAUNCH_FAILED, heard)) == Sessions{1, 4});
  CHECK(busy_sessions(*table, late_ends(*table, report, CUDA_ERROR_ILLEGAL_ADDRESS, heard)) == Sessions{4});
  end(0, report - 1'500);  // nothing ended about then: the log was late, and says nothing
  end(1, report - 1'500 - kLateEnd - 1);
  table->stream[2].session = table->stream[3].session = 0;
  CHECK(busy_sessions(*table, late_ends(*table, report, CUDA_ERROR_MISALIGNED_ADDRESS, heard)) == Sessions{1});
}

TEST_CASE("where other work was under way, its last end tells when the fault was, however late the log is") {
  auto table = std::make_unique<ProgressTable>();
  const ProgressTick report = 1'000'000;
  const ProgressTick heard = report - 1'600;
  const ProgressTick standstill = heard - 270;  // both as on an H200 that six brokers shared
  const auto stream = [&](std::size_t index, std::uint32_t issued, std::uint32_t completed, ProgressTick when) {
    table->stream[index].session = index + 1;
    table->stream[index].issued = issued;
    table->stream[index].completed = completed;
    note_end(table->stream[index], completed, when);
  };
  const auto suspects = [&] { return busy_sessions(*table, late_ends(*table, report, CUDA_ERROR_MISALIGNED_ADDRESS, heard)); };
  using Sessions = std::set<std::uint64_t>;
  stream(0, 7, 7, standstill - 5);  // its words were written although it faulted
  stream(1, 900, 880, standstill);  // launches without a pause
  note_work(table->stream[1], true, standstill + 1);
  stream(2, 3, 3, standstill - kLogDelay - 1);  // was idle
  CHECK(suspects() == Sessions{1, 2});
  note_work(table->stream[1], false, 0);
  note_work(table->stream[1], true, standstill + kLateEnd + 1);  // begun later: nothing was under way at that end, and the log decides
  CHECK(suspects() == Sessions{2});
  note_end(table->stream[0], 7, heard + 500);  // later still
  CHECK(suspects() == Sessions{1, 2});
  // A kernel that has run for long says nothing about an end long ago.
  note_work(table->stream[1], false, 0);
  note_work(table->stream[1], true, heard - 5'000);
  note_end(table->stream[0], 7, heard - kLongestLogDelay - 1);
  note_end(table->stream[1], 880, heard - 5'001);
  note_end(table->stream[2], 3, heard - 3'000);
  CHECK(suspects() == Sessions{2});
}

TEST_CASE("nobody is alone a suspect because log and report came late") {
  auto table = std::make_unique<ProgressTable>();
  const ProgressTick report = 1'000'000;  // all as on an H200 that sixteen brokers shared
  const ProgressTick heard = report - 2'880;
  const ProgressTick standstill = report - 4'288;
  const auto stream = [&](std::size_t index, std::uint32_t issued, std::uint32_t completed, ProgressTick when) {
    table->stream[index].session = index + 1;
    table->stream[index].issued = issued;
    table->stream[index].completed = completed;
    note_end(table->stream[index], completed, when);
  };
  stream(0, 7, 7, standstill + 3);  // its words were written although it faulted
  stream(1, 507, 486, standstill);  // launches without a pause
  note_work(table->stream[1], true, standstill + 1);
  stream(2, 3, 3, standstill - 5'000);
  using Sessions = std::set<std::uint64_t>;
  const auto suspects = [&](CUresult error, std::optional<ProgressTick> told) {
    return busy_sessions(*table, suspect_ends(*table, report, error, told));
  };
  CHECK(suspects(CUDA_ERROR_MISALIGNED_ADDRESS, heard) == Sessions{1, 2});
  CHECK(suspects(CUDA_ERROR_MISALIGNED_ADDRESS, std::nullopt) == Sessions{1, 2});
  CHECK(suspects(CUDA_ERROR_LAUNCH_FAILED, std::nullopt) == Sessions{2});
  // Idle it is all the same, for all that is known.
  CHECK(busy_sessions(*table, late_ends(*table, report, CUDA_ERROR_MISALIGNED_ADDRESS, heard)) == Sessions{2});
}

TEST_CASE("which ends are late ones") {
  auto table = std::make_unique<ProgressTable>();
  const ProgressTick report = 1'000'000;
  const auto end = [&](std::size_t stream, std::uint32_t completed, ProgressTick before_report) {
    table->stream[stream].session = stream + 1;
    table->stream[stream].issued = completed;
    table->stream[stream].completed = completed;
    note_end(table->stream[stream], completed, report - before_report);
  };
  end(0, 7, 540);                 // the last end of all: the GPU has stood still for 54 ms
  end(1, 3, 540 + kLateEnd);      // just before
  end(2, 3, 540 + kLateEnd + 1);  // earlier
  using Sessions = std::set<std::uint64_t>;
  CHECK(busy_sessions(*table, late_ends(*table, report, CUDA_ERROR_MISALIGNED_ADDRESS)) == Sessions{1, 2});
  CHECK(busy_sessions(*table, late_ends(*table, report, CUDA_ERROR_ILLEGAL_ADDRESS)).empty());
  table->stream[3].session = 4;  // at work since the time before that: it may have faulted, or stream 0
  table->stream[3].issued = 2;
  table->stream[3].completed = 1;
  note_end(table->stream[3], 1, report - 700);
  note_work(table->stream[3], true, report - 700);
  CHECK(busy_sessions(*table, late_ends(*table, report, CUDA_ERROR_MISALIGNED_ADDRESS)) == Sessions{1, 2, 4});
  note_work(table->stream[3], false, report - 540);
  note_work(table->stream[3], true, report - 530);  // begun after the last end
  CHECK(busy_sessions(*table, late_ends(*table, report, CUDA_ERROR_LAUNCH_FAILED)) == Sessions{4});
  CHECK(busy_sessions(*table, late_ends(*table, report, CUDA_ERROR_MISALIGNED_ADDRESS)) == Sessions{1, 2, 4});  // may end all the same
  table->stream[3].session = 0;
  end(0, 7, kLongestStandstillAtRest + 1);  // long ago: not what has faulted
  end(1, 3, kLongestStandstillAtRest + 1);
  end(2, 3, kLongestStandstillAtRest + 1);
  CHECK(busy_sessions(*table, late_ends(*table, report, CUDA_ERROR_MISALIGNED_ADDRESS)).empty());
  end(1, 3, kLongestStandstill + 1);  // the last, and nobody is at work
  CHECK(busy_sessions(*table, late_ends(*table, report, CUDA_ERROR_MISALIGNED_ADDRESS)) == Sessions{2});
  table->stream[3].session = 4;  // who is at work has faulted
  table->stream[3].issued = 2;
  table->stream[3].completed = 1;
  note_end(table->stream[3], 1, report - kLongestStandstillAtRest - 1);
  CHECK(busy_sessions(*table, late_ends(*table, report, CUDA_ERROR_MISALIGNED_ADDRESS)) == Sessions{4});
  table->stream[3].session = 0;
  table->stream[2].completed = 4;  // since the watch looked
  table->stream[2].issued = 4;
  CHECK(busy_sessions(*table, late_ends(*table, report, CUDA_ERROR_ILLEGAL_ADDRESS)) == Sessions{3});
}
