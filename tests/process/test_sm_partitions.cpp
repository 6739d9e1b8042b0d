// SPDX-License-Identifier: Apache-2.0
// Static partitions of the multiprocessors: clients of two of them never run on the same one, in whatever way they launch; a partition stays where it
// is over deaths and restarts; who names none gets no context. On the CPU driver %smid goes round a stream's multiprocessors; on a GPU it is where a
// block runs.
#include <signal.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/process/share.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

namespace {

constexpr const char* kVariable = "CUDA_MPS_SM_PARTITION";
constexpr const char* kKinds[] = {"null", "blocking", "free", "urgent", "chain", "local", "cooperative", "graph", "changed", "green"};

BrokerOptions parted(std::vector<std::string> more = {}) {
  BrokerOptions options;
  options.arguments = {"--static-partitioning"};
  options.arguments.insert(options.arguments.end(), more.begin(), more.end());
  return options;
}

Client start(const BrokerFixture& broker, const std::string& partition, std::map<std::string, std::string> environment = {}) {
  environment[kVariable] = partition;
  return start_with(broker, "share_client", environment);
}

// What its clients say in the variable.
std::string add(const BrokerFixture& broker, unsigned chunks) {
  const Outcome outcome = broker.ctl({"sm_partition", "add", "0", std::to_string(chunks)});
  INFO(outcome.explain());
  REQUIRE(outcome.ok());
  return outcome.output.substr(0, outcome.output.find('\n'));
}

std::string number_in(const std::string& partition) { return partition.substr(partition.find('/') + 1); }

// Multiprocessors of a chunk, and how many chunks are free.
struct Room {
  unsigned unit = 0;
  unsigned chunks = 0;
};

Room room_of(const BrokerFixture& broker) {
  Room room;
  REQUIRE(eventually(std::chrono::seconds(30), [&] {
    const Outcome outcome = broker.ctl({"lspart", "--format=csv,noheader"});  // device,UUID,partition,name,free chunks,used,free SMs,used,clients
    if (!outcome.ok()) return false;
    unsigned multiprocessors = 0;
    if (std::sscanf(outcome.output.c_str(), "0,%*[^,],,,%u,%*u,%u,", &room.chunks, &multiprocessors) != 2 || room.chunks == 0) return false;
    room.unit = multiprocessors / room.chunks;
    return true;
  }));
  return room;
}

void require_told(Client& client, unsigned multiprocessors) {
  CHECK(number(client, "count") == multiprocessors);
  CHECK(number(client, "affinity") == multiprocessors);
  CHECK(number(client, "resource") == multiprocessors);
}

// Every way to launch stays on the same multiprocessors, and uses them all.
std::set<unsigned> require_confined(Client& client, unsigned multiprocessors) {
  require_told(client, multiprocessors);
  const std::set<unsigned> own = where(client, "null");
  CHECK(own.size() == multiprocessors);
  for (const char* kind : kKinds) {
    INFO(kind);
    CHECK(std::ranges::includes(own, where(client, kind)));
  }
  return own;
}

void require_apart(const std::set<unsigned>& one, const std::set<unsigned>& other) {
  for (const unsigned multiprocessor : one) CHECK_FALSE(other.contains(multiprocessor));
}

}  // namespace

TEST_CASE("clients of two partitions share no multiprocessor, those of one share all, and no chunk is lost or given twice") {
  const BrokerFixture broker(parted());
  const Room room = room_of(broker);
  REQUIRE(room.chunks >= 4);
  const std::string small = add(broker, 1), large = add(broker, 2), rest = add(broker, room.chunks - 3);
  CHECK(broker.ctl({"sm_partition", "add", "0", "1"}).errors.find("has 0 chunks of") != std::string::npos);
  Client of_small = start(broker, small), of_large = start(broker, large), of_rest = start(broker, rest), another = start(broker, large);
  const std::set<unsigned> on_small = require_confined(of_small, room.unit);
  const std::set<unsigned> on_large = require_confined(of_large, 2 * room.unit);
  const std::set<unsigned> on_rest = require_confined(of_rest, (room.chunks - 3) * room.unit);
  require_apart(on_small, on_large);
  require_apart(on_small, on_rest);
  require_apart(on_large, on_rest);
  CHECK(require_confined(another, 2 * room.unit) == on_large);
  CHECK(of_small.ask("too_many").find("CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE") != std::string::npos);
  CHECK(of_small.program().errors().empty());
}

