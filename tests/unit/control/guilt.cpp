// SPDX-License-Identifier: Apache-2.0
#include "broker/control/faults/guilt.hpp"

#include <chrono>
#include <cstring>
#include <memory>
#include <set>

#include "broker/control/base/lease_table.hpp"
#include "broker/control/faults/verdict.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim;
using namespace mpsshim::broker;
using namespace mpsshim::broker::control;

namespace {

constexpr std::uint64_t kMemoryBytes = 1ull << 30;  // of each session
// A session and what it had under way. Its memory is a gigabyte at kMemoryBytes * 64 * id, if it has any.
struct Actor {
  std::uint64_t id;
  std::uint32_t kinds = 0;
  bool is_busy = true;
  bool has_memory = true;
};

constexpr std::uint32_t kKernel = WorkKind::kernel;
constexpr std::uint32_t kCopy = WorkKind::memory;

std::uint64_t memory_of(std::uint64_t id) { return id * 64 * kMemoryBytes; }

struct Stage {
  DeathReport report{DeathReport::Cause::fault, CUDA_ERROR_ILLEGAL_ADDRESS, 0};
  std::vector<SessionCondition> sessions;

  explicit Stage(const std::vector<Actor>& actors, CUresult error = CUDA_ERROR_ILLEGAL_ADDRESS) {
    report.error = error;
    for (const Actor& actor : actors) {
      SessionCondition condition{actor.id, actor.is_busy};
      if (actor.has_memory) condition.ranges = {{memory_of(actor.id), kMemoryBytes}};
      sessions.push_back(condition);
      if (actor.kinds != 0) report.work[actor.id] = {actor.kinds, (actor.kinds & kKernel) != 0 ? "k" : ""};
    }
  }
  [[nodiscard]] Guilt guilty(std::optional<std::uint64_t> address = std::nullopt) const { return find_guilty(report, sessions, address); }
  [[nodiscard]] std::vector<std::uint64_t> suspects() const { return find_suspects(report, sessions); }
};

void check(const Guilt& guilt, std::uint64_t session, Proof proof) {
  CHECK(guilt.session == session);
  CHECK(static_cast<int>(guilt.proof) == static_cast<int>(proof));
}

// A stream whose last launch is `launched`.
void set(ProgressFile& file, std::size_t index, std::uint64_t session, std::uint32_t issued, std::uint32_t completed, std::uint32_t launched,
         std::uint32_t function = 0) {
  StreamProgress& stream = file.table.stream[index];
  stream.session = session;
  stream.issued = issued;
  stream.completed = completed;
  stream.launched = launched;
  stream.touched = launched - 1;
  stream.function = function;
  stream.kinds = kKernel;
}

// One whose last work on memory besides launches is `touched`; it has launched nothing.
void set_copies(ProgressFile& file, std::size_t index, std::uint64_t session, std::uint32_t issued, std::uint32_t completed, std::uint32_t touched) {
  StreamProgress& stream = file.table.stream[index];
  stream.session = session;
  stream.issued = issued;
  stream.completed = completed;
  stream.touched = touched;
  stream.kinds = kCopy;
}

using Ids = std::vector<std::uint64_t>;

}  // namespace

TEST_CASE("who alone had work under way that may fault is guilty, whoever else was busy") {
  check(Stage({{1, 0, false}, {2}, {3, kKernel}}).guilty(), 3, Proof::only_suspect);
  check(Stage({{1, 0, false}, {2}, {3, kCopy}}).guilty(), 3, Proof::only_suspect);
}

TEST_CASE("a copy or a fill is a suspect as a kernel is") {
  const Stage stage({{1, kKernel}, {2, kCopy}, {3}, {4, 0, false}});
  check(stage.guilty(), 0, Proof::none);
  CHECK(stage.suspects() == Ids{1, 2});
}

TEST_CASE("errors that only instructions raise are a kernel's") {
  for (const CUresult error : {CUDA_ERROR_ASSERT, CUDA_ERROR_HARDWARE_STACK_ERROR, CUDA_ERROR_ILLEGAL_INSTRUCTION, CUDA_ERROR_MISALIGNED_ADDRESS,
                               CUDA_ERROR_INVALID_ADDRESS_SPACE, CUDA_ERROR_INVALID_PC}) {
    check(Stage({{1, kKernel}, {2, kCopy}}, error).guilty(), 1, Proof::only_suspect);
    check(Stage({{1, kKernel}, {2, kKernel}}, error).guilty(), 0, Proof::none);
    check(Stage({{2, kCopy}}, error).guilty(), 0, Proof::none);  // then it is not known what has done it
  }
  for (const CUresult error : {CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_LAUNCH_FAILED, CUDA_ERROR_LAUNCH_TIMEOUT, CUDA_ERROR_UNKNOWN}) {
    check(Stage({{1, kKernel}, {2, kCopy}}, error).guilty(), 0, Proof::none);
  }
}

