// SPDX-License-Identifier: Apache-2.0
// Which devices a process sees, and which attributes are overridden.
#include <cstdlib>
#include <memory>

#include "interposer/local/acting_session.hpp"
#include "interposer/local/devices.hpp"
#include "interposer/settle.hpp"
#include "tests/support/catch.hpp"
#include "tests/unit/interposer/fake_facts.hpp"

using namespace mpsshim;
using namespace mpsshim::interposer;
using Ordinals = std::vector<std::uint32_t>;

namespace {
proto::DriverFacts& facts() {
  static auto published = std::make_unique<proto::DriverFacts>();
  return *published;
}
}  // namespace

const proto::DriverFacts& mpsshim::interposer::driver_facts() { return facts(); }

TEST_CASE("CUDA_VISIBLE_DEVICES: indices in the order given, up to the first that names no device") {
  test::fill_fake_facts(facts(), 4);
  CHECK(select_devices(facts(), "0") == Ordinals{0});
  CHECK(select_devices(facts(), "2,0") == Ordinals{2, 0});
  CHECK(select_devices(facts(), " 3 , 1 ") == Ordinals{3, 1});
  CHECK(select_devices(facts(), "1,4,2") == Ordinals{1});
  CHECK(select_devices(facts(), "1,-1,2") == Ordinals{1});
  CHECK(select_devices(facts(), "1,1,2") == Ordinals{1});
  CHECK(select_devices(facts(), "1,,2") == Ordinals{1});
  CHECK(select_devices(facts(), "1x") == Ordinals{});
  CHECK(select_devices(facts(), "99999999999999999999") == Ordinals{});
  CHECK(select_devices(facts(), "-1") == Ordinals{});
  CHECK(select_devices(facts(), "") == Ordinals{});
  CHECK(select_devices(facts(), "NoDevFiles") == Ordinals{});
}

TEST_CASE("CUDA_VISIBLE_DEVICES: UUIDs, whole or by an unambiguous beginning") {
  test::fill_fake_facts(facts(), 4);  // device 1: b0111213-…, device 2: c0212223-…
  CHECK(select_devices(facts(), "GPU-b0111213-1415-1617-1819-1a1b1c1d1e1f") == Ordinals{1});
  CHECK(select_devices(facts(), "GPU-B0111213") == Ordinals{1});
  CHECK(select_devices(facts(), "GPU-c0,GPU-a") == Ordinals{2, 0});
  CHECK(select_devices(facts(), "GPU-ff") == Ordinals{});
  CHECK(select_devices(facts(), "GPU-") == Ordinals{});
  CHECK(select_devices(facts(), "GPU-b0111213-1415-1617-1819-1a1b1c1d1e1f00") == Ordinals{});
  CHECK(select_devices(facts(), "MIG-b0111213") == Ordinals{});
  facts().device[2].uuid[0] = facts().device[1].uuid[0];
  CHECK(select_devices(facts(), "GPU-b0") == Ordinals{});  // names two
  CHECK(select_devices(facts(), "GPU-b011") == Ordinals{1});
}

TEST_CASE("cuInit fixes the devices, ordinals map to the broker's") {
  test::fill_fake_facts(facts(), 3);
  unsetenv("CUDA_VISIBLE_DEVICES");
  REQUIRE(initialise_devices() == CUDA_SUCCESS);
  CHECK(device_count() == 3);
  setenv("CUDA_VISIBLE_DEVICES", "2,1", 1);
  REQUIRE(initialise_devices() == CUDA_SUCCESS);
  CHECK(device_count() == 2);
  CHECK(broker_ordinal(0) == 2);
  CHECK(device_facts(1) == &facts().device[1]);
  CHECK(device_facts(2) == nullptr);
  CHECK(device_facts(-1) == nullptr);
  setenv("CUDA_VISIBLE_DEVICES", "", 1);
  CHECK(initialise_devices() == CUDA_ERROR_NO_DEVICE);
  unsetenv("CUDA_VISIBLE_DEVICES");
  facts().device_count = 0;
  CHECK(initialise_devices() == CUDA_ERROR_NO_DEVICE);
}

