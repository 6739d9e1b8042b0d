// SPDX-License-Identifier: Apache-2.0
#include "broker/control/faults/kernel_log.hpp"

#include <fcntl.h>

#include <chrono>
#include <fstream>
#include <span>
#include <thread>
#include <vector>

#include "proto/socket.hpp"
#include "tests/support/broker_fixture.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::broker::control;

namespace {
const std::string kMemoryFault =
    "NVRM: Xid (PCI:0000:17:00): 31, pid=4711, name=mpsbroker, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ "
    "0x7f0c_7fe00000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ";
}

TEST_CASE("Xid lines of several drivers") {
  const auto fault = parse_xid("4,1234,5678901,-;" + kMemoryFault + "\n SUBSYSTEM=pci\n");
  REQUIRE(fault);
  CHECK(fault->number == 31);
  CHECK(fault->pid == 4711);
  CHECK(fault->address == 0x7f0c'7fe0'0000ull);
  CHECK(fault->text.rfind("Xid (PCI:0000:17:00): 31, pid=4711", 0) == 0);
  CHECK(fault->text.find("SUBSYSTEM") == std::string::npos);

  const auto exception =
      parse_xid("[ 81.2] NVRM: Xid (PCI:0000:03:00): 13, pid=99, name=a, Graphics SM Warp Exception on (GPC 0, TPC 0, SM 0): Misaligned Address");
  REQUIRE(exception);
  CHECK(exception->number == 13);
  CHECK(exception->pid == 99);
  CHECK_FALSE(exception->address);

  const auto unknown = parse_xid("NVRM: Xid (PCI:0000:01:00): 31, pid='<unknown>', name=<unknown>, Ch 0000000a, MMU Fault: faulted @ 0x0_00000000.");
  REQUIRE(unknown);
  CHECK(unknown->pid == -1);
  CHECK(unknown->address == 0u);

  const auto old = parse_xid("NVRM: Xid (PCI:0000:01:00): 31, Ch 00000018, engmask 00000101, intr 10000000");
  REQUIRE(old);
  CHECK(old->pid == -1);
}

TEST_CASE("what is no Xid line, or a broken one, is none") {
  for (const char* line :
       {"", "NVRM: Xid", "NVRM: Xid (", "NVRM: Xid (PCI:0000:01:00)", "NVRM: Xid (PCI:0000:01:00): ", "NVRM: Xid (PCI:0000:01:00): x",
        "NVRM: GPU at PCI:0000:17:00", "Xid (PCI:0000:17:00): 31, pid=1", "NVRM: Xid (PCI:0): 99999999999999999999"}) {
    INFO(line);
    CHECK_FALSE(parse_xid(line));
  }
  CHECK_FALSE(parse_xid("NVRM: Xid (P): 31, pid=1, faulted @ 0x")->address);
  CHECK_FALSE(parse_xid("NVRM: Xid (P): 31, pid=1, faulted @ 0x1_1111_11111111_22222222")->address);
  CHECK(parse_xid("NVRM: Xid (P): 31, pid=99999999999999999999")->pid == -1);
}

TEST_CASE("the log is read from where it was, a log that cannot be read says nothing") {
  const mpsshim::test::TemporaryFolder folder;
  const std::string path = folder.path() / "kmsg";
  std::ofstream(path) << kMemoryFault << "\n";
  KernelLog log(path.c_str());
  CHECK_FALSE(log.find(4711));  // older than the broker
  std::ofstream(path, std::ios::app) << kMemoryFault << "\n";
  CHECK_FALSE(log.find(1));
  std::ofstream(path, std::ios::app) << kMemoryFault << "\n";
  const auto found = log.find(4711);
  REQUIRE(found);
  CHECK(found->address == 0x7f0c'7fe0'0000ull);
  CHECK_FALSE(log.find(4711));
  CHECK_FALSE(KernelLog("/nonexistent").find(4711));
}

TEST_CASE("who listens to the log is told of each process at once, and since when it is spoken of") {
  auto ends = mpsshim::proto::Socket::pair();
  const auto say = [&](const std::string& line) { REQUIRE(ends[0].send(std::as_bytes(std::span(line))) == mpsshim::proto::SocketStatus::ok); };
  ends[1].set_blocking(false);
  EventLoop loop;
  std::vector<pid_t> told;
  KernelLog log(mpsshim::proto::FileDescriptor(fcntl(ends[1].fd(), F_DUPFD_CLOEXEC, 0)));
  CHECK_FALSE(log.first_heard(4711));  // nobody listens
  log.listen(loop, [&](const XidLine& line) { told.push_back(line.pid); });
  say("6,1,2,-;eth0: link is up");
  const mpsshim::broker::ProgressTick before = mpsshim::broker::progress_tick();
  say("4,1,2,-;" + kMemoryFault);
  loop.turn(1'000);
  CHECK(told == std::vector<pid_t>{4711});
  const auto first = log.first_heard(4711);
  REQUIRE(first);
  CHECK(*first - before < 10'000);  // a second
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  say("4,1,2,-;NVRM: Xid (PCI:0000:17:00): 43, pid=4711, name=mpsbroker, Ch 00000008");
  std::string consequence = kMemoryFault;
  consequence.replace(consequence.find("7f0c"), 4, "4080");
  say("4,1,2,-;" + consequence);
  loop.turn(1'000);
  CHECK(told.size() == 3);
  CHECK(log.first_heard(4711) == first);
  CHECK(log.find(4711).value().address == 0x7f0c'7fe0'0000ull);
  CHECK_FALSE(log.first_heard(4711));
  say("4,1,2,-;NVRM: Xid (PCI:0000:17:00): 13, Graphics SM Warp Exception on (GPC 1, TPC 2, SM 0): Misaligned Address");
  loop.turn(1'000);
  CHECK(told.back() == -1);  // nobody's yet
  ends[0].reset();  // a log that ends is read no more
  loop.turn(0);
  loop.turn(0);
  CHECK(told.size() == 4);
}