TEST_CASE("of several none is shown guilty, nor who was busy with what cannot fault") {
  check(Stage({{1, kKernel}, {2, kKernel}, {3}}).guilty(), 0, Proof::none);
  check(Stage({{1, kCopy}, {2, kCopy}}).guilty(), 0, Proof::none);
  check(Stage({{1}, {2, 0, false}}).guilty(), 0, Proof::none);
  check(Stage({{1, 0, false}}).guilty(), 0, Proof::none);
  CHECK(Stage({{1}, {2, 0, false}}).suspects() == Ids{1});  // but a client's doing it is
}

TEST_CASE("a session that has ended meanwhile is a suspect too") {
  Stage stage({{1, kKernel}});
  stage.report.work[7] = {kKernel, "k"};
  check(stage.guilty(), 0, Proof::none);
  stage.report.work.erase(1);
  check(stage.guilty(), 7, Proof::only_suspect);
}

TEST_CASE("an address in the memory of one of several with kernels shows nobody guilty: another's kernel can go there") {
  const Stage stage({{1, kKernel}, {2, kKernel}, {3, kCopy}});
  for (const std::uint64_t address : {memory_of(1), memory_of(2) + 4096, memory_of(3), std::uint64_t{0x10}, ~std::uint64_t{0}}) {
    check(stage.guilty(address), 0, Proof::none);
  }
}

TEST_CASE("an address clears those whose copies cannot have it") {
  const Stage stage({{1, kKernel}, {2, kCopy}, {3, kCopy}, {4, 0, false}});
  check(stage.guilty(memory_of(1) + 4096), 1, Proof::address);
  check(stage.guilty(memory_of(1) + kMemoryBytes + kLeaseGuardBytes - 1), 1, Proof::address);  // just behind its memory
  check(stage.guilty(memory_of(1) - kLeaseGuardBytes), 1, Proof::address);
  check(stage.guilty(memory_of(4)), 1, Proof::address);   // of one that did nothing
  check(stage.guilty(0x10), 1, Proof::address);           // a null pointer: nothing is there that could be copied
  check(stage.guilty(memory_of(2)), 0, Proof::none);      // its own copy, or the kernel
  check(stage.guilty(0x7f00'0000'0000), 0, Proof::none);  // variables of modules are there
  check(Stage({{2, kCopy}, {3, kCopy}}).guilty(memory_of(3)), 3, Proof::address);
  check(Stage({{2, kCopy}, {3, kCopy}}).guilty(memory_of(1)), 0, Proof::none);
  check(Stage({{1, kKernel}, {2, kKernel | kCopy}}).guilty(memory_of(1)), 0, Proof::none);
  CHECK(owner_of(memory_of(2), stage.sessions) == 2);
  CHECK(owner_of(memory_of(1) + kMemoryBytes + kLeaseGuardBytes, stage.sessions) == 0);
}

TEST_CASE("nobody is guilty of a crash or a replacement, nor of memory that failed") {
  for (const auto cause : {DeathReport::Cause::crash, DeathReport::Cause::replaced}) {
    Stage stage({{1, kKernel}});
    stage.report.cause = cause;
    check(stage.guilty(), 0, Proof::none);
  }
  for (const CUresult error : {CUDA_ERROR_ECC_UNCORRECTABLE, CUDA_ERROR_NVLINK_UNCORRECTABLE}) {
    check(Stage({{1, kKernel}}, error).guilty(memory_of(1)), 0, Proof::none);
  }
}

TEST_CASE("what failed by itself is no program's doing") {
  for (const CUresult error : {CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_ASSERT, CUDA_ERROR_LAUNCH_FAILED}) CHECK(is_a_programs_doing(error));
  for (const CUresult error : {CUDA_ERROR_ECC_UNCORRECTABLE, CUDA_ERROR_NVLINK_UNCORRECTABLE}) CHECK_FALSE(is_a_programs_doing(error));
}

