// SPDX-License-Identifier: Apache-2.0
#include "broker/control/base/lease_table.hpp"

#include <algorithm>

#include "tests/support/catch.hpp"

using namespace mpsshim::broker;
using namespace mpsshim::broker::control;
using mpsshim::proto::Lease;

namespace {

constexpr std::uint64_t kGiB = 1ull << 30;

std::vector<Lease> take_all(LeaseTable& table, bool device) {
  std::vector<Lease> leases;
  while (auto lease = device ? table.take_device() : table.take_pinned()) leases.push_back(*lease);
  return leases;
}

// No two touch: between any two lie both guard gaps.
void check_apart(std::vector<Lease> leases, std::uint64_t begin, std::uint64_t end) {
  std::ranges::sort(leases, {}, &Lease::address);
  for (std::size_t i = 0; i < leases.size(); ++i) {
    CHECK(leases[i].address >= begin + kLeaseGuardBytes);
    const std::uint64_t next = i + 1 < leases.size() ? leases[i + 1].address : end + kLeaseGuardBytes;
    CHECK(leases[i].address + leases[i].size_bytes + 2 * kLeaseGuardBytes <= next);
  }
}

}  // namespace

TEST_CASE("a small device: 512 device and 512 pinned leases, apart from each other") {
  LeaseTable table(AddressWindow{}, 16 * kGiB);
  const auto device = take_all(table, true);
  const auto pinned = take_all(table, false);
  REQUIRE(device.size() == 512);
  REQUIRE(pinned.size() == 512);
  CHECK(device[0].address == 0x2000'0000'0000 + kLeaseGuardBytes);
  CHECK(device[0].size_bytes == 64 * kGiB - 2 * kLeaseGuardBytes);
  CHECK(pinned[0].address == 0x4000'0000'0000 + kLeaseGuardBytes);
  CHECK(pinned[0].size_bytes == 32 * kGiB - 2 * kLeaseGuardBytes);
  check_apart(device, 0x2000'0000'0000, 0x4000'0000'0000);
  check_apart(pinned, 0x4000'0000'0000, 0x5000'0000'0000);
}

TEST_CASE("a large device: the first sessions can hold all of it, and there are still 512") {
  LeaseTable table(AddressWindow{}, 141 * kGiB);
  const auto device = take_all(table, true);
  CHECK(device.size() >= 512);
  CHECK(device[0].size_bytes == 256 * kGiB - 2 * kLeaseGuardBytes);
  CHECK(device[63].size_bytes == device[0].size_bytes);
  CHECK(device.back().size_bytes == 32 * kGiB - 2 * kLeaseGuardBytes);
  check_apart(device, 0x2000'0000'0000, 0x4000'0000'0000);
}

TEST_CASE("further ranges: the smallest that is large enough, while every session that may come finds a first one") {
  LeaseTable table(AddressWindow{}, 141 * kGiB);
  const std::size_t all = take_all(table, true).size();
  LeaseTable fresh(AddressWindow{}, 141 * kGiB);
  CHECK(fresh.take_more(kGiB, 0)->size_bytes == 32 * kGiB - 2 * kLeaseGuardBytes);
  CHECK(fresh.take_more(40 * kGiB, 0)->size_bytes == 256 * kGiB - 2 * kLeaseGuardBytes);
  CHECK_FALSE(fresh.take_more(300 * kGiB, 0));
  std::size_t more = 2;
  while (fresh.take_more(kGiB, 0)) ++more;
  CHECK(more == all - kMaxLeases);
  CHECK(take_all(fresh, true).size() == kMaxLeases);
  // Where each range holds the whole device there is nothing to add to.
  LeaseTable small(AddressWindow{}, 16 * kGiB);
  CHECK(small.take_device());
  CHECK_FALSE(small.take_more(kGiB, 1));
}

TEST_CASE("a range that comes back is the last to be handed out again") {
  LeaseTable table(AddressWindow{}, kGiB);
  const Lease first = *table.take_device();
  table.give_back(first);
  for (int i = 0; i < 511; ++i) CHECK(table.take_device()->address != first.address);
  CHECK(table.take_device()->address == first.address);
  CHECK_FALSE(table.take_device());
}

TEST_CASE("a refused range goes to others, never to the one that refused it") {
  LeaseTable table(AddressWindow{}, kGiB);
  std::vector<Lease> refused;
  for (int i = 0; i < 512; ++i) {
    const auto lease = table.take_pinned(refused);
    REQUIRE(lease);
    CHECK(std::ranges::none_of(refused, [&](const Lease& other) { return other.address == lease->address; }));
    refused.push_back(*lease);
    table.give_back(*lease);
  }
  CHECK_FALSE(table.take_pinned(refused));
  CHECK(table.take_pinned());
}

TEST_CASE("windows: what is taken and what is not") {
  CHECK(parse_window("0x200000000000-0x500000000000")->begin == 0x2000'0000'0000);
  CHECK(parse_window("200000000000-500000000000")->end == 0x5000'0000'0000);
  for (const char* text : {"", "-", "0x200000000000", "0x500000000000-0x200000000000", "0x200000000001-0x500000000000", "0x0-0x500000000000",
                           "0x200000000000-0x2040000000000", "0x200000000000-0x210000000000", "0x200000000000-0x500000000000x"}) {
    INFO(text);
    CHECK_FALSE(parse_window(text));
  }
  const LeaseTable smallest(*parse_window("0x100000000000-0x130000000000"), 80 * kGiB);
}
