// SPDX-License-Identifier: Apache-2.0
// Static partitions: which chunks they get, who gets a session, what executors and clients are told, and what commands answer.
#include <bit>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <unistd.h>

#include "broker/control/server/commands.hpp"
#include "broker/control/sessions/sm_partitions.hpp"
#include "tests/unit/control/support/console.hpp"

using namespace mpsshim;
using namespace mpsshim::broker;
using namespace mpsshim::broker::control;
using namespace mpsshim::broker::control::testing;

namespace {

SessionLimits parted() {
  SessionLimits limits = ControlFixture::quick_limits();
  limits.has_static_partitions = true;
  return limits;
}

const std::string kGpu = "GPU-00000000-0000-0000-0000-000000000000";  // both of the fixture's

struct PartedBroker : ControlFixture {
  explicit PartedBroker(const SessionLimits& limits = parted()) : ControlFixture(limits) { serve(); }
  Console console{*this};

  TestClient ask(std::uint32_t partition, proto::PartitionTold& told, std::uint32_t on_device_1 = 0) {
    TestClient client = connect();
    REQUIRE(client.hello().header.status == CUDA_SUCCESS);
    proto::PartitionAsk question;
    question.partition[0] = partition;
    question.partition[1] = on_device_1;
    told = client.ask<proto::PartitionTold>(question);
    return client;
  }
  // Of a client that is to get a session.
  TestClient attach_in(std::uint32_t partition, message::SessionOpen& opened) {
    proto::PartitionTold told;
    TestClient client = ask(partition, told);
    client.send(proto::Attach{});
    opened = executor().expect<message::SessionOpen>().message;
    executor().send(message::SessionOpened{.session = opened.session});
    REQUIRE(client.await<proto::Attached>().header.status == CUDA_SUCCESS);
    return client;
  }
};

}  // namespace