TEST_CASE("a kernel is under way until the word has come to its launch") {
  const auto file = std::make_unique<ProgressFile>();
  const char name[] = "_Z4axpyPfi";
  std::memcpy(file->names.text + 1, name, sizeof name);
  set(*file, 0, 1, 5, 4, 5, 1);              // its last operation is a kernel
  set(*file, 1, 1, 9, 2, 6, 0);              // another stream of it: a kernel, then copies
  set(*file, 2, 2, 7, 5, 5, 1);              // its kernels are done, a copy runs
  set(*file, 3, 3, 4, 4, 4, 1);              // idle
  set(*file, 4, 0, 4, 1, 4, 1);              // nobody's
  set(*file, 5, 4, 2, 0xffff'fffe, 1, ~0u);  // the count has wrapped; a name outside the memory
  const WorkUnderWay work = work_under_way(*file);
  CHECK(work.size() == 2);
  CHECK(work.at(1).kernels == "(name unknown), axpy(float*, int)");
  CHECK(work.at(4).kernels == "(name unknown)");
  CHECK(work_text(work, 1) == "kernel (name unknown), axpy(float*, int)");
  CHECK(work_text(work, 2) == "no kernel known");
}

TEST_CASE("copies, fills and the like are under way until the word has come to the last of them") {
  const auto file = std::make_unique<ProgressFile>();
  set_copies(*file, 0, 1, 5, 4, 5);
  set_copies(*file, 1, 2, 7, 6, 6);  // what runs is a fence
  set_copies(*file, 2, 3, 7, 7, 7);
  set(*file, 3, 4, 7, 5, 5);  // a copy behind the last kernel
  file->table.stream[3].touched = 6;
  file->table.stream[3].kinds = kKernel | kCopy;
  set(*file, 4, 5, 7, 5, 6);
  file->table.stream[4].touched = 7;
  file->table.stream[4].kinds = kKernel | kCopy;
  set_copies(*file, 5, 6, 7, 7, 7);
  file->table.stream[5].probes = 3;  // a look at a word that the stream waits for
  file->table.stream[5].probe_number = 2;
  const WorkUnderWay work = work_under_way(*file);
  REQUIRE(work.size() == 4);
  CHECK(work.at(1).kinds == kCopy);
  CHECK(work_text(work, 1) == "no kernel, but copies, fills or the like");
  CHECK(work.at(4).kinds == kCopy);
  CHECK(work.at(5).kinds == (kKernel | kCopy));
  CHECK(work.at(6).kinds == kCopy);
}

TEST_CASE("what has left its stream at the last moment counts as what ended there late") {
  const auto file = std::make_unique<ProgressFile>();
  const ProgressTick report = 1'000'000;
  const auto leave = [&](std::size_t index, ProgressTick seen, ProgressTick now, bool is_seen = true) {
    set(*file, index, index + 1, 5, 5, 5, 0);
    StreamProgress& stream = file->table.stream[index];
    note_end(stream, is_seen ? 5 : 4, seen);
    note_former(stream, now);
    stream.session = 0;
  };
  leave(0, report - kLateEnd, report);
  leave(1, report - kLateEnd - 1, report);       // had ended before
  leave(2, report - 10'000, report - 1, false);  // nobody had seen it end
  leave(3, report - 10'000, report - 5'000, false);
  set(*file, 0, 8, 2, 1, 2, 0);  // somebody else has the stream by now
  const LateEnds late{report - kLateEnd};
  const WorkUnderWay work = work_under_way(*file, late);
  REQUIRE(work.size() == 3);
  CHECK(work.at(1).kinds == kKernel);
  CHECK(work.at(3).kinds == kKernel);
  CHECK(work.at(8).kinds == kKernel);
  CHECK(busy_sessions(file->table, late) == std::set<std::uint64_t>{1, 3, 8});
  CHECK(work_under_way(*file).size() == 1);  // nothing ends late where there was no fault
  CHECK(streams_under_way(*file, late, report).size() == 3);
}

TEST_CASE("a name that would be gigabytes when demangled is shown as it is, at once") {
  // Each type is a pair of the one before: twice as long.
  std::string name = "_Z1fSt4pairIiiE";
  for (const char number : std::string("0123456789ABCDEFGHIJKLMNOPQ")) name += std::string("S_IS") + number + "_S" + number + "_E";
  const auto began = std::chrono::steady_clock::now();
  CHECK(readable_function(name).starts_with("_Z1fSt4pairIiiE"));
  CHECK(std::chrono::steady_clock::now() - began < std::chrono::milliseconds(100));
}

TEST_CASE("names are readable, of bounded length, and harmless in a log") {
  CHECK(readable_function("add") == "add");
  CHECK(readable_function("_Z3addIfEvPT_") == "void add<float>(float*)");
  CHECK(readable_function("a\nb") == "a?b");
  CHECK(readable_function(std::string(1000, 'x')).size() == 200);
  CHECK(
      readable_function("_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEEEEviT0_").starts_with("void at::native::vectorized"));
}
