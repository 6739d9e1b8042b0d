// SPDX-License-Identifier: Apache-2.0
// The file of mpsbroker -a: what it may say, and each mistake with its line.
#include <filesystem>
#include <fstream>
#include <string>

#include <unistd.h>

#include "broker/control/server/commands.hpp"
#include "broker/control/server/configuration.hpp"
#include "tests/unit/control/support/console.hpp"

using namespace mpsshim;
using namespace mpsshim::broker;
using namespace mpsshim::broker::control;
using namespace mpsshim::broker::control::testing;

namespace {

struct File {
  explicit File(const std::string& text) { std::ofstream(path, std::ios::binary) << text; }
  ~File() { std::filesystem::remove(path); }
  const std::string path = "/tmp/mpsshim-test-configuration." + std::to_string(getpid());
};

// What is wrong with it; "": nothing.
std::string mistake_in(const std::string& text, SessionLimits& limits) {
  const File file(text);
  std::string why;
  const bool is_applied = apply_configuration(file.path, geteuid(), limits, why);
  CHECK(is_applied == why.empty());
  return why.starts_with(file.path) ? why.substr(file.path.size()) : why;
}

bool is_built_with_toml() {
  SessionLimits limits;
  return mistake_in("", limits).empty();
}

}  // namespace

TEST_CASE("configuration: settings of servers and namespaces come before what the environment says") {
  if (!is_built_with_toml()) MPSSHIM_SKIP("this build has no toml++: install libtomlplusplus-dev");
  SessionLimits limits;
  limits.memory_limit_text = "0=1G";
  limits.client_priority_text = "1";
  const std::string uid = std::to_string(geteuid());
  CHECK(mistake_in("schema_version = \"1.0\"\n[servers.training]\npinned_memory_limit = \"10G\"\nactive_thread_percentage = \"50\"\nuid = " + uid +
                       "\n[servers.training.namespaces.high_priority]\npinned_memory_limit = \"5G\"\npinned_memory_request = \"1G\"\n"
                       "active_thread_percentage = 25\n[servers.training.namespaces.batch]\nclient_priority = 1\n",
                   limits) == "");
  CHECK(limits.memory_limit_text == "all=10G");
  CHECK(limits.thread_percentage_text == "50");
  CHECK(limits.client_priority_text == "1");
  REQUIRE(limits.namespaces.size() == 2);
  CHECK(limits.namespaces[0].first == "batch");
  CHECK(limits.namespaces[0].second.client_priority == 1u);
  CHECK(limits.namespaces[1].first == "high_priority");
  CHECK(limits.namespaces[1].second.memory_limit_bytes == 5ull << 30);
  CHECK(limits.namespaces[1].second.memory_request_bytes == 1ull << 30);
  CHECK(limits.namespaces[1].second.thread_percentage == 2'500);
}

TEST_CASE("configuration: a mistake is told with its line, and nothing is taken") {
  if (!is_built_with_toml()) MPSSHIM_SKIP("this build has no toml++: install libtomlplusplus-dev");
  const struct {
    const char* text;
    const char* told;
  } cases[] = {
      {"a = ", ":1: it is no TOML: "},
      {"schema_version = \"2.0\"", ":1: \"schema_version\": it is to be \"1.0\""},
      {"\n[features.memacct]\nenabled = true", ":2: \"features\": no such key is obeyed: schema_version, servers"},
      {"servers = 1", ":1: \"servers\": it is to be a table"},
      {"[servers.a]\n[servers.b]\n", ":2: \"b\": a broker's servers have no names"},
      {"[servers.a]\nuid = 77777", ":2: \"uid\": this broker's servers are of user "},
      {"[servers.a]\nallowed_devices = \"GPU-1\"", ":2: \"allowed_devices\": no such key is obeyed: pinned_memory_limit, "},
      {"[servers.a]\npinned_memory_limit = \"lots\"", ":2: \"pinned_memory_limit\": it is no size: "},
      {"[servers.a]\nactive_thread_percentage = 101", ":2: \"active_thread_percentage\": it is no percentage: "},
      {"[servers.a]\nactive_thread_percentage = true", ":2: \"active_thread_percentage\": it is no percentage: "},
      {"[servers.a]\nclient_priority = \"4\"", ":2: \"client_priority\": it is no priority: "},
      {"[servers.a]\ndevices = 1", ":2: \"devices\": it is to be an array of tables"},
      {"[servers.a]\ndevices = [1]", ":2: \"devices\": it is to be a table"},
      {"[[servers.a.devices]]\nname = \"x\"", ":1: \"uuid\": a device needs one"},
      {"[[servers.a.devices]]\nuuid = \"0\"\nname = \"x\"", ":3: \"name\": no such key is obeyed: uuid, sm_partitions"},
      {"[[servers.a.devices]]\nuuid = 0\n[[servers.a.devices.sm_partitions]]\nname = \"x\"\nchunks = 1",
       ":3: \"sm_partitions\": there are partitions with --static-partitioning alone"},
      {"[servers.a.namespaces.x]\nactive_thread_percentage_request = \"0\"", ":2: \"active_thread_percentage_request\": it is no percentage"},
      {"[servers.a.namespaces.x]\nown_executor = \"yes\"", ":2: \"own_executor\": it is true or false"},
      {"[servers.a.namespaces.default]", ":1: \"default\": it has no settings of its own"},
      {"[servers.a.namespaces.Upper]", ":1: \"Upper\": a namespace's name has lowercase letters"},
      {"[servers.a.namespaces.x]\ncgroup = \"/\"", ":2: \"cgroup\": no such key is obeyed: pinned_memory_limit, "},
      {"[servers.a.namespaces.x]\npinned_memory_limit = \"1G\"\npinned_memory_request = \"2G\"", ":1: \"pinned_memory_request\": it is more than "},
      {"[servers.a]\n\"\\u001b[31m\" = 1", ":2: \"\\x1b[31m\": no such key is obeyed: "},
  };
  for (const auto& tried : cases) {
    INFO(tried.text);
    SessionLimits limits;
    limits.client_priority_text = "1";
    const std::string why = mistake_in(tried.text, limits);
    INFO(why);
    CHECK(why.starts_with(tried.told));
    CHECK(why.find('\n') == std::string::npos);
    CHECK(limits.client_priority_text == "1");
    CHECK(limits.namespaces.empty());
  }
  SessionLimits limits;
  std::string why;
  CHECK_FALSE(apply_configuration("/nowhere/at/all.toml", geteuid(), limits, why));
  CHECK(why == "/nowhere/at/all.toml cannot be read (No such file or directory): name a file of TOML with -a");
}

TEST_CASE("configuration: a broker begins with its namespaces, and keeps nothing that no device has") {
  SessionLimits limits = ControlFixture::quick_limits();
  limits.namespaces = {{"kept", {.memory_limit_bytes = 100u << 20, .memory_request_bytes = 50u << 20, .client_priority = {}}}};
  ControlFixture broker(limits);
  broker.serve();
  Console console(broker);
  CHECK(console.ok("namespace list --csv").find("kept," + std::to_string(geteuid()) + ",0,0 0,52428800,104857600,100.0,") != std::string::npos);
  limits.namespaces = {{"kept", {.memory_request_bytes = 2ull << 40, .client_priority = {}}},
                       {"other", {.memory_request_bytes = 1ull << 20, .client_priority = {}}}};
  ControlFixture greedy(limits);
  greedy.serve();
  Console its(greedy);
  CHECK(its.ok("namespace list --csv").find("kept," + std::to_string(geteuid()) + ",0,0 0,,,100.0,") != std::string::npos);
  CHECK(its.ok("namespace list --csv").find("other," + std::to_string(geteuid()) + ",0,0 0,,,100.0,") != std::string::npos);
}

TEST_CASE("configuration: a broker begins with the partitions of the file, in its order, as far as devices have them") {
  if (!is_built_with_toml()) MPSSHIM_SKIP("this build has no toml++: install libtomlplusplus-dev");
  const std::string head = "[[servers.a.devices]]\nuuid = \"0\"\n";
  const auto partition = [](const std::string& settings) { return "[[servers.a.devices.sm_partitions]]\n" + settings + "\n"; };
  const struct {
    std::string text;
    const char* told;
  } cases[] = {
      {head + partition("name = \"x\""), ":3: \"sm_partitions\": a partition needs a name and chunks"},
      {head + partition("chunks = 1"), ":3: \"sm_partitions\": a partition needs a name and chunks"},
      {head + partition("name = \"X\"\nchunks = 1"), ":4: \"name\": a partition's name has lowercase letters"},
      {head + partition("name = \"x\"\nchunks = 0"), ":5: \"chunks\": it is 1 to 63"},
      {head + partition("name = \"x\"\nchunks = 64"), ":5: \"chunks\": it is 1 to 63"},
      {head + partition("name = \"x\"\nchunks = \"1\""), ":5: \"chunks\": it is 1 to 63"},
      {head + partition("name = \"x\"\nchunks = 1\ninclude_remainder = 1"), ":6: \"include_remainder\": it is true or false"},
      {head + partition("name = \"x\"\nchunks = 1\nserver = true"), ":6: \"server\": no such key is obeyed: name, chunks, include_remainder"},
      {head + partition("name = \"x\"\nchunks = 1\nshareable = true"), ":6: \"shareable\": no such key is obeyed: name, chunks"},
      {head + partition("name = \"x\"\nchunks = 1") + partition("name = \"x\"\nchunks = 2"), ":6: \"x\": there is a partition of that name already"},
      {head + "sm_partitions = 5", ":3: \"sm_partitions\": it is to be an array of tables"},
  };
  for (const auto& tried : cases) {
    INFO(tried.text);
    SessionLimits limits;
    limits.has_static_partitions = true;
    const std::string why = mistake_in(tried.text, limits);
    INFO(why);
    CHECK(why.starts_with(tried.told));
    CHECK(limits.partitions.empty());
  }
  SessionLimits limits = ControlFixture::quick_limits();
  limits.has_static_partitions = true;
  CHECK(mistake_in(head + partition("name = \"large\"\nchunks = 6\ninclude_remainder = false") + partition("name = \"none\"\nchunks = 5") +
                       partition("name = \"small\"\nchunks = 2\ninclude_remainder = true") +
                       partition("name = \"late\"\nchunks = 1\ninclude_remainder = true") + "[[servers.a.devices]]\nuuid = \"GPU-9\"\n" +
                       partition("name = \"away\"\nchunks = 1") + "[servers.a.namespaces.apart]\nown_executor = true\n",
                   limits) == "");
  ControlFixture broker(limits);
  Console console(broker);
  broker.executor().multiprocessors = 21;  // ten chunks of two, and one
  broker.serve();
  const std::string gpu = "GPU-00000000-0000-0000-0000-000000000000";
  CHECK(console.ok("sm-partition list --device 0 --format=csv,noheader") ==
        "0," + gpu + ",large,6,12,created,P0000001,0\n0," + gpu + ",small,2,5,created,P0000002,0\n0," + gpu + ",,2,4,unallocated,,\n");
  CHECK(console.ok("namespace list --csv").find("apart," + std::to_string(geteuid()) + ",0,0 0,,,100.0,,,1,\n") != std::string::npos);
}
