// SPDX-License-Identifier: Apache-2.0
// In which order newcomers see the devices that name none (--spread).
#include "broker/control/placement/spread.hpp"

#include <unistd.h>

#include "broker/control/base/process_identity.hpp"
#include "tests/unit/control/support/two_devices.hpp"

using namespace mpsshim;
using namespace mpsshim::broker;
using namespace mpsshim::broker::control;
using namespace mpsshim::broker::control::testing;
using Order = std::vector<unsigned>;

namespace {

constexpr std::uint64_t kGiB = 1ull << 30;
constexpr pid_t kNobody = 5'000'000;  // beyond what a process can have as its number

Occupant settled(unsigned device, std::uint64_t bytes, double time_share) { return {device, bytes, time_share, true}; }

SessionLimits spreading() {
  SessionLimits limits = ControlFixture::quick_limits();
  limits.spreads_newcomers = true;
  return limits;
}

Order order_of(const proto::DeviceOrderTold& told) { return {told.device, told.device + told.count}; }

}  // namespace

TEST_CASE("spread: the device with most room comes first, of equals the lower one") {
  const std::vector<std::uint64_t> memory(4, 80 * kGiB);
  CHECK(devices_by_room({}, {}).empty());
  CHECK(devices_by_room(memory, {}) == Order{0, 1, 2, 3});
  CHECK(devices_by_room(memory, std::vector{settled(0, 0, 0)}) == Order{1, 2, 3, 0});
  CHECK(devices_by_room(memory, std::vector{settled(0, 40 * kGiB, 0), settled(1, 0, 0.25), settled(2, 0, 0), settled(3, 8 * kGiB, 0.1)}) ==
        Order{2, 3, 1, 0});
  // Much memory and none of the time is as much as none and much of the time.
  CHECK(devices_by_room(memory, std::vector{settled(0, 60 * kGiB, 0.2), settled(1, 8 * kGiB, 0.9), settled(2, 0, 0.9), settled(3, 0, 1)}) ==
        Order{2, 0, 1, 3});
  // Many that take next to nothing are no fewer for it.
  std::vector<Occupant> many(8, settled(0, 0, 0));
  many.push_back(settled(1, 32 * kGiB, 0));
  CHECK(devices_by_room({memory.data(), 2}, many) == Order{1, 0});
}

TEST_CASE("spread: of devices of several sizes the part that is taken counts, and one that cannot be used comes last") {
  const std::vector<std::uint64_t> memory = {24 * kGiB, 80 * kGiB, 0};
  CHECK(devices_by_room(memory, std::vector{settled(0, 12 * kGiB, 0), settled(1, 20 * kGiB, 0)}) == Order{1, 0, 2});
  CHECK(devices_by_room(memory, std::vector{settled(0, 12 * kGiB, 0), settled(1, 60 * kGiB, 0), settled(9, kGiB, 1)}) == Order{0, 1, 2});
}

TEST_CASE("spread: who has only come may want as much as the others have") {
  const std::vector<std::uint64_t> memory(2, 80 * kGiB);
  std::vector<Occupant> occupants = {settled(0, 40 * kGiB, 0.5)};
  occupants.push_back({.device = 1});
  CHECK(devices_by_room(memory, occupants) == Order{0, 1});  // as much on each
  occupants.push_back({.device = 0});
  CHECK(devices_by_room(memory, occupants) == Order{1, 0});
  occupants.push_back({.device = 1, .memory_bytes = 79 * kGiB, .time_share = 1});  // more than usual already
  CHECK(devices_by_room(memory, occupants) == Order{0, 1});
}

TEST_CASE("spread: newcomers that come at once are told different devices, each for as long as it is expected") {
  TwoDevices broker(true, spreading());
  Spread& spread = broker.manager.spread();
  const proto::DriverFacts& facts = *broker.manager.facts();
  Spread::Place first = spread.tell(process(kNobody), facts), second = spread.tell(process(kNobody + 1), facts);
  CHECK(first.order() == Order{0, 1});
  CHECK(second.order() == Order{1, 0});
  CHECK(spread.tell(process(kNobody + 2), facts).order() == Order{0, 1});  // and is gone again
  first = Spread::Place();                                                 // its process has ended
  CHECK(spread.tell(process(kNobody + 2), facts).order() == Order{0, 1});
  first = spread.tell(process(kNobody + 3), facts);
  second.has_session();  // which the session is seen by from here on
  CHECK(spread.tell(process(kNobody + 4), facts).order() == Order{1, 0});
}

TEST_CASE("spread: what sessions hold and take is seen") {
  TwoDevices broker(true, spreading());
  Spread& spread = broker.manager.spread();
  const proto::DriverFacts& facts = *broker.manager.facts();
  proto::Attached attached;
  {
    TestClient client = broker.attach_on(0, attached);
    CHECK(spread.tell(process(kNobody), facts).order() == Order{1, 0});
    proto::Attached other;
    TestClient beside = broker.attach_on(1, other);
    CHECK(spread.tell(process(kNobody), facts).order() == Order{0, 1});
    *broker.session(attached.session).device_held = facts.device[0].total_memory_bytes / 2;
    CHECK(spread.tell(process(kNobody), facts).order() == Order{1, 0});
    *broker.session(attached.session).device_held = 0;
  }
}

TEST_CASE("spread: a process sees the same all its life, and so do its children, but not another user's") {
  TwoDevices broker(true, spreading());
  Spread& spread = broker.manager.spread();
  const proto::DriverFacts& facts = *broker.manager.facts();
  CHECK(parent_of(getpid()) == getppid());
  CHECK(parent_of(kNobody) == 0);
  const Spread::Place other = spread.tell(process(kNobody), facts);
  const Spread::Place parent = spread.tell(process(getppid()), facts);
  CHECK(parent.order() == Order{1, 0});
  const Spread::Place stranger = spread.tell(process(getpid(), 1001), facts);
  CHECK(stranger.order() == Order{0, 1});
  const Spread::Place child = spread.tell(process(getpid()), facts);
  CHECK(child.order() == Order{1, 0});
  CHECK(spread.tell(process(getpid()), facts).order() == Order{1, 0});
  CHECK(spread.adopt(process(kNobody + 7), {1, 0}, false).order() == Order{1, 0});  // handed over
}

TEST_CASE("spread: a client is told its order, the same again if it asks again, and the broker's own where nothing is spread") {
  TwoDevices broker(true, spreading());
  proto::Attached attached;
  TestClient beside = broker.attach_on(0, attached);
  TestClient client = broker.connect();
  REQUIRE(client.hello().header.status == CUDA_SUCCESS);
  CHECK(order_of(client.ask<proto::DeviceOrderTold>(proto::DeviceOrderAsk{})) == Order{1, 0});
  TestClient again = broker.connect();  // of the same process
  REQUIRE(again.hello().header.status == CUDA_SUCCESS);
  *broker.session(attached.session).device_held = 0;
  CHECK(order_of(client.ask<proto::DeviceOrderTold>(proto::DeviceOrderAsk{})) == Order{1, 0});
  CHECK(order_of(again.ask<proto::DeviceOrderTold>(proto::DeviceOrderAsk{})) == Order{1, 0});

  TwoDevices plain;
  TestClient other = plain.attach_on(0, attached);
  TestClient last = plain.connect();
  REQUIRE(last.hello().header.status == CUDA_SUCCESS);
  CHECK(order_of(last.ask<proto::DeviceOrderTold>(proto::DeviceOrderAsk{})) == Order{0, 1});
}
