// SPDX-License-Identifier: Apache-2.0
// What questions answer, in each form. The keys of JSON are promises (docs/service.md, "JSON"): one that goes away, or means something else, makes
// another version.
#include <string>

#include <unistd.h>

#include "tests/unit/control/support/console.hpp"

using namespace mpsshim;
using namespace mpsshim::broker;
using namespace mpsshim::broker::control;
using namespace mpsshim::broker::control::testing;

namespace {

// Takes `value` out of what follows `key`, for numbers that nobody knows before.
std::string without(std::string text, const std::string& key) {
  const std::size_t at = text.find("\"" + key + "\":");
  if (at == std::string::npos) return text;
  const std::size_t begin = at + key.size() + 3;
  std::size_t end = begin;
  if (text[begin] == '"') {  // whose contents nobody knows either
    for (++end; text[end] != '"'; ++end) end += text[end] == '\\' ? 1 : 0;
  }
  return text.replace(begin, text.find_first_of(",}", end) - begin, "?");
}

std::string pid() { return std::to_string(getpid()); }

// One that is there: a group, a field.
std::string word_for(const ArgumentSpec& argument, const std::string& server) {
  if (argument.kind == ArgumentKind::server) return server;
  if (argument.kind == ArgumentKind::group) return "training";
  const auto fields = fields_of(argument.kind);
  return fields.empty() ? "0" : std::string(fields.back());
}

}  // namespace

TEST_CASE("answers: lists and states as JSON") {
  ControlFixture broker;
  Console console(broker);
  const std::string server = std::to_string(broker.executor().pid);
  CHECK(console.ok("get_server_status --json " + server) ==
        R"({"schema":"mpsshim.get_server_status","version":1,"server":)" + server + R"(,"status":"INITIALIZING"})" + "\n");
  broker.serve();
  const std::string none = R"({"schema":"mpsshim.get_client_list","version":1,"server":)" + server + R"(,"clients":[]})" + "\n";
  CHECK(console.ok("get_client_list " + server + " --json") == none);
  const TestClient client = broker.attach();
  CHECK(console.ok("get_server_list --json") == R"({"schema":"mpsshim.get_server_list","version":1,"servers":[)" + server + "]}\n");
  CHECK(console.ok("get_server_status --format=json " + server) ==
        R"({"schema":"mpsshim.get_server_status","version":1,"server":)" + server + R"(,"status":"ACTIVE"})" + "\n");
  CHECK(console.ok("get_client_list --format json " + server) ==
        R"({"schema":"mpsshim.get_client_list","version":1,"server":)" + server + R"(,"clients":[)" + pid() + "]}\n");
  const std::string uuid = R"("GPU-00000000-0000-0000-0000-000000000000")";
  CHECK(console.ok("get_device_client_list --json") == R"({"schema":"mpsshim.get_device_client_list","version":1,"devices":[{"device":0,"uuid":)" +
                                                           uuid + R"(,"clients":[)" + pid() + R"(]},{"device":1,"uuid":)" + uuid +
                                                           R"(,"clients":[]}]})" + "\n");
  const std::string limit = R"({"schema":"mpsshim.get_default_device_pinned_mem_limit","version":1,"device":0,"uuid":)" + uuid;
  CHECK(console.ok("get_default_device_pinned_mem_limit --json 0") == limit + R"(,"limit_bytes":null})" + "\n");
  console.ok("set_default_device_pinned_mem_limit 0 900M");
  CHECK(console.ok("get_default_device_pinned_mem_limit 0 --json") == limit + R"(,"limit_bytes":943718400})" + "\n");
  console.ok("set_device_pinned_mem_limit " + server + " 0 1G");
  CHECK(console.ok("get_device_pinned_mem_limit --json " + server + " 0") ==
        R"({"schema":"mpsshim.get_device_pinned_mem_limit","version":1,"server":)" + server + R"(,"device":0,"uuid":)" + uuid +
            R"(,"limit_bytes":1073741824})" + "\n");
  CHECK(console.ok("get_device_pinned_mem_limit --format=text " + server + " 0") == "1G\n");
}

