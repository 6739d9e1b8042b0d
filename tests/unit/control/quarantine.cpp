// SPDX-License-Identifier: Apache-2.0
#include "broker/control/faults/quarantine.hpp"

#include "broker/control/base/handover.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::broker::control;
using std::chrono::seconds;

namespace {

using Wards = std::vector<Ward>;
using Programs = std::vector<ProgramIdentity>;
const ProgramIdentity kA{1000, {1}, "", "/bin/a"};
const ProgramIdentity kB{1000, {2}, "", "/bin/b"};
const ProgramIdentity kC{1000, {3}, "", "/bin/c"};
const ProgramIdentity kAOfOther{1001, {1}, "", "/bin/a"};
const ProgramIdentity kANew{1000, {4}, "", "/bin/a"};
const ProgramIdentity kACopied{1000, {1}, "", "/tmp/innocent"};
constexpr Quarantine::Clock::time_point kStart{};

}  // namespace

TEST_CASE("the third fault within the window puts a program into quarantine, once") {
  Quarantine quarantine({3, seconds(300)});
  CHECK(quarantine.note_fault(Programs{kA}, kStart).empty());
  CHECK(quarantine.note_fault(Programs{kA}, kStart + seconds(100)).empty());
  CHECK_FALSE(quarantine.ward_of(kA));
  CHECK(quarantine.note_fault(Programs{kA}, kStart + seconds(299)) == Wards{Ward::of(Ward::Extent::command, kA)});
  CHECK(quarantine.ward_of(kA));
  CHECK(quarantine.note_fault(Programs{kA}, kStart + seconds(299)).empty());
  for (const ProgramIdentity& other : {kB, kAOfOther, kANew}) CHECK_FALSE(quarantine.ward_of(other));
}

TEST_CASE("faults that are longer ago than the window count no more") {
  Quarantine quarantine({3, seconds(300)});
  for (int i = 0; i < 10; ++i) CHECK(quarantine.note_fault(Programs{kA}, kStart + seconds(150 * i)).empty());
}

TEST_CASE("suspects share a fault, clients of one program bear their shares together") {
  const ProgramIdentity other{1001, {2}, "", "/bin/b"};  // of another user, so that the two are nothing together
  Quarantine shared({1, seconds(300)});
  for (int i = 0; i < 3; ++i) CHECK(shared.note_fault(Programs{kA, other, other, other}, kStart).size() == (i == 1 ? 1u : 0u));  // at 1.5
  CHECK(shared.ward_of(other));
  CHECK(shared.note_fault(Programs{kA, other, other, other}, kStart) == Wards{Ward::of(Ward::Extent::command, kA)});
  Quarantine whole({3, seconds(300)});
  for (int i = 0; i < 2; ++i) CHECK(whole.note_fault(Programs{kA, kA, kA}, kStart).empty());
  CHECK(whole.note_fault(Programs{kA, kA, kA}, kStart) == Wards{Ward::of(Ward::Extent::command, kA)});
}

TEST_CASE("a program leaves after the window without a fault") {
  Quarantine quarantine({2, seconds(300)});
  CHECK(quarantine.next_release() == Quarantine::Clock::time_point::max());
  (void)quarantine.note_fault(Programs{kA}, kStart);
  (void)quarantine.note_fault(Programs{kA}, kStart + seconds(10));
  (void)quarantine.note_fault(Programs{kA}, kStart + seconds(200));
  CHECK(quarantine.next_release() == kStart + seconds(500));
  CHECK(quarantine.release(kStart + seconds(499)).empty());
  CHECK(quarantine.ward_of(kA));
  CHECK(quarantine.release(kStart + seconds(500)) == Wards{Ward::of(Ward::Extent::command, kA)});
  CHECK_FALSE(quarantine.ward_of(kA));
  CHECK(quarantine.note_fault(Programs{kA}, kStart + seconds(501)).empty());  // and begins anew
}

TEST_CASE("with 0 faults nobody is in quarantine") {
  Quarantine quarantine({0, seconds(300)});
  for (int i = 0; i < 10; ++i) CHECK(quarantine.note_fault(Programs{kA}, kStart).empty());
  CHECK_FALSE(quarantine.ward_of(kA));
}

TEST_CASE("a copy under another name is the same program") {
  Quarantine quarantine({3, seconds(300)});
  for (const ProgramIdentity& each : {kA, kACopied, kA}) (void)quarantine.note_fault(Programs{each}, kStart);
  CHECK(quarantine.ward_of(kACopied));
}

TEST_CASE("a script's faults are not its interpreter's, those of many scripts are") {
  const auto script = [](const char* name) { return ProgramIdentity{1000, {9}, name, "/usr/bin/python3"}; };
  Quarantine quarantine({3, seconds(300)});
  for (int i = 0; i < 5; ++i) (void)quarantine.note_fault(Programs{script("bad.py")}, kStart);
  CHECK(quarantine.ward_of(script("bad.py")));
  CHECK_FALSE(quarantine.ward_of(script("good.py")));
  CHECK(quarantine.note_fault(Programs{script("worse.py")}, kStart).empty());
  CHECK(quarantine.note_fault(Programs{script("worst.py")}, kStart) == Wards{Ward::of(Ward::Extent::program, script(""))});
  CHECK(quarantine.ward_of(script("good.py")));
  CHECK_FALSE(quarantine.ward_of(kA));
  CHECK(quarantine.concerns(1000));
  CHECK_FALSE(quarantine.concerns(1001));
}

