// SPDX-License-Identifier: Apache-2.0
// When variables are copied. Device memory is the test's; copies are done when the test says so.
#include "broker/executor/modules/variable_keeper.hpp"

#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include "broker/executor/link/control_link.hpp"
#include "proto/socket.hpp"
#include "tests/support/catch.hpp"

namespace mpsshim::broker {
namespace {

using Clock = VariableKeeper::Clock;

std::vector<std::byte> pinned;
int copies = 0;
bool is_done = true;

CUresult CUDAAPI give_stream(CUstream* stream, unsigned) { return *stream = reinterpret_cast<CUstream>(16), CUDA_SUCCESS; }
CUresult CUDAAPI allocate(void** memory, std::size_t bytes, unsigned) {
  pinned.assign(bytes, std::byte{0});
  return *memory = pinned.data(), CUDA_SUCCESS;
}
CUresult CUDAAPI copy_out(void* to, CUdeviceptr from, std::size_t bytes, CUstream) {
  ++copies;
  return std::memcpy(to, reinterpret_cast<const void*>(from), bytes), CUDA_SUCCESS;
}
CUresult CUDAAPI query(CUstream) { return is_done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY; }

std::unique_ptr<Driver> make_copying_driver() {
  copies = 0;
  is_done = true;
  DriverTable table;
  table.cuStreamCreate = give_stream;
  table.cuMemHostAlloc = allocate;
  table.cuMemcpyDtoHAsync_v2 = copy_out;
  table.cuStreamQuery = query;
  return Driver::from_table(table);
}

constexpr std::chrono::microseconds kTick{1000};

// One session with a module of one variable, working on one stream.
struct Keeper {
  Keeper() {
    image->image = 7;
    image->has_writable_globals = true;
    image->variables = {{reinterpret_cast<CUdeviceptr>(&variable), sizeof variable, {}}};
    image->changes = std::make_unique<VariableChanges>(1);
    image->uses.are_known = true;
    writer.variables = std::make_unique<VariableChanges::Use>(VariableChanges::Use{image->changes.get(), {0}, false, false});
    session->add(module, image);
    const auto index = progress.take();
    REQUIRE(index);
    stream = &progress[*index];
    stream->session = session->session();
    keeper.add(session);
    keeper.add(session);  // without effect
  }
  void issue() {
    stream->wrote = ++stream->issued;
    session->note_launch(writer);
  }
  void issue_harmless() { ++stream->issued; }
  void complete() { stream->completed = stream->issued.load(); }
  void turn_after(std::chrono::microseconds time) { (void)keeper.turn(now += time); }
  void rest(std::chrono::microseconds time = kTick) {
    for (const auto end = now + time; now < end;) turn_after(kTick);
    turn_after(kTick);
  }

  std::unique_ptr<Driver> driver = make_copying_driver();
  std::array<proto::Socket, 2> sockets = proto::Socket::pair();
  ControlLink link{std::move(sockets[1])};
  FaultReporter faults{*driver, link};
  std::unique_ptr<ProgressTable> table = std::make_unique<ProgressTable>();
  Progress progress{*table, 0};
  IssueLock lock;
  int variable = 5;
  const proto::ModuleId module = proto::ModuleId::make(1, 1);
  const std::shared_ptr<LoadedImage> image = std::make_shared<LoadedImage>();
  LoadedFunction writer;
  const std::shared_ptr<SessionVariables> session = std::make_shared<SessionVariables>(42, link);
  StreamProgress* stream = nullptr;
  VariableKeeper keeper{*driver, faults, progress, lock};
  Clock::time_point now = Clock::now();
};

}  // namespace

TEST_CASE("variables are copied as soon as nothing that may write to them is under way, and not again until something is issued") {
  Keeper k;
  k.rest();
  CHECK(copies == 0);  // as loaded
  k.issue();
  k.rest();
  CHECK(copies == 0);  // at work
  CHECK_FALSE(k.session->are_kept());
  k.complete();
  k.variable = 6;
  k.turn_after(kTick);
  CHECK(copies == 1);
  k.turn_after(kTick);
  REQUIRE(k.session->are_kept());
  const auto kept = k.session->kept(k.module, 7);
  REQUIRE(kept);
  CHECK(std::memcmp(kept->variables.at(0).content.data(), &k.variable, sizeof k.variable) == 0);
  k.rest(2 * VariableKeeper::kLongRest);
  CHECK(copies == 1);
}

TEST_CASE("work that writes to no variable does not hold up a copy") {
  Keeper k;
  k.issue();
  k.complete();
  k.issue_harmless();
  k.rest();
  CHECK(k.session->are_kept());
  SECTION("unless it may have the variable's address") {
    k.session->give_out(k.module, k.image->variables[0].address, true);
    k.rest();
    CHECK_FALSE(k.session->are_kept());
    k.complete();
    k.rest();
    CHECK(k.session->are_kept());
  }
}

TEST_CASE("nothing is left to be looked at where the last module has gone, or the driver refuses to copy") {
  Keeper k;
  k.issue();
  k.complete();
  SECTION("gone") {
    k.session->remove(k.module);
    CHECK(k.keeper.turn(k.now += kTick));
    CHECK_FALSE(k.keeper.turn(k.now += kTick));
    CHECK(k.session->are_kept());
  }
  SECTION("refused") {
    k.session->give_up();
    CHECK_FALSE(k.keeper.turn(k.now += kTick));
    CHECK_FALSE(k.session->can_be_kept());
  }
  CHECK(copies == 0);
}

TEST_CASE("copies of a session keep their distance") {
  Keeper k;
  k.issue();
  k.complete();
  k.turn_after(kTick);
  k.turn_after(kTick / 4);
  REQUIRE(k.session->are_kept());
  k.issue();
  k.complete();
  k.turn_after(kTick / 2);
  CHECK(copies == 1);
  k.turn_after(kTick);
  CHECK(copies == 2);
}

// Each copy is under way for so long that the session's next work overtakes it.
TEST_CASE("where copies are overtaken they come more rarely, after a long rest one comes at once") {
  Keeper k;
  for (int i = 0; i < 200; ++i) {
    k.issue();
    k.complete();
    is_done = false;
    k.turn_after(kTick);
    k.issue();
    is_done = true;
    k.turn_after(kTick / 4);  // work is under way: the next copy does not begin
    CHECK_FALSE(k.session->are_kept());
    k.complete();
  }
  CHECK(copies > 3);
  CHECK(copies < 20);
  const int before = copies;
  k.rest(VariableKeeper::kLongRest + kTick);
  CHECK(copies == before + 1);
  CHECK(k.session->are_kept());
}

TEST_CASE("another session's work does not matter, and who is gone is not copied") {
  Keeper k;
  const auto other = k.progress.take();
  REQUIRE(other);
  k.progress[*other].session = 43;
  k.progress[*other].issued = 1;
  k.issue();
  k.complete();
  SECTION("still there") {
    k.rest();
    CHECK(copies == 1);
  }
  SECTION("gone") {
    k.keeper.remove(42);
    k.rest();
    CHECK(copies == 0);
  }
}

}  // namespace mpsshim::broker