TEST_CASE("answers: percentages of the multiprocessors") {
  ControlFixture broker;
  Console console(broker);
  console.ok("set_default_active_thread_percentage 80");  // before any server is ready
  broker.serve();
  const std::string server = std::to_string(broker.executor().pid);
  const std::string of_default = R"({"schema":"mpsshim.get_default_active_thread_percentage","version":1,"percentage":)";
  const std::string of_server = R"({"schema":"mpsshim.get_active_thread_percentage","version":1,"server":)" + server + R"(,"percentage":)";
  CHECK(console.ok("get_default_active_thread_percentage") == "80.0\n");
  CHECK(console.ok("get_active_thread_percentage " + server) == "80.0\n");
  CHECK(console.ok("get_default_active_thread_percentage --json") == of_default + "80.0}\n");
  const TestClient client = broker.attach();  // the server takes the default
  CHECK(console.ok("set_default_active_thread_percentage 12.25") == "");
  CHECK(console.ok("get_default_active_thread_percentage --format=text") == "12.25\n");
  CHECK(console.ok("get_active_thread_percentage " + server) == "80.0\n");
  CHECK(console.ok("set_active_thread_percentage " + server + " 33.3") == "");
  CHECK(console.ok("get_active_thread_percentage --json " + server) == of_server + "33.3}\n");
  CHECK(console.ok("get_default_active_thread_percentage") == "12.25\n");
}

TEST_CASE("answers: servers in version 3's words") {
  ControlFixture broker;
  broker.serve();
  Console console(broker);
  const std::string server = std::to_string(broker.executor().pid);
  CHECK(console.ok("server list --csv") == console.ok("servers --csv"));
  CHECK(console.ok("server list --json").starts_with(R"({"schema":"mpsshim.server_list","version":1,"servers":[{"server":)" + server + ","));
  CHECK(console.ok("server create --uid " + std::to_string(geteuid())) == "");
  CHECK(console.ok("server set " + server + " --active-thread-percentage 25 --pinned-memory-limit 300M --device 0") == "");
  CHECK(console.ok("get_active_thread_percentage " + server) == "25.0\n");
  CHECK(console.ok("get_device_pinned_mem_limit " + server + " 0") == "300M\n");
  CHECK(console.ok("get_default_active_thread_percentage") == "100.0\n");
  CHECK(console.ok("server get " + server + " active-thread-percentage") == "25.0\n");
  CHECK(console.ok("server get " + server + " pinned-memory-limit") == "300M\n");
  CHECK(console.ok("server get " + server + " server") == server + "\n");
  CHECK(console.ok("server get " + server + " uid") == std::to_string(geteuid()) + "\n");
  CHECK(console.ok("server get " + server + " device") == "0\n");
  CHECK(console.ok("server get " + server + " clients") == "0\n");
  CHECK(console.ok("server get " + server + " status") == console.ok("get_server_status " + server));
  CHECK(console.ok("server get " + server + " pid") == server + "\n");
  CHECK(console.ok("server set " + server + " --pinned-memory-limit none") == "");
  CHECK(console.ok("server get " + server + " pinned-memory-limit") == "no limit\n");
  CHECK(console.ok("get_device_pinned_mem_limit " + server + " 0") == "no limit\n");
  CHECK(console.ok("get_active_thread_percentage " + server) == "25.0\n");
}

TEST_CASE("answers: clients' priority") {
  ControlFixture broker;
  broker.serve();
  Console console(broker);
  const std::string json = R"({"schema":"mpsshim.get_default_client_priority","version":1,"priority":)";
  CHECK(console.ok("get_default_client_priority") == "0\n");
  CHECK(console.ok("set_default_client_priority 1") == "");
  CHECK(console.ok("get_default_client_priority") == "1\n");
  CHECK(console.ok("get_default_client_priority --json") == json + "1}\n");
  CHECK(console.ok("set_default_client_priority") == "");  // the manual's default
  CHECK(console.ok("get_default_client_priority --json") == json + "0}\n");
}

TEST_CASE("answers: as many priorities of clients as the broker has") {
  SessionLimits limits = ControlFixture::quick_limits();
  limits.client_priorities = 3;
  ControlFixture broker(limits);
  broker.serve();
  Console console(broker);
  CHECK(console.ok("set_default_client_priority 2") == "");
  CHECK(console.error("set_default_client_priority 3") == "there are priorities 0 to 2 of clients, and no 3: see mpsbroker --client-priorities");
  CHECK(console.ok("get_default_client_priority") == "2\n");
  const TestClient client = broker.attach();
  CHECK(console.ok("client get " + pid() + " client-priority") == "2\n");
  CHECK(console.error("client set " + pid() + " --client-priority 3").starts_with("there are priorities 0 to 2 of clients"));
}

