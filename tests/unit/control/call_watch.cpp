// SPDX-License-Identifier: Apache-2.0
// Which call hangs, in which one the executor crashed, and what becomes of the sessions.
#include "broker/control/base/call_watch.hpp"

#include <csignal>

#include "tests/unit/control/support/control_fixture.hpp"

using namespace mpsshim;
using namespace mpsshim::broker;
using namespace mpsshim::broker::control;
using namespace mpsshim::broker::control::testing;

namespace {

struct Table {
  Table()
      : file(proto::create_memory_file("test-calls", sizeof(CallTable))),
        memory(map(proto::Access::read_write)),
        watch(map(proto::Access::read_only)) {}
  proto::Mapping map(proto::Access access) const { return proto::Mapping::map(file, 0, sizeof(CallTable), access); }
  CallSlot& slot(std::size_t index) const { return reinterpret_cast<CallTable*>(memory.data())->slot[index]; }
  void begin(std::size_t index, const PublishedCall& call) const {
    slot(index).call = call.packed();
    ++slot(index).count;
  }
  // Looks until a call is found; nullopt after `limit` looks.
  std::optional<unsigned> looks_until_found(unsigned limit) {
    for (unsigned looks = 1; looks <= limit; ++looks) {
      if (watch.look()) return looks;
    }
    return std::nullopt;
  }

  proto::FileDescriptor file;
  proto::Mapping memory;
  CallWatch watch;
};

}  // namespace

TEST_CASE("what is published is what is read") {
  for (const Patience patience : {Patience::prompt, Patience::patient}) {
    const PublishedCall call = PublishedCall::from(PublishedCall{123'456'789'012, "cuGraphLaunch", patience}.packed());
    CHECK(call.session == 123'456'789'012);
    CHECK(std::string(call.name.text()) == "cuGraphLaunch");
    CHECK(call.patience == patience);
  }
  CHECK(std::string(PublishedCall::from(0xff).name.text()) == "a driver call");  // what a crashing executor may leave
  CHECK(std::string(CallName::of("never heard of").text()) == "a driver call");
}

TEST_CASE("a call hangs when it has outlasted the looks of its kind") {
  Table table;
  table.begin(3, {7, "cuMemcpyAsync"});
  CHECK(table.looks_until_found(100) == CallWatch::kLooks + 1);
  Table patient;
  patient.begin(3, {7, "cuModuleLoadData", Patience::patient});
  CHECK_FALSE(patient.looks_until_found(CallWatch::kLooks * 2));
  CHECK(patient.looks_until_found(1000));
}

TEST_CASE("calls that follow each other do not hang, nor does a thread outside any") {
  Table table;
  for (unsigned i = 0; i < 100; ++i) {
    table.begin(0, {7, "cuMemcpyAsync"});
    CHECK_FALSE(table.watch.look());
  }
  table.slot(0).call = 0;
  CHECK_FALSE(table.looks_until_found(100));
}

TEST_CASE("of several threads the one that raised the signal has crashed") {
  Table table;
  table.begin(0, {1, "cuGraphLaunch"});
  table.begin(1, {2, "cuModuleLoadData"});
  CHECK_FALSE(table.watch.crashed());
  table.slot(1).signal = SIGSEGV;
  REQUIRE(table.watch.crashed());
  CHECK(table.watch.crashed()->session == 2);
}

TEST_CASE("the session in whose call the executor crashed is lost, the idle ones move") {
  ControlFixture broker;
  broker.serve();
  proto::Attached guilty, idle;
  TestClient a = broker.attach(&guilty);
  const auto guilty_page = map_header(a.fds);
  TestClient b = broker.attach(&idle);
  const auto idle_page = map_header(b.fds);
  broker.executor().set_call(0, {idle.session, "cuMemcpyAsync"});
  broker.executor().set_call(1, {guilty.session, "cuModuleLoadData"}, SIGSEGV);
  broker.executor().die();
  broker.next_life(2);
  CHECK(header_of(guilty_page).session_error == CUDA_ERROR_MPS_SERVER_NOT_READY);
  CHECK(header_of(idle_page).session_state == static_cast<std::uint32_t>(proto::SessionState::moved));
}

TEST_CASE("an executor whose call hangs is drained and replaced, its session is lost") {
  ExecutorSettings settings = ControlFixture::settings({"libtest.so"});
  settings.hang_limit = std::chrono::milliseconds(40);
  ControlFixture broker(ControlFixture::quick_limits(), settings);
  broker.serve();
  proto::Attached guilty, idle;
  TestClient a = broker.attach(&guilty);
  const auto guilty_page = map_header(a.fds);
  TestClient b = broker.attach(&idle);
  const auto idle_page = map_header(b.fds);
  ExecutorPeer& first = broker.executor();
  first.set_call(2, {guilty.session, "cuGraphLaunch"});
  first.set_progress(0, guilty.session, 2, 1);
  broker.next_life(2);
  CHECK(first.killed);
  CHECK(header_of(guilty_page).session_error == CUDA_ERROR_MPS_SERVER_NOT_READY);
  CHECK(header_of(idle_page).session_state == static_cast<std::uint32_t>(proto::SessionState::moved));
}
