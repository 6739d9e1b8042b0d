// SPDX-License-Identifier: Apache-2.0
// The promises of docs/reliability.md, each fault a section of its own: bystanders go on, or get an MPS error where they were at work.
#include "tests/reliability/scenario.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

namespace {

void require_promises(const std::string& name) {
  for (const Fault& fault : all_faults()) {
    if (fault.name != name) continue;
    for (const Result& result : play(SideKind::ours, fault)) {
      INFO(result.fault << ", " << (result.bystander.empty() ? "the guilty client" : result.bystander) << ": " << result.answer << "\n"
                        << result.log);
      CHECK(result.is_kept);
    }
    return;
  }
  FAIL("no fault is called " << name);
}

}  // namespace

TEST_CASE("bystanders of an illegal address") { require_promises("illegal address"); }
TEST_CASE("bystanders of a misaligned access") { require_promises("misaligned access"); }
TEST_CASE("bystanders of a trap") { require_promises("trap"); }
TEST_CASE("bystanders of a device assertion") { require_promises("device assertion"); }
TEST_CASE("bystanders of a stack overflow") { require_promises("stack overflow"); }
TEST_CASE("bystanders of an illegal instruction") { require_promises("illegal instruction"); }
TEST_CASE("bystanders of a client killed while idle") { require_promises("kill -9, idle"); }
TEST_CASE("bystanders of a client killed at work") { require_promises("kill -9, at work"); }
TEST_CASE("bystanders of a client killed in a kernel without end") { require_promises("kill -9, kernel without end"); }
TEST_CASE("bystanders of a client interrupted in a kernel without end") { require_promises("Ctrl-C, kernel without end"); }
TEST_CASE("bystanders of a client that crashes at work") { require_promises("crash (SIGSEGV), at work"); }
TEST_CASE("bystanders of an executor that crashes") { require_promises("server process: SIGSEGV"); }
TEST_CASE("bystanders of an executor that is killed") { require_promises("server process: SIGKILL"); }

// A row that no case above names would be in the table and untested.
TEST_CASE("each fault of the table has its case") { CHECK(all_faults().size() == 13); }