TEST_CASE("answers: no priority is set on a device that has one alone") {
  ControlFixture broker;
  broker.executor().greatest_priority = 0;
  broker.serve();
  Console console(broker);
  CHECK(console.error("set_default_client_priority 1") == "device 0 has one priority of streams only, so no client can come before another");
  CHECK(console.ok("set_default_client_priority 0") == "");
  CHECK(console.ok("get_default_client_priority") == "0\n");
}

TEST_CASE("answers: no percentage is set that the driver cannot enforce") {
  ControlFixture broker;
  broker.executor().driver_version = 12'030;
  broker.serve();
  Console console(broker);
  const std::string server = std::to_string(broker.executor().pid);
  const std::string told = "the driver (CUDA 12.3) has no green contexts, and so no shares of multiprocessors: CUDA 12.4 is the first that has";
  CHECK(console.error("set_default_active_thread_percentage 50") == told);
  CHECK(console.error("set_active_thread_percentage " + server + " 50") == told);
  TestClient client = broker.connect();
  REQUIRE(client.hello().header.status == CUDA_SUCCESS);
  proto::ProvisionAsk ask;
  ask.thread_percentage = 2'500;
  CHECK(client.ask<proto::ProvisionTold>(ask).thread_percentage[0] == proto::kWholePercentage);
  CHECK(console.ok("set_default_active_thread_percentage 100") == "");
  CHECK(console.ok("get_default_active_thread_percentage") == "100.0\n");
  CHECK(console.ok("get_active_thread_percentage " + server) == "100.0\n");
}

TEST_CASE("answers: a percentage that was set before the driver was known to be too old is left out") {
  ControlFixture broker;
  Console console(broker);
  console.ok("set_default_active_thread_percentage 50");
  broker.executor().driver_version = 12'030;
  broker.serve();
  CHECK(console.ok("get_default_active_thread_percentage") == "100.0\n");
}

TEST_CASE("answers: clients, servers and users, in all forms") {
  ControlFixture broker;
  broker.serve();
  Console console(broker);
  const std::string server = std::to_string(broker.executor().pid), uid = std::to_string(geteuid());
  CHECK(console.ok("ps --json") == "{\"schema\":\"mpsshim.ps\",\"version\":1,\"clients\":[]}\n");
  const std::string heading =
      "pid,session,client,server,server_pid,device,uuid,pid_namespace,state,age_ms,memory_bytes,memory_limit_bytes,"
      "active_thread_percentage,sm_partition,client_priority,group,gpu_time_us,"
      "launches,waits,wait_time_us,in_flight,uid,pod,container,command\n";
  CHECK(console.ok("ps --csv") == heading);
  const TestClient client = broker.attach();
  const std::string uuid = "GPU-00000000-0000-0000-0000-000000000000";
  std::string clients = console.ok("ps --json");
  for (const char* key : {"session", "client", "pid_namespace", "age_ms", "pod", "container", "command"}) clients = without(clients, key);
  CHECK(
      clients ==
      R"({"schema":"mpsshim.ps","version":1,"clients":[{"pid":)" + pid() + R"(,"session":?,"client":?,"server":)" + server + R"(,"server_pid":)" +
          server + R"(,"device":0,"uuid":")" + uuid +
          R"(","pid_namespace":?,"state":"active","age_ms":?,"memory_bytes":0,"memory_limit_bytes":null,)" +
          R"("active_thread_percentage":100.0,"sm_partition":null,"client_priority":0,"group":null,"gpu_time_us":0,"launches":0,"waits":0,"wait_time_us":0,"in_flight":0,"uid":)" +
          uid + R"(,"pod":?,"container":?,"command":?}]})" + "\n");
  CHECK(console.ok("ps --csv").starts_with(heading + pid() + ","));
  CHECK(console.ok("ps --csv").find("," + server + "," + server + ",0," + uuid + ",") != std::string::npos);
  CHECK(console.ok("ps --format=csv,noheader").starts_with(pid() + ","));
  CHECK(console.ok("ps --format csv").starts_with(heading + pid() + ","));
  CHECK(console.ok("ps -p " + server + " --csv").starts_with(heading + pid() + ","));
  CHECK(console.ok("servers --json") == R"({"schema":"mpsshim.servers","version":1,"servers":[{"server":)" + server + R"(,"pid":)" + server +
                                            R"(,"device":0,"uuid":")" + uuid + R"(","uid":)" + uid +
                                            R"(,"status":"ACTIVE","clients":1,"lives":1,"driver":"libtest.so","has_begun":1}]})" + "\n");
  CHECK(console.ok("servers --csv") == "server,pid,device,uuid,uid,status,clients,lives,driver,has_begun\n" + server + "," + server + ",0," + uuid +
                                           "," + uid + ",ACTIVE,1,1,libtest.so,1\n");
  std::string users = console.ok("users --json");
  for (const char* key : {"sessions_limit", "servers_limit", "host_bytes", "host_limit_bytes"}) users = without(users, key);
  CHECK(users == R"({"schema":"mpsshim.users","version":1,"users":[{"uid":)" + uid +
                     R"(,"sessions":1,"sessions_limit":?,"servers":1,"servers_limit":?,"device_bytes":[],"device_limit_bytes":null,"host_bytes":?,)" +
                     R"("host_limit_bytes":?}]})" + "\n");
  CHECK(console.ok("users --csv")
            .starts_with("uid,sessions,sessions_limit,servers,servers_limit,device_bytes,device_limit_bytes,host_bytes,host_limit_bytes\n"));
}