TEST_CASE("partitions: chunks are neighbours where there is room, in the smallest hole, and never anybody's twice") {
  CHECK(choose_chunks(0b1111, 2) == 0b0011);
  CHECK(choose_chunks(0b1101'1110, 2) == 0b1100'0000);  // the hole of two, not that of four
  CHECK(choose_chunks(0b1101'1110, 4) == 0b0001'1110);
  CHECK(choose_chunks(0b1010'1001, 2) == 0b0000'1001);  // there are none: the first ones
  CHECK(choose_chunks(0b1010'1001, 4) == 0b1010'1001);
  CHECK(choose_chunks(0b1010'1001, 5) == 0);
  CHECK(choose_chunks(UINT64_MAX, 63) == UINT64_MAX >> 1);
  CHECK(choose_chunks(0, 1) == 0);
  CHECK(choose_chunks(1, 0) == 0);
  CHECK(choose_chunks(std::uint64_t{1} << 62, 1) == std::uint64_t{1} << 62);
}

TEST_CASE("partitions: whatever is made and removed, no two of a device have a chunk in common, and no number comes again") {
  SmPartitions partitions;
  partitions.learn(std::vector<std::uint32_t>{17, 3});
  std::set<std::uint32_t> numbers;
  std::uint32_t random = 7;
  for (int turn = 0; turn < 5'000; ++turn) {
    random = random * 1'664'525 + 1'013'904'223;
    const unsigned device = random >> 31, count = 1 + (random >> 16) % 5;
    const auto free = static_cast<unsigned>(std::popcount(partitions.free_chunks(device)));
    const std::uint32_t made = partitions.add(device, count, false, "");
    REQUIRE((made != 0) == (count <= free));
    if (made != 0) REQUIRE(numbers.insert(made).second);
    if ((made == 0 || (random & 0x100) != 0) && !partitions.all().empty())
      partitions.erase(std::next(partitions.all().begin(), random % partitions.all().size())->first);
    std::uint64_t taken[2] = {};
    for (const auto& [number, partition] : partitions.all()) {
      REQUIRE((taken[partition.device] & partition.chunks) == 0);
      taken[partition.device] |= partition.chunks;
    }
    REQUIRE(taken[0] >> 17 == 0);
    REQUIRE(taken[1] >> 3 == 0);
  }
  CHECK(numbers.size() > 1'000);
}

TEST_CASE("partitions: a client has the chunks of the one that it names, and percentages mean nothing") {
  SessionLimits limits = parted();
  limits.thread_percentage_text = "50";
  PartedBroker broker(limits);
  CHECK(broker.console.ok("sm_partition add 0 3") == kGpu + "/P0000001\n");
  CHECK(broker.console.ok("sm_partition add 0 2") == kGpu + "/P0000002\n");
  message::SessionOpen first, second, third;
  const TestClient one = broker.attach_in(1, first);
  const TestClient two = broker.attach_in(2, second);
  const TestClient three = broker.attach_in(1, third);
  CHECK(first.chunks == 0b00111);
  CHECK(second.chunks == 0b11000);
  CHECK(third.chunks == first.chunks);
  for (const message::SessionOpen& opened : {first, second, third}) {
    CHECK(opened.thread_percentage == proto::kWholePercentage);
    CHECK(opened.group_percentage == 0);
  }
  CHECK(broker.console.ok("get_default_active_thread_percentage") == "100.0\n");
  CHECK(broker.console.ok("client get " + std::to_string(getpid()) + " sm-partition") == "P0000001\nP0000002\nP0000001\n");
  CHECK(broker.console.ok("ps --csv").find(",,P0000002,0,") != std::string::npos);
  for (const char* line : {"set_default_active_thread_percentage 50", "namespace set x --active-thread-percentage 50"}) {
    broker.console.execute("namespace create x");
    CHECK(broker.console.error(line).find("static partitions, in which percentages mean nothing") != std::string::npos);
  }
}

TEST_CASE("partitions: who names none gets no session, and is told how many multiprocessors it would have") {
  PartedBroker broker;
  broker.console.ok("sm_partition add 0 3");
  broker.console.ok("sm_partition add 1 4");
  proto::PartitionTold told;
  for (const std::uint32_t wrong : {0u, 2u, 3u, UINT32_MAX}) {  // 2 is the other device's
    TestClient client = broker.ask(wrong, told);
    CHECK(told.is_static == 1);
    CHECK(told.multiprocessors[0] == 0);
    client.send(proto::Attach{});
    CHECK(client.await<proto::Attached>().header.status == CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
  }
  TestClient of_another_release = broker.connect();  // does not know of partitions
  REQUIRE(of_another_release.hello().header.status == CUDA_SUCCESS);
  of_another_release.send(proto::Attach{});
  CHECK(of_another_release.await<proto::Attached>().header.status == CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
  proto::Attach far;
  far.device = 4'000'000'000;
  of_another_release.send(far);
  CHECK(of_another_release.await<proto::Attached>().header.status == CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
  CHECK(broker.manager.sessions().empty());
  const TestClient well = broker.ask(1, told, 2);
  CHECK(told.multiprocessors[0] == 3 * proto::partition_unit(0));
  CHECK(told.multiprocessors[1] == 4 * proto::partition_unit(0));
  // One that was taken away between the question and the session is none.
  TestClient late = broker.ask(1, told);
  broker.console.ok("sm_partition rm 0 P0000001");
  late.send(proto::Attach{});
  CHECK(late.await<proto::Attached>().header.status == CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
}

TEST_CASE("partitions: one with clients is not taken away, and its chunks are free again once it is") {
  PartedBroker broker;
  broker.console.ok("sm_partition add 0 10");
  CHECK(broker.console.error("sm_partition add 0 1") == "device 0 has 0 chunks of 2 multiprocessors free, and 1 is wanted: see lspart");
  message::SessionOpen opened;
  TestClient client = broker.attach_in(1, opened);
  CHECK(broker.console.error("sm_partition rm 0 P0000001") == "partition P0000001 has 1 client: see ps -l");
  CHECK(broker.console.ok("lspart --csv") == "device,uuid,sm_partition,name,free_chunks,used_chunks,free_sms,used_sms,clients\n0," + kGpu +
                                                 ",,,0,10,0,20,\n0," + kGpu + ",P0000001,,,10,,20,1\n1," + kGpu + ",,,10,0,20,0,\n");
  client.hang_up();
  broker.executor().expect<message::SessionClose>();
  broker.executor().send(message::SessionClosed{.session = opened.session});
  REQUIRE(turn_until(broker.loop, [&] { return broker.manager.sessions().empty(); }));
  CHECK(broker.console.ok("sm_partition rm 0 P0000001") == "");
  CHECK(broker.console.error("sm_partition rm 0 P0000001") == "device 0 has no partition P0000001: see lspart");
  CHECK(broker.console.ok("sm_partition add 0 10") == kGpu + "/P0000002\n");
}

TEST_CASE("partitions: version 3's words, with names") {
  PartedBroker broker;
  CHECK(broker.console.ok("sm-partition create large --device=0 --chunks=4") ==
        "SM partition 'large' created on device " + kGpu + " (sm-count=8)\nCUDA_MPS_SM_PARTITION=" + kGpu + "/P0000001\n");
  CHECK(broker.console.error("sm-partition create large --device 0 --chunks 1") == "device 0 has a partition large already");
  CHECK(broker.console.ok("sm-partition create large --device 1 --chunks 1").find("P0000002") != std::string::npos);
  CHECK(broker.console.error("sm-partition create small --device 0 --chunks 7") ==
        "device 0 has 6 chunks of 2 multiprocessors free, and 7 are wanted: see lspart");
  CHECK(broker.console.ok("sm-partition list --device 0 --format=csv,noheader") ==
        "0," + kGpu + ",large,4,8,created,P0000001,0\n0," + kGpu + ",,6,12,unallocated,,\n");
  CHECK(broker.console.error("sm-partition list --device 7").find("there is no device \"7\"") != std::string::npos);
  CHECK(broker.console.error("sm-partition delete small --device 0") == "device 0 has no partition small: see lspart");
  CHECK(broker.console.ok("sm-partition delete large --device 0") == "SM partition 'large' deleted from device " + kGpu + "\n");
  CHECK(broker.console.error("sm_partition add 9 1").find("there is no device \"9\"") != std::string::npos);
  CHECK(broker.console.ok("lspart").find("FREE-CHUNKS") != std::string::npos);
  CHECK(broker.console.ok("device list --format=csv,noheader").find(",10\n") != std::string::npos);  // as the driver cuts it
}

TEST_CASE("partitions: one of each device may have what whole chunks leave over") {
  ControlFixture broker(parted());
  broker.executor().multiprocessors = 23;  // ten chunks of two, and three
  broker.serve();
  Console console(broker);
  CHECK(console.ok("sm-partition create large --device 0 --chunks 4 --include-remainder").find("(sm-count=11)") != std::string::npos);
  CHECK(console.error("sm-partition create other --include-remainder --device 0 --chunks 1") ==
        "what the chunks of device 0 leave over is partition large's: see sm-partition list");
  CHECK(console.ok("sm-partition create other --device 0 --chunks 6").find("(sm-count=12)") != std::string::npos);
  CHECK(console.ok("sm-partition list --device 0 --format=csv,noheader") ==
        "0," + kGpu + ",large,4,11,created,P0000001,0\n0," + kGpu + ",other,6,12,created,P0000002,0\n");
  CHECK(console.ok("lspart --csv").find("\n0," + kGpu + ",,,0,10,0,23,\n") != std::string::npos);
  const SmPartitions& partitions = broker.manager.partitions();
  REQUIRE(partitions.find(0, 1) != nullptr);
  CHECK(partitions.find(0, 1)->chunks == (0b1111 | proto::kRemainderBit));
  CHECK(partitions.find(0, 2)->chunks == 0b11'1111'0000);
  console.ok("sm-partition delete large --device 0");  // then it is nobody's again
  CHECK(console.ok("sm-partition create small --device 0 --chunks 1 --include-remainder").find("(sm-count=5)") != std::string::npos);
  CHECK(console.ok("sm-partition create away --device 1 --chunks 1 --include-remainder").find("(sm-count=5)") != std::string::npos);
}

TEST_CASE("partitions: where nothing is left over, one that is to have it has its chunks, whoever has that, too") {
  ControlFixture broker(parted());
  broker.executor().multiprocessors = 20;
  broker.serve();
  Console console(broker);
  for (const char* name : {"one", "two"})
    CHECK(console.ok(std::string("sm-partition create ") + name + " --device 0 --chunks 3 --include-remainder").find("(sm-count=6)") !=
          std::string::npos);
  CHECK(broker.manager.partitions().find(0, 1)->chunks == 0b111);
  CHECK(broker.manager.partitions().find(0, 2)->chunks == 0b11'1000);
}

TEST_CASE("partitions: a driver that cuts nothing has none, and a broker without the option lets everybody in") {
  {
    ControlFixture broker(parted());
    Console console(broker);
    CHECK(console.error("lspart") == "no server is ready: its devices are not known yet");
    CHECK(console.error("sm_partition add 0 1") == "no server is ready: its devices are not known yet");
    broker.executor().chunks = 0;
    broker.serve();
    CHECK(console.error("sm_partition add 0 1").starts_with("device 0 cannot be cut into chunks: its driver has no green contexts"));
  }
  PartedBroker broker(ControlFixture::quick_limits());
  proto::PartitionTold told;
  TestClient client = broker.ask(1, told);
  CHECK(told.is_static == 0);
  client.send(proto::Attach{});
  const auto opened = broker.executor().expect<message::SessionOpen>().message;
  CHECK(opened.chunks == 0);
  CHECK(broker.manager.find(opened.session)->sm_partition == 0);
}

TEST_CASE("partitions: all of them are handed over, and what cannot be is refused") {
  SmPartitions before;
  before.learn(std::vector<std::uint32_t>{10, 3});
  CHECK(before.add(0, 4, false, "") == 1);
  CHECK(before.add(1, 2, true, "large") == 2);
  CHECK(before.add(0, 2, false, "") == 3);
  before.erase(1);
  const auto handed_over = [](const SmPartitions& partitions, SmPartitions& after) {
    StateWriter writer;
    partitions.save(writer);
    std::string why;
    StateReader reader(writer.finish(), why);
    after.restore(reader);
    return reader.ok();
  };
  SmPartitions after;
  REQUIRE(handed_over(before, after));
  CHECK(after.chunks_of(0) == 10);
  CHECK(after.free_chunks(0) == before.free_chunks(0));
  REQUIRE(after.find(1, 2) != nullptr);
  CHECK(after.find(1, 2)->name == "large");
  CHECK(after.find(1, 2)->has_remainder());
  CHECK(after.add(1, 1, true, "") == 0);
  CHECK(after.find(0, 3)->chunks == before.find(0, 3)->chunks);
  CHECK(after.add(0, 1, false, "") == 4);  // and no number comes again
  const auto are_refused = [](std::uint64_t one, std::uint64_t other) {
    StateWriter writer;
    writer.number(2);
    for (unsigned device = 0; device < proto::kMaxDevices; ++device) writer.number(10);
    writer.number(2);
    for (const auto& [number, chunks] : {std::pair{1u, one}, {2u, other}}) {
      writer.number(number);
      writer.number(0);
      writer.number(chunks);
      writer.text("");
    }
    std::string why;
    StateReader reader(writer.finish(), why);
    SmPartitions partitions;
    partitions.restore(reader);
    return !reader.ok();
  };
  CHECK_FALSE(are_refused(0b01, 0b10 | proto::kRemainderBit));
  CHECK(are_refused(0b01, 0b11));  // with a chunk in common
  CHECK(are_refused(0b01 | proto::kRemainderBit, 0b10 | proto::kRemainderBit));
  CHECK(are_refused(0b01, proto::kRemainderBit));  // without a whole chunk
  CHECK(are_refused(0b01, 0b100'0000'0000));       // of one that there is not
}
