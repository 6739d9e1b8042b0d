// SPDX-License-Identifier: Apache-2.0
#include "broker/control/quarantine.hpp"

#include "tests/support/catch.hpp"

using namespace mpsshim::broker::control;
using std::chrono::seconds;

namespace {

using Programs = std::vector<Program>;
const Program kA{"/bin/a", 1, 10, 1000};
const Program kB{"/bin/b", 1, 11, 1000};
const Program kAOfOther{"/bin/a", 1, 10, 1001};
const Program kANew{"/bin/a", 1, 12, 1000};
constexpr Quarantine::Clock::time_point kStart{};

}  // namespace

TEST_CASE("the third fault within the window puts a program into quarantine, once") {
  Quarantine quarantine({3, seconds(300)});
  CHECK(quarantine.note_fault(Programs{kA}, kStart).empty());
  CHECK(quarantine.note_fault(Programs{kA}, kStart + seconds(100)).empty());
  CHECK_FALSE(quarantine.contains(kA));
  CHECK(quarantine.note_fault(Programs{kA}, kStart + seconds(299)) == Programs{kA});
  CHECK(quarantine.contains(kA));
  CHECK(quarantine.note_fault(Programs{kA}, kStart + seconds(299)).empty());
  for (const Program& other : {kB, kAOfOther, kANew}) CHECK_FALSE(quarantine.contains(other));
}

TEST_CASE("faults that are longer ago than the window count no more") {
  Quarantine quarantine({3, seconds(300)});
  for (int i = 0; i < 10; ++i) CHECK(quarantine.note_fault(Programs{kA}, kStart + seconds(150 * i)).empty());
}

TEST_CASE("suspects share a fault, clients of one program bear their shares together") {
  Quarantine shared({1, seconds(300)});
  for (int i = 0; i < 3; ++i) CHECK(shared.note_fault(Programs{kA, kB, kB, kB}, kStart).size() == (i == 1 ? 1u : 0u));  // B at 1.5
  CHECK(shared.contains(kB));
  CHECK(shared.note_fault(Programs{kA, kB, kB, kB}, kStart) == Programs{kA});
  Quarantine whole({3, seconds(300)});
  for (int i = 0; i < 2; ++i) CHECK(whole.note_fault(Programs{kA, kA, kA}, kStart).empty());
  CHECK(whole.note_fault(Programs{kA, kA, kA}, kStart) == Programs{kA});
}

TEST_CASE("a program leaves after the window without a fault") {
  Quarantine quarantine({2, seconds(300)});
  CHECK(quarantine.next_release() == Quarantine::Clock::time_point::max());
  (void)quarantine.note_fault(Programs{kA}, kStart);
  (void)quarantine.note_fault(Programs{kA}, kStart + seconds(10));
  (void)quarantine.note_fault(Programs{kA}, kStart + seconds(200));
  CHECK(quarantine.next_release() == kStart + seconds(500));
  CHECK(quarantine.release(kStart + seconds(499)).empty());
  CHECK(quarantine.contains(kA));
  CHECK(quarantine.release(kStart + seconds(500)) == Programs{kA});
  CHECK_FALSE(quarantine.contains(kA));
  CHECK(quarantine.note_fault(Programs{kA}, kStart + seconds(501)).empty());  // and begins anew
}

TEST_CASE("with 0 faults nobody is in quarantine") {
  Quarantine quarantine({0, seconds(300)});
  for (int i = 0; i < 10; ++i) CHECK(quarantine.note_fault(Programs{kA}, kStart).empty());
  CHECK_FALSE(quarantine.contains(kA));
}