TEST_CASE("answers: in the words of version 3") {
  ControlFixture broker;
  broker.serve();
  Console console(broker);
  const std::string server = std::to_string(broker.executor().pid);
  CHECK(console.ok("client list --all").starts_with("PID       SERVER    DEVICE  NAMESPACE         COMMAND\n"));
  CHECK(console.ok("client list --format=csv,noheader") == "");
  const TestClient client = broker.attach();
  CHECK(console.ok("client list --server " + server + " --format=csv,noheader").starts_with(pid() + "," + server + ",0,default,"));
  CHECK(console.ok("client list --format=table,noheader").starts_with(pid() + " "));
  CHECK(console.ok("client get " + pid() + " server") == server + "\n");
  CHECK(console.ok("client get " + pid() + " maws-ns") == "default\n");
  CHECK(console.ok("client get " + pid() + " active-thread-percentage") == "100.0\n");
  CHECK(console.ok("client get " + pid() + " pinned-memory-limit") == "no limit\n");
  const std::string uuid = "GPU-00000000-0000-0000-0000-000000000000";
  CHECK(console.ok("device list --format=csv") == "ordinal,pci_id,uuid,name,total_sms,total_chunks\n0,," + uuid + ",,0,10\n1,," + uuid + ",,0,10\n");
}

TEST_CASE("answers: devices") {
  ControlFixture broker;
  broker.serve();
  Console console(broker);
  const std::string table = console.ok("device_query");
  CHECK(table.starts_with("DEVICE  PCI "));
  CHECK(std::count(table.begin(), table.end(), '\n') == 3);
  const std::string heading = "device,pci_bus_id,uuid,memory_bytes,multiprocessors,compute_capability,name\n";
  const std::string row = console.ok("device_query --format=csv,noheader");
  CHECK(console.ok("device_query --csv") == heading + row);
  CHECK(row.starts_with("0,"));
  const std::string json = console.ok("device_query --json");
  for (const char* key : {"device", "pci_bus_id", "uuid", "memory_bytes", "multiprocessors", "compute_capability", "name"}) {
    CHECK(json.find('"' + std::string(key) + "\":") != std::string::npos);
  }
}

