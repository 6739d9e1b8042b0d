// SPDX-License-Identifier: Apache-2.0
#include "broker/control/faults/verdict.hpp"

#include <memory>

#include "tests/support/catch.hpp"

using namespace mpsshim::broker;
using namespace mpsshim::broker::control;
using Cause = DeathReport::Cause;

namespace {

const SessionCondition kIdle{1, false};
const SessionCondition kBusy{2, true};
const SessionCondition kOtherBusy{3, true};
const SessionCondition kGoneBusy{4, true, true};
const SessionCondition kGoneIdle{5, false, true};

// Who is busy has a kernel under way.
std::vector<Verdict> judge(DeathReport report, const std::vector<SessionCondition>& sessions) {
  for (const SessionCondition& session : sessions) {
    if (session.busy) report.work[session.session] = {WorkKind::kernel, "k"};
  }
  return control::judge(report, sessions, find_guilty(report, sessions, std::nullopt));
}

Verdict verdict_on(std::uint64_t session, const std::vector<Verdict>& verdicts) {
  for (const Verdict& verdict : verdicts) {
    if (verdict.session == session) return verdict;
  }
  FAIL("no verdict on session " << session);
  return {};
}

void check(const Verdict& verdict, Fate fate, CUresult error = CUDA_SUCCESS) {
  CHECK(verdict.fate == fate);
  CHECK(verdict.error == error);
}

const DeathReport kFaultOfServer{Cause::fault, CUDA_ERROR_ILLEGAL_ADDRESS, 0, "t"};

}  // namespace

TEST_CASE("the only busy session is guilty of a fault, idle ones move") {
  const auto verdicts = judge(kFaultOfServer, std::vector{kIdle, kBusy});
  check(verdict_on(1, verdicts), Fate::moved);
  check(verdict_on(2, verdicts), Fate::failed, CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_CASE("of several busy sessions none is shown guilty") {
  const auto verdicts = judge(kFaultOfServer, std::vector{kIdle, kBusy, kOtherBusy});
  check(verdict_on(1, verdicts), Fate::moved);
  check(verdict_on(2, verdicts), Fate::failed, CUDA_ERROR_MPS_SERVER_NOT_READY);
  check(verdict_on(3, verdicts), Fate::failed, CUDA_ERROR_MPS_SERVER_NOT_READY);
}

TEST_CASE("a named session alone gets the driver's error") {
  DeathReport report = kFaultOfServer;
  report.named_session = 3;
  const auto verdicts = judge(report, std::vector{kBusy, kOtherBusy});
  check(verdict_on(2, verdicts), Fate::failed, CUDA_ERROR_MPS_SERVER_NOT_READY);
  check(verdict_on(3, verdicts), Fate::failed, CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_CASE("a named session gets the error even if the table shows it idle") {
  DeathReport report = kFaultOfServer;
  report.named_session = 1;
  check(verdict_on(1, judge(report, std::vector{kIdle})), Fate::failed, CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_CASE("a gone client's work is a suspect too") {
  const auto verdicts = judge(kFaultOfServer, std::vector{kBusy, kGoneBusy, kGoneIdle});
  check(verdict_on(2, verdicts), Fate::failed, CUDA_ERROR_MPS_SERVER_NOT_READY);
  check(verdict_on(4, verdicts), Fate::dropped);
  check(verdict_on(5, verdicts), Fate::dropped);
}

TEST_CASE("a terminated client keeps that error whatever its executor died of") {
  SessionCondition terminated{6, true, false, true};
  for (const Cause cause : {Cause::fault, Cause::crash, Cause::replaced}) {
    check(verdict_on(6, judge(DeathReport{cause, CUDA_ERROR_ILLEGAL_ADDRESS, 0, "t"}, std::vector{terminated})), Fate::failed,
          CUDA_ERROR_MPS_CLIENT_TERMINATED);
  }
  // Its work is a suspect, so nobody else is the only one.
  check(verdict_on(2, judge(kFaultOfServer, std::vector{kBusy, terminated})), Fate::failed, CUDA_ERROR_MPS_SERVER_NOT_READY);
}

TEST_CASE("a crash and a replacement show nobody guilty") {
  for (const Cause cause : {Cause::crash, Cause::replaced}) {
    const auto verdicts = judge(DeathReport{cause, CUDA_SUCCESS, 0, ""}, std::vector{kIdle, kBusy, kGoneBusy});
    check(verdict_on(1, verdicts), Fate::moved);
    check(verdict_on(2, verdicts), Fate::failed, CUDA_ERROR_MPS_SERVER_NOT_READY);
    check(verdict_on(4, verdicts), Fate::dropped);
  }
}

TEST_CASE("a crash in a session's driver call costs that session, idle or not") {
  const DeathReport crash{Cause::crash, CUDA_SUCCESS, 1, "t"};
  check(verdict_on(1, judge(crash, std::vector{kIdle})), Fate::failed, CUDA_ERROR_MPS_SERVER_NOT_READY);
  check(verdict_on(5, judge(DeathReport{Cause::crash, CUDA_SUCCESS, 5, "t"}, std::vector{kGoneIdle})), Fate::dropped);
}

TEST_CASE("a fault with everybody idle costs nobody") { check(verdict_on(1, judge(kFaultOfServer, std::vector{kIdle})), Fate::moved); }

TEST_CASE("busy is what is issued and not completed, in a stream that belongs to a session") {
  const auto table = std::make_unique<ProgressTable>();
  const auto set = [&](std::size_t stream, std::uint64_t session, std::uint32_t issued, std::uint32_t completed) {
    table->stream[stream].session = session;
    table->stream[stream].issued = issued;
    table->stream[stream].completed = completed;
  };
  set(0, 7, 5, 5);
  set(1, 7, 3, 2);
  set(2, 8, 0xffff'ffff, 0xffff'ffff);
  set(3, 0, 9, 1);
  set(kProgressStreams - 1, 9, 1, 0);
  CHECK(busy_sessions(*table) == std::set<std::uint64_t>{7, 9});
  CHECK(is_busy(*table, 7));
  CHECK_FALSE(is_busy(*table, 8));
}