TEST_CASE("a partition stays where it is over its executor's death and over a restart of the broker") {
  const BrokerFixture broker(parted());
  const Room room = room_of(broker);
  const std::string gone = add(broker, 1), one = add(broker, 2), other = add(broker, 1);
  REQUIRE(broker.ctl({"sm_partition", "rm", "0", number_in(gone)}).ok());  // so that one is not at the beginning
  Client first = start(broker, one), second = start(broker, other);
  const std::set<unsigned> on_one = require_confined(first, 2 * room.unit), on_other = require_confined(second, room.unit);
  require_apart(on_one, on_other);
  const auto require_in_place = [&](Client& of_one, Client& of_other) {
    CHECK(require_confined(of_one, 2 * room.unit) == on_one);
    CHECK(require_confined(of_other, room.unit) == on_other);
  };
  const std::vector<pid_t> before = broker.servers();
  REQUIRE(before.size() == 1);
  REQUIRE(::kill(before.front(), SIGKILL) == 0);
  REQUIRE(eventually(std::chrono::seconds(30), [&] { return !broker.servers().empty() && broker.servers() != before; }));
  require_in_place(first, second);
  const std::string listed = broker.ctl({"lspart", "--csv"}).output;
  for (const std::vector<std::string>& words : {std::vector<std::string>{"restart", "executors"}, std::vector<std::string>{"restart"}}) {
    const Outcome outcome = broker.ctl(words);
    INFO(outcome.explain());
    REQUIRE(outcome.ok());
    CHECK(broker.ctl({"lspart", "--csv"}).output == listed);
    require_in_place(first, second);
  }
  Client third = start(broker, other);  // and a newcomer finds it
  require_in_place(first, third);
  CHECK(number_in(add(broker, 1)) == "P0000004");  // no number comes again
}

TEST_CASE("a partition with the remainder has it alone, also behind its executor's death and a restart") {
  BrokerOptions options = parted();
  options.environment = {{"MPSSHIM_CPU_UNEVEN", "1"}};  // the CPU driver leaves a chunk's worth over, too
  const BrokerFixture broker(options);
  const Room room = room_of(broker);
  unsigned all = 0;
  const std::string device = broker.ctl({"device", "list", "--format=csv,noheader"}).output;
  REQUIRE(std::sscanf(device.c_str(), "0,%*[^,],%*[^,],%*[^,],%u,", &all) == 1);
  const unsigned remainder = all - room.chunks * room.unit;
  INFO(device);
  if (remainder == 0) MPSSHIM_SKIP("this device is cut into chunks without a remainder");
  const Outcome made = broker.ctl({"sm-partition", "create", "odd", "--device", "0", "--chunks", "1", "--include-remainder"});
  INFO(made.explain());
  REQUIRE(made.ok());
  CHECK(made.output.find("(sm-count=" + std::to_string(room.unit + remainder) + ")") != std::string::npos);
  const std::string rest = add(broker, room.chunks - 1);
  Client of_odd = start(broker, "0/P0000001"), of_rest = start(broker, rest);
  const std::set<unsigned> on_odd = require_confined(of_odd, room.unit + remainder);
  require_apart(on_odd, require_confined(of_rest, (room.chunks - 1) * room.unit));
  const std::vector<pid_t> before = broker.servers();
  REQUIRE(before.size() == 1);
  REQUIRE(::kill(before.front(), SIGKILL) == 0);
  REQUIRE(eventually(std::chrono::seconds(30), [&] { return !broker.servers().empty() && broker.servers() != before; }));
  CHECK(require_confined(of_odd, room.unit + remainder) == on_odd);
  REQUIRE(broker.ctl({"restart"}).ok());
  CHECK(require_confined(of_odd, room.unit + remainder) == on_odd);
  Client another = start(broker, "0/P0000001");
  CHECK(require_confined(another, room.unit + remainder) == on_odd);
}