TEST_CASE("answers: every question of the table is answered, and as JSON where the table says so") {
  SessionLimits limits = ControlFixture::quick_limits();
  limits.has_static_partitions = true;
  ControlFixture broker(limits);
  broker.serve();
  Console console(broker);
  const std::string server = std::to_string(broker.executor().pid);
  console.ok("namespace create training");
  std::size_t documents = 0;
  for (const CommandSpec& command : command_table()) {
    if (command.is_local || command.is_action || command.name == "help" || command.name == "hold") continue;
    if (command.name == "client get") continue;  // there is no client: below
    INFO(command.name);
    std::string line = std::string(command.name) + " --json";
    for (const ArgumentSpec& argument : command.arguments) line += " " + word_for(argument, server);
    const std::string json = console.ok(line);
    std::string schema(command.name);
    std::ranges::replace(schema, ' ', '_');
    CHECK(json.starts_with("{\"schema\":\"mpsshim." + schema + "\",\"version\":1,"));
    CHECK(json.ends_with("}\n"));
    CHECK(std::count(json.begin(), json.end(), '\n') == 1);
    ++documents;
  }
  CHECK(documents == 21);
  CHECK(console.ok("help").find("ps [-l] [-p PID] [--json | --csv]\n") != std::string::npos);
}

TEST_CASE("answers: a field of a client, a server and a group, with whose it is") {
  ControlFixture broker;
  broker.serve();
  Console console(broker);
  const std::string server = std::to_string(broker.executor().pid), uid = std::to_string(geteuid());
  console.ok("namespace create training");
  console.ok("namespace set training --pinned-memory-request 1G");
  const TestClient client = broker.attach();
  const std::string get = "client get " + pid() + " ",
                    begin = R"({"schema":"mpsshim.client_get","version":1,"clients":[{"pid":)" + pid() + R"(,"device":0)";
  CHECK(console.ok(get + "active-thread-percentage --json") == begin + R"(,"active_thread_percentage":100.0}]})" + "\n");
  CHECK(console.ok(get + "pinned-memory-limit --json") == begin + R"(,"pinned_memory_limit_bytes":null}]})" + "\n");
  CHECK(console.ok(get + "server --json") == begin + R"(,"server":)" + server + "}]}\n");
  CHECK(console.ok(get + "maws-ns --json") == begin + R"(,"maws_ns":"default"}]})" + "\n");
  CHECK(console.ok(get + "sm-partition --json") == begin + R"(,"sm_partition":null}]})" + "\n");
  CHECK(console.ok(get + "sm-partition") == "-\n");
  CHECK(console.ok(get + "pid --json") == begin + "}]}\n");
  CHECK(console.ok(get + "pid --format=csv,noheader") == pid() + ",0\n");
  CHECK(console.ok(get + "client-priority --csv") == "pid,device,client_priority\n" + pid() + ",0,0\n");
  console.ok("server set " + server + " --pinned-memory-limit 300M");
  CHECK(console.ok("server get " + server + " pinned-memory-limit --json") ==
        R"({"schema":"mpsshim.server_get","version":1,"servers":[{"server":)" + server + R"(,"pinned_memory_limit_bytes":314572800}]})" + "\n");
  const std::string group = R"({"schema":"mpsshim.namespace_get","version":1,"namespaces":[{"name":"training","uid":)" + uid;
  CHECK(console.ok("namespace get training pinned-memory-request --json") == group + R"(,"pinned_memory_request_bytes":1073741824}]})" + "\n");
  CHECK(console.ok("namespace get training active-thread-percentage-request --json") ==
        group + R"(,"active_thread_percentage_request":null}]})" + "\n");
  CHECK(console.ok("namespace get training own-executor --json") == group + R"(,"own_executor":0}]})" + "\n");
  CHECK(console.ok("namespace get training uid --json") == group + "}]}\n");
}

TEST_CASE("answers: what changes something says so as JSON, too") {
  SessionLimits limits = ControlFixture::quick_limits();
  limits.has_static_partitions = true;
  ControlFixture broker(limits);
  broker.serve();
  Console console(broker);
  CHECK(console.ok("namespace create training --json") == R"({"schema":"mpsshim.namespace_create","version":1})"
                                                          "\n");
  CHECK(console.error("namespace create training --json") == "there is a namespace training already");
  const std::string made = console.ok("sm_partition add 0 1 --format=json");
  const std::string listed = console.ok("sm-partition list --json");
  const std::string begin = R"({"schema":"mpsshim.sm_partition_add","version":1,"answer":")";
  REQUIRE(made.starts_with(begin));
  const std::string id = made.substr(begin.size(), made.size() - begin.size() - 3);
  CHECK(made == begin + id + "\"}\n");
  CHECK(listed.find(id.substr(id.rfind('/') + 1)) != std::string::npos);
}