TEST_CASE("the broker's order holds for who names no device and has no number of a launcher's") {
  test::fill_fake_facts(facts(), 3);
  for (const char* name : {"CUDA_VISIBLE_DEVICES", "LOCAL_RANK", "SLURM_LOCALID", "SLURM_STEP_ID"}) unsetenv(name);
  CHECK(follows_device_order());
  REQUIRE(initialise_devices(Ordinals{2, 0, 1}) == CUDA_SUCCESS);
  CHECK(device_count() == 3);
  CHECK(broker_ordinal(0) == 2);
  CHECK(device_facts(1) == &facts().device[0]);
  CHECK(device_of_ordinal(1) == 2);
  for (const Ordinals& wrong : {Ordinals{2, 0}, Ordinals{2, 0, 0}, Ordinals{3, 0, 1}, Ordinals{2, 1, 0, 0}}) {
    REQUIRE(initialise_devices(wrong) == CUDA_SUCCESS);
    CHECK(device_count() == 3);
    CHECK(broker_ordinal(0) == 0);
    CHECK(broker_ordinal(2) == 2);
  }
  setenv("SLURM_LOCALID", "0", 1);  // a batch script's, and so of all that it starts
  CHECK(follows_device_order());
  setenv("SLURM_STEP_ID", "1", 1);
  CHECK_FALSE(follows_device_order());
  unsetenv("SLURM_LOCALID");
  CHECK(follows_device_order());
  setenv("LOCAL_RANK", "1", 1);
  CHECK_FALSE(follows_device_order());
  unsetenv("LOCAL_RANK");
  setenv("CUDA_VISIBLE_DEVICES", "1,0", 1);
  CHECK_FALSE(follows_device_order());
  REQUIRE(initialise_devices(Ordinals{2, 0, 1}) == CUDA_SUCCESS);
  CHECK(broker_ordinal(0) == 1);
  unsetenv("CUDA_VISIBLE_DEVICES");
  test::fill_fake_facts(facts(), 1);
  CHECK_FALSE(follows_device_order());
}

TEST_CASE("attributes are the executor's, but for the overrides") {
  test::fill_fake_facts(facts(), 1);
  proto::DeviceFacts& device = facts().device[0];
  int value = -1;
  REQUIRE(device_attribute(device, CU_DEVICE_ATTRIBUTE_WARP_SIZE, value) == CUDA_SUCCESS);
  CHECK(value == 1000);
  for (const int id : {88, 91, 96, 100, 101, 110, 124, 146}) {
    value = -1;
    REQUIRE(device_attribute(device, id, value) == CUDA_SUCCESS);
    CHECK(value == 0);
  }
  for (const int id : {83, 89, 99, 102, 103, 115}) {  // what this library offers by itself
    value = -1;
    REQUIRE(device_attribute(device, id, value) == CUDA_SUCCESS);
    CHECK(value == 1);
  }
  REQUIRE(device_attribute(device, CU_DEVICE_ATTRIBUTE_MPS_ENABLED, value) == CUDA_SUCCESS);
  CHECK(value == 1);
  CHECK(device_attribute(device, 147, value) == CUDA_SUCCESS);
  CHECK(device_attribute(device, 148, value) == CUDA_ERROR_INVALID_VALUE);
  device.attribute_status[88] = CUDA_ERROR_INVALID_VALUE;  // a driver that does not know an overridden attribute is believed
  CHECK(device_attribute(device, 88, value) == CUDA_ERROR_INVALID_VALUE);
  for (const int id : {0, -1, 1024, 1 << 30}) CHECK(device_attribute(device, id, value) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("a process has a session for each device that it works on, numbered as they began") {
  test::fill_fake_facts(facts(), 3);
  setenv("CUDA_VISIBLE_DEVICES", "0,1,2", 1);
  REQUIRE(initialise_devices() == CUDA_SUCCESS);
  CHECK(session_device() == 0);
  CHECK(session_count() == 0);
  CHECK(session_of(2) == 0);
  CHECK(session_device() == 2);
  CHECK(session_of(2) == 0);
  CHECK_FALSE(has_several_sessions());
  CHECK_FALSE(has_session(0));
  CHECK(session_of(0) == 1);
  CHECK(has_several_sessions());
  CHECK(session_device() == 2);  // this thread acts for the first still
  {
    const ActingSession acting(1);
    CHECK(session_device() == 0);
    CHECK(settle_session_device() == 0);
    {
      const ActingSession inner(0);
      CHECK(session_device() == 2);
    }
    CHECK(session_device() == 0);
  }
  CHECK(settle_session_device() == 2);
  CHECK(session_count() == 2);
}

TEST_CASE("a session that opens before a device is named has the first") {
  test::fill_fake_facts(facts(), 2);
  setenv("CUDA_VISIBLE_DEVICES", "0,1", 1);
  REQUIRE(initialise_devices() == CUDA_SUCCESS);
  if (session_count() != 0) MPSSHIM_SKIP("another case of this process has begun sessions; CTest gives each a process of its own");
  CHECK(settle_session_device() == 0);
  CHECK(session_count() == 1);
  CHECK(session_of(1) == 1);
}

TEST_CASE("what is one each a session is made when it is asked for, and found by the session that the thread acts for") {
  struct Thing {
    std::uint32_t made_for = ActingSession::index();
  };
  several_sessions_began = true;
  const auto thing = [] { return &PerSession<Thing>::get([] { return new Thing(); }); };
  Thing* const first = thing();
  CHECK(first->made_for == 0);
  const ActingSession acting(3);
  CHECK(thing() != first);
  CHECK(thing() == thing());
  CHECK(thing()->made_for == 3);
}