TEST_CASE("who faults with ever other programs has them all in quarantine but those that have done well, and others nothing") {
  Quarantine quarantine({3, seconds(300)});
  quarantine.note_good(kC);
  quarantine.note_good(kA);  // until it faults
  for (const ProgramIdentity& each : {kA, kB, kANew}) (void)quarantine.note_fault(Programs{each}, kStart);
  const ProgramIdentity unknown{1000, {77}, "", "/tmp/next"};
  REQUIRE(quarantine.ward_of(unknown));
  CHECK(quarantine.ward_of(unknown)->extent == Ward::Extent::user);
  CHECK(quarantine.ward_of(kA));
  CHECK_FALSE(quarantine.ward_of(kC));
  CHECK_FALSE(quarantine.ward_of(kAOfOther));
  CHECK(quarantine.release(kStart + seconds(300)).size() == 1);
  CHECK_FALSE(quarantine.ward_of(unknown));
}

TEST_CASE("what is worth several faults counts as so many") {
  Quarantine quarantine({3, seconds(300)});
  CHECK(quarantine.note_fault(Programs{kA}, kStart, 3).size() == 1);
  CHECK(quarantine.ward_of(kA));
}

TEST_CASE("what is in quarantine, what counts towards it and who has done well go over to another program") {
  const auto handed_over = [](const Quarantine& from, const QuarantineLimits& limits) {
    StateWriter writer;
    from.save(writer);
    const mpsshim::proto::FileDescriptor file = writer.finish();
    std::string why;
    StateReader reader(file, why);
    Quarantine to(limits);
    to.restore(reader);
    CHECK(reader.ok());
    CHECK(why.empty());
    return to;
  };
  const QuarantineLimits limits{2, seconds(300)};
  Quarantine before(limits);
  before.note_good(kC);
  for (const ProgramIdentity& program : {kA, kA, kB}) (void)before.note_fault(Programs{program}, kStart);
  REQUIRE(before.ward_of(kA));
  Quarantine after = handed_over(before, limits);
  CHECK(after.ward_of(kA) == before.ward_of(kA));
  CHECK(after.ward_of(kA)->name() == before.ward_of(kA)->name());
  CHECK(after.concerns(1000));
  CHECK(after.ward_of(kC) == before.ward_of(kC));      // two programs of its user have faulted, and it has ended well
  CHECK(after.ward_of(kANew) == before.ward_of(kANew));
  CHECK(after.ward_of(kANew));
  CHECK_FALSE(after.ward_of(kC));
  CHECK_FALSE(after.ward_of(kAOfOther));
  CHECK(after.next_release() == kStart + seconds(300));
  CHECK(after.note_fault(Programs{kB}, kStart + seconds(100)).size() == 1);  // its second
  CHECK(after.release(kStart + seconds(300)) == Wards{Ward::of(Ward::Extent::command, kA)});
  Quarantine none = handed_over(before, {0, seconds(300)});
  CHECK_FALSE(none.ward_of(kA));
  CHECK_FALSE(none.concerns(1000));
}

TEST_CASE("a program is on probation until it has done well, and again once it has faulted") {
  Quarantine quarantine({3, seconds(300), 1, seconds(10)});
  CHECK(quarantine.concerns(1000));
  REQUIRE(quarantine.ward_of(kA));
  CHECK(quarantine.ward_of(kA)->is_probation());
  CHECK(quarantine.ward_of(kA) == quarantine.ward_of(kB));  // all new ones of a user together
  CHECK(quarantine.ward_of(kA) != quarantine.ward_of(kAOfOther));
  quarantine.note_good(kA);
  CHECK_FALSE(quarantine.ward_of(kA));
  CHECK(quarantine.ward_of(kB));
  (void)quarantine.note_fault(Programs{kA}, kStart);
  quarantine.note_good(kA);  // not as long as its fault counts
  CHECK(quarantine.ward_of(kA)->is_probation());
  CHECK(quarantine.release(kStart + seconds(301)).empty());
  quarantine.note_good(kA);
  CHECK_FALSE(quarantine.ward_of(kA));
  for (int i = 0; i < 3; ++i) (void)quarantine.note_fault(Programs{kA}, kStart + seconds(400));
  CHECK(quarantine.ward_of(kA) == Ward::of(Ward::Extent::command, kA));  // quarantine goes before
}

TEST_CASE("a program that has faulted is on probation also where nobody is ever in quarantine") {
  Quarantine quarantine({0, seconds(300), 1, seconds(10)});
  quarantine.note_good(kA);
  CHECK_FALSE(quarantine.ward_of(kA));
  CHECK(quarantine.note_fault(Programs{kA}, kStart).empty());
  CHECK(quarantine.ward_of(kA));
}

TEST_CASE("of programs that have done well the oldest is forgotten for one more than can be kept") {
  Quarantine quarantine({3, seconds(300), 1, seconds(10)});
  const auto program = [](unsigned number) {
    ProgramIdentity made{1000, {}, std::to_string(number), "/bin/a"};
    return made;
  };
  for (unsigned i = 0; i < 4'096; ++i) quarantine.note_good(program(i));
  quarantine.note_good(program(0));  // again: it is the youngest now
  quarantine.note_good(program(4'096));
  CHECK_FALSE(quarantine.ward_of(program(0)));
  CHECK(quarantine.ward_of(program(1)));
  CHECK_FALSE(quarantine.ward_of(program(2)));
  CHECK_FALSE(quarantine.ward_of(program(4'096)));
}