TEST_CASE("a partition with clients is not taken away, and its chunks are free again once they have gone") {
  const BrokerFixture broker(parted());
  const Room room = room_of(broker);
  const std::string all = add(broker, room.chunks);
  {
    Client client = start(broker, all);
    const Outcome refused = broker.ctl({"sm_partition", "rm", "0", number_in(all)});
    CHECK(refused.exit_code == 1);
    CHECK(refused.errors == "mpsctl: partition " + number_in(all) + " has 1 client: see ps -l\n");
    CHECK(broker.ctl({"ps", "-l"}).output.find(number_in(all)) != std::string::npos);
    CHECK(broker.ctl({"lspart"}).output.find("Yes") != std::string::npos);
  }
  REQUIRE(eventually(std::chrono::seconds(30), [&] { return broker.ctl({"sm_partition", "rm", "0", number_in(all)}).ok(); }));
  (void)add(broker, room.chunks);
}

TEST_CASE("who names no partition that there is gets no context, and one line that says so") {
  const BrokerFixture broker(parted());
  const Room room = room_of(broker);
  const std::string partition = add(broker, 1);
  const std::string gpu = partition.substr(0, partition.find('/'));
  for (const std::string& wrong : {std::string(), std::string("25"), gpu, gpu + "/P0000009", gpu + "/x", "7/" + number_in(partition)}) {
    ProgramOptions options;
    options.environment = {{kVariable, wrong}};
    const Outcome outcome = broker.run("process1", options);
    INFO(wrong << ": " << outcome.explain());
    CHECK(outcome.exit_code == 1);
    CHECK(outcome.errors.find("cudaErrorDevicesUnavailable") != std::string::npos);  // what the runtime makes of it
    CHECK(outcome.errors.find("CUDA_MPS_SM_PARTITION (\"" + wrong + "\") names none that there is on this device") != std::string::npos);
    CHECK(outcome.errors.find("mpsshim[") == outcome.errors.rfind("mpsshim["));
  }
  ProgramOptions of_the_driver_api;
  of_the_driver_api.converses = true;
  Client refused(broker.start("share_client", of_the_driver_api), Client::Attached::not_yet);
  const std::string error = refused.answer();
  INFO(error);
  CHECK(error.find("CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION") != std::string::npos);  // as the manual says
  for (const std::string& well : {partition, gpu.substr(0, 12) + "/" + number_in(partition), "0/" + number_in(partition)}) {
    INFO(well);
    Client client = start(broker, well);
    require_told(client, room.unit);
    CHECK(client.program().errors().empty());
  }
  Client with_percentage = start(broker, partition, {{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "1"}});
  require_told(with_percentage, room.unit);
  CHECK(with_percentage.program().errors().find("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE is set and without effect: this broker has static partitions") !=
        std::string::npos);
  Client with_more = start(broker, partition + ",7/P0000001");
  CHECK(with_more.program().errors().find("\"7/P0000001\" is no partition") != std::string::npos);
}

TEST_CASE("a broker without the option has no partitions: commands and clients are told how it would have") {
  const BrokerFixture broker;
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"lspart"}, {"sm_partition", "add", "0", "1"}, {"sm-partition", "create", "x", "--device", "0", "--chunks", "1"}}) {
    const Outcome outcome = broker.ctl(words);
    CHECK(outcome.exit_code == 1);
    CHECK(outcome.errors == "mpsctl: this broker has no static partitions: start it with --static-partitioning (-S)\n");
  }
  Client client = start(broker, "0/P0000001");
  const std::string errors = client.program().errors();
  CHECK(errors.find("CUDA_MPS_SM_PARTITION is set and without effect: this broker has no static partitions") != std::string::npos);
  CHECK(std::ranges::count(errors, '\n') == 1);
  CHECK(number(client, "count") == number(client, "resource"));
}

TEST_CASE("clients of partitions beside an endless kernel of another one are served, by another executor, at the same place") {
  const BrokerFixture broker(parted({"--executors", "2"}));
  const Room room = room_of(broker);
  const std::string one = add(broker, 1), other = add(broker, 1);
  Client waits = start(broker, other);
  const std::set<unsigned> on_other = require_confined(waits, room.unit);
  Client endless = start(broker, one);
  REQUIRE(endless.ask("spin") == "ok");
  Client late = start(broker, other);
  CHECK(require_confined(late, room.unit) == on_other);
}
