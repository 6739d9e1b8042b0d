// SPDX-License-Identifier: Apache-2.0
// Lines that cannot be obeyed: each is one line that names the word and says what would do, and nothing has changed.
#include <map>
#include <set>
#include <string>
#include <vector>

#include "broker/commands/command_table.hpp"
#include "tests/unit/control/support/console.hpp"

using namespace mpsshim;
using namespace mpsshim::broker;
using namespace mpsshim::broker::control;
using namespace mpsshim::broker::control::testing;

namespace {

struct Mistake {
  const char* line;  // "S": the server's number
  const char* told;  // is in the answer
};

constexpr Mistake kMistakes[] = {
    // no command, an unknown one
    {"", "is empty"},
    {" \t ", "is empty"},
    {"dance", "unknown command \"dance\": see help"},
    {"PS", "unknown command \"PS\""},
    {"set_foo_active_thread_percentage 50", "unknown command \"set_foo_active_thread_percentage\""},
    {"set_foo_device_pinned_mem_limit 0 1G", "unknown command \"set_foo_device_pinned_mem_limit\""},
    {"-t 5", "unknown command \"-t\""},
    {"\x1b[31m", "unknown command \"\\x1b[31m\""},
    {"\xff\xfe", "unknown command \"\\xff\\xfe\""},
    // a word is missing
    {"get_server_status", "PID is missing: usage: get_server_status [--json] PID"},
    {"get_client_list", "PID is missing"},
    {"get_default_device_pinned_mem_limit", "DEVICE is missing"},
    {"get_device_pinned_mem_limit", "PID is missing"},
    {"get_device_pinned_mem_limit S", "DEVICE is missing"},
    {"set_default_device_pinned_mem_limit", "DEVICE is missing"},
    {"set_default_device_pinned_mem_limit 0", "SIZE is missing: usage: set_default_device_pinned_mem_limit [--json] DEVICE SIZE"},
    {"set_device_pinned_mem_limit S 0", "SIZE is missing"},
    {"get_active_thread_percentage", "PID is missing: usage: get_active_thread_percentage [--json] PID"},
    {"set_default_active_thread_percentage", "PERCENTAGE is missing: usage: set_default_active_thread_percentage [--json] PERCENTAGE"},
    {"set_active_thread_percentage", "PID is missing"},
    {"set_active_thread_percentage S", "PERCENTAGE is missing: usage: set_active_thread_percentage [--json] PID PERCENTAGE"},
    {"client", "client needs a verb behind it: list, get, terminate, set"},
    {"client dance 1", "client needs a verb behind it: list, get, terminate, set"},
    {"client list --server 1", "there is no server with pid 1"},
    {"client list --all x", "\"x\" is one word too many"},
    {"client get 1", "FIELD is missing: usage: client get [--json | --csv] PID FIELD"},
    {"client get 1 colour", "\"colour\" is no field: pid, server, device, pci-id, linux-ns, maws-ns, cmd"},
    {"client get 1 cmd", "there is no client with pid 1: see ps"},
    {"server get 1 clients", "there is no server with pid 1: see get_server_list"},
    {"server get 1", "FIELD is missing: usage: server get [--json | --csv] PID FIELD"},
    {"server get 1 colour", "\"colour\" is no field: server, pid, uid, device, status, clients, active-thread-percentage, pinned-memory-limit"},
    {"namespace get", "NAME is missing: usage: namespace get [--uid UID] [--json | --csv] NAME FIELD"},
    {"namespace get nobody clients", "there is no namespace nobody: see namespace list"},
    {"namespace get --uid everybody nobody clients", "\"everybody\" is no number, and UID is one"},
    {"namespace get nobody cmd",
     "\"cmd\" is no field: uid, clients, active-thread-percentage, active-thread-percentage-request, pinned-memory-limit, "},
    {"client terminate 1", "there is no client with pid 1: see ps"},
    {"device list 0", "\"0\" is one word too many"},
    {"client set", "PID is missing: usage: client set"},
    {"client set 1", "there is nothing to set: give --active-thread-percentage, --pinned-memory-limit or --client-priority"},
    {"client set 1 --active-thread-percentage", "--active-thread-percentage needs a value, PERCENTAGE"},
    {"client set 1 --active-thread-percentage=0", "\"0\" is no percentage"},
    {"client set 1 --pinned-memory-limit much", "\"much\" is no size: an integer above 0 with M or G, such as 900M, or none"},
    {"client set 1 --client-priority 4", "\"4\" is out of range: PRIORITY is 0 to 3"},
    {"client set 1 --client-priority 1 --device 9", "there is no device \"9\""},
    {"client set 1 --client-priority 1", "there is no client with pid 1: see ps"},
    {"client set x --client-priority 1", "\"x\" is no number, and PID is one"},
    {"server", "server needs a verb behind it: list, create, get, set"},
    {"server list --all --all", "--all is given twice"},
    {"server list x", "\"x\" is one word too many"},
    {"server create", "--uid is missing: usage: server create --uid UID"},
    {"server create --uid x", "\"x\" is no number, and UID is one"},
    {"server set", "PID is missing"},
    {"server set 1 --active-thread-percentage 50", "there is no server with pid 1: see get_server_list"},
    {"server set S", "there is nothing to set: give --active-thread-percentage or --pinned-memory-limit"},
    {"server set S --active-thread-percentage 0", "\"0\" is no percentage"},
    {"server set S --pinned-memory-limit 5", "\"5\" is no size"},
    {"server set S --pinned-memory-limit 5M --device 9", "there is no device \"9\""},
    {"lspart", "this broker has no static partitions: start it with --static-partitioning (-S)"},
    {"lspart 0", "\"0\" is one word too many: usage: lspart"},
    {"sm_partition", "sm_partition needs a verb behind it: add, rm"},
    {"sm_partition list", "sm_partition needs a verb behind it: add, rm"},
    {"sm_partition add 0 4", "this broker has no static partitions: start it with --static-partitioning (-S)"},
    {"sm_partition add", "DEVICE is missing: usage: sm_partition add [--json] DEVICE CHUNKS"},
    {"sm_partition add 0", "CHUNKS is missing"},
    {"sm_partition add 0 0", "\"0\" is out of range: CHUNKS is 1 to"},
    {"sm_partition add 0 few", "\"few\" is no number, and CHUNKS is one"},
    {"sm_partition add 0 4 5", "\"5\" is one word too many"},
    {"sm_partition rm 0", "PARTITION is missing: usage: sm_partition rm [--json] DEVICE PARTITION"},
    {"sm_partition rm 0 p-1", "\"p-1\" is no partition: P with its number, such as P0000001, or its name"},
    {"sm_partition rm 0 P0000001", "this broker has no static partitions"},
    {"sm-partition", "sm-partition needs a verb behind it: create, delete, list"},
    {"sm-partition create", "--chunks is missing: usage: sm-partition create --device DEVICE --chunks CHUNKS [--include-remainder] [--json] NAME"},
    {"sm-partition create large --device 0", "--chunks is missing"},
    {"sm-partition create --device 0 --chunks 1", "NAME is missing"},
    {"sm-partition create Large --device 0 --chunks 1", "\"Large\" is no name of a partition: lowercase letters, digits and underscores, 64 at most"},
    {"sm-partition create large --device 0 --chunks 1 --include-remainder=true", "--include-remainder takes no value"},
    {"sm-partition create large --device 0 --chunks 1", "this broker has no static partitions"},
    {"sm-partition delete large", "--device is missing"},
    {"sm-partition delete --device 0", "PARTITION is missing"},
    {"sm-partition list --device", "--device needs a value, DEVICE"},
    {"sm-partition list --all --all", "--all is given twice"},
    {"sm-partition list", "this broker has no static partitions"},
    {"memacct list", "memacct is not obeyed: memory is not accounted by control groups: what clients hold is in ps, users and namespace list"},
    {"feature list", "feature is not obeyed"},
    {"context-share list", "context-share is not obeyed"},
    {"shutdown_server S", "shutdown_server is not obeyed: a server is not shut down by a command"},
    {"namespace", "namespace needs a verb behind it: list, get, create, set, delete"},
    {"namespace set x --pinned-memory-request 5", "\"5\" is no size"},
    {"namespace set x --pinned-memory-request", "--pinned-memory-request needs a value, SIZE|none"},
    {"namespace list x", "\"x\" is one word too many"},
    {"namespace create", "NAME is missing: usage: namespace create [--own-executor] [--uid UID] [--json] NAME"},
    {"namespace create Upper", "\"Upper\" is no name of a group: lowercase letters, digits and underscores, 64 at most"},
    {"namespace create x --own-executor=1", "--own-executor takes no value"},
    {"namespace create x --own-executor --own-executor", "--own-executor is given twice"},
    {"namespace create x --uid y", "\"y\" is no number, and UID is one"},
    {"namespace delete x --uid", "--uid needs a value, UID"},
    {"namespace delete nobody", "there is no namespace nobody: see namespace list"},
    {"namespace set nobody --client-priority 1", "there is no namespace nobody: see namespace list"},
    {"namespace set x --active-thread-percentage 0", "\"0\" is no percentage"},
    {"namespace set x --active-thread-percentage-request 101", "\"101\" is no percentage: a number above 0, to 100, such as 25 or 12.5, or none"},
    {"namespace set x --pinned-memory-limit -1", "\"-1\" is no size"},
    {"namespace set x --uid -1 --client-priority 1", "\"-1\" is out of range"},
    {"start_server", "-uid is missing: usage: start_server -uid UID"},
    {"start_server -uid", "-uid needs a value, UID"},
    {"terminate_client", "SERVER is missing"},
    {"terminate_client S", "PID is missing: usage: terminate_client [--json] SERVER PID"},
    {"ps -p", "-p needs a value, PID"},
    {"ps -p -l", "-p needs a value, PID"},
    {"ps --format", "--format needs a value, FORMAT"},
    {"quit -t", "-t needs a value, SECONDS: usage: quit [-t SECONDS | --now]"},
    {"restart -t", "-t needs a value, SECONDS: usage: restart [-f] [-t SECONDS] [--json] [executors]"},
    // one too many
    {"get_server_list 1", "\"1\" is one word too many: usage: get_server_list [--json]"},
    {"get_server_status S 7", "\"7\" is one word too many"},
    {"get_client_list S 7", "\"7\" is one word too many"},
    {"get_device_client_list S 7", "\"7\" is one word too many"},
    {"device_query 0", "\"0\" is one word too many"},
    {"servers x", "\"x\" is one word too many"},
    {"users x", "\"x\" is one word too many"},
    {"ps x", "\"x\" is one word too many: usage: ps [-l] [-p PID] [--json | --csv]"},
    {"get_default_device_pinned_mem_limit 0 1", "\"1\" is one word too many"},
    {"get_device_pinned_mem_limit S 0 1", "\"1\" is one word too many"},
    {"set_default_device_pinned_mem_limit 0 1G 2", "\"2\" is one word too many"},
    {"set_device_pinned_mem_limit S 0 1G 2", "\"2\" is one word too many"},
    {"get_default_active_thread_percentage 50", "\"50\" is one word too many"},
    {"get_default_client_priority 0", "\"0\" is one word too many: usage: get_default_client_priority [--json]"},
    {"set_default_client_priority 0 1", "\"1\" is one word too many"},
    {"get_active_thread_percentage S 50", "\"50\" is one word too many"},
    {"set_default_active_thread_percentage 50 60", "\"60\" is one word too many"},
    {"set_active_thread_percentage S 50 60", "\"60\" is one word too many"},
    {"start_server -uid 0 1", "\"1\" is one word too many"},
    {"start_server -uid 0 -mlopart", "start_server has no option \"-mlopart\""},
    {"terminate_client S 1 2", "\"2\" is one word too many"},
    {"restart executors now", "\"now\" is one word too many"},
    {"hold 1 2", "\"2\" is one word too many"},
    {"quit now", "\"now\" is one word too many"},
    {"cdi now", "\"now\" is one word too many: usage: cdi [--output FILE]"},
    {"cdi --output /tmp/x", "cdi is a command of mpsctl's own, which no broker obeys"},
    {"trace", "FILE is missing: usage: trace [--output OUTPUT] FILE"},
    {"trace a b", "\"b\" is one word too many"},
    {"trace a --output", "--output needs a value, OUTPUT"},
    {"trace /tmp/x", "trace is a command of mpsctl's own, which no broker obeys"},
    {"help me", "\"me\" is one word too many"},
    // no such option
    {"ps -x", "ps has no option \"-x\""},
    {"help --json", "help has no option \"--json\": usage: help"},
    {"get_server_list --csv", "get_server_list has no option \"--csv\""},
    {"restart --force", "restart has no option \"--force\""},
    {"hold --help", "hold has no option \"--help\""},
    {"terminate_client -f S 1", "terminate_client has no option \"-f\""},
    // not together
    {"quit --now -t 5", "-t and --now exclude each other"},
    {"ps --json --csv", "--json and --csv exclude each other"},
    {"ps --json --format=csv", "--format excludes --json and --csv"},
    {"ps -l -l", "-l is given twice"},
    {"top", "top is a command of mpsctl's own, which no broker obeys"},
    {"top -p S", "top is a command of mpsctl's own, which no broker obeys"},
    {"top -b --batch", "-b and --batch exclude each other"},
    {"top -n 0", "\"0\" is out of range"},
    {"top -n", "-n needs a value"},
    {"top --interval 0", "\"0\" is no interval"},
    {"top --interval 3601", "is no interval"},
    {"top --interval 1e3", "is no interval"},
    {"top --interval .5", "is no interval"},
    {"top --interval 0.0999", "is no interval"},
    {"top --sort colour", "\"colour\" is nothing to sort by: gpu, launches, wait, in_flight, memory, age, pid, user"},
    {"quit -t 5 -t 6", "-t is given twice"},
    {"quit --now=1", "--now takes no value"},
    {"ps --format=xml", "\"xml\" is no format: text, json, csv or csv,noheader"},
    {"ps --format=", "\"\" is no format"},
    {"get_server_status --format=csv S", "get_server_status answers no table, and so no csv"},
    // no number
    {"get_server_status x", "\"x\" is no number, and PID is one"},
    {"get_client_list 1x", "\"1x\" is no number"},
    {"get_client_list +1", "\"+1\" is no number"},
    {"get_client_list 0x10", "\"0x10\" is no number"},
    {"get_device_client_list x", "\"x\" is no number"},
    {"get_device_pinned_mem_limit x 0", "\"x\" is no number"},
    {"set_device_pinned_mem_limit x 0 1G", "\"x\" is no number"},
    {"get_active_thread_percentage x", "\"x\" is no number, and PID is one"},
    {"set_default_client_priority normal", "\"normal\" is no number, and PRIORITY is one"},
    {"set_default_client_priority 0.5", "\"0.5\" is no number"},
    {"set_active_thread_percentage x 50", "\"x\" is no number, and PID is one"},
    {"start_server -uid root", "\"root\" is no number, and UID is one"},
    {"terminate_client x 1", "\"x\" is no number, and SERVER is one"},
    {"terminate_client S x", "\"x\" is no number, and PID is one"},
    {"ps -p x", "\"x\" is no number"},
    {"hold x", "\"x\" is no number"},
    {"quit -t soon", "\"soon\" is no number, and SECONDS is one"},
    {"quit -t 1.5", "\"1.5\" is no number"},
    {"restart -t 1e9", "\"1e9\" is no number"},
    // out of range
    {"get_server_status 0", "\"0\" is out of range: PID is 1 to 2147483647"},
    {"get_server_status -1", "\"-1\" is out of range"},
    {"get_client_list 2147483648", "\"2147483648\" is out of range"},
    {"get_client_list 99999999999999999999999", "is out of range"},
    {"ps -p -1", "\"-1\" is out of range"},
    {"hold 0", "\"0\" is out of range"},
    {"hold -5", "\"-5\" is out of range"},
    {"start_server -uid -1", "\"-1\" is out of range: UID is 0 to 4294967294"},
    {"start_server -uid 4294967295", "\"4294967295\" is out of range"},
    {"set_default_client_priority 2", "there are priorities 0 to 1 of clients, and no 2: see mpsbroker --client-priorities"},
    {"set_default_client_priority 4", "\"4\" is out of range: PRIORITY is 0 to 3"},
    {"set_default_client_priority -1", "\"-1\" is out of range"},
    {"quit -t -1", "\"-1\" is out of range: SECONDS is 0 to 1000000"},
    {"quit -t 1000001", "\"1000001\" is out of range"},
    {"restart -t 1000001", "\"1000001\" is out of range"},
    {"terminate_client S 0", "\"0\" is out of range"},
    // no size, no such word
    {"set_default_device_pinned_mem_limit 0 1", "\"1\" is no size"},
    {"set_default_device_pinned_mem_limit 0 0G", "\"0G\" is no size"},
    {"set_default_device_pinned_mem_limit 0 -1G", "\"-1G\" is no size"},
    {"set_device_pinned_mem_limit S 0 1Q", "\"1Q\" is no size: an integer above 0 with M or G, such as 900M"},
    {"set_device_pinned_mem_limit S 0 99999999999999999999G", "is no size"},
    {"set_default_active_thread_percentage 0", "\"0\" is no percentage: a number above 0, to 100, such as 25 or 12.5"},
    {"set_default_active_thread_percentage 100.1", "\"100.1\" is no percentage"},
    {"set_default_active_thread_percentage 101", "\"101\" is no percentage"},
    {"set_default_active_thread_percentage -1", "\"-1\" is no percentage"},
    {"set_default_active_thread_percentage fifty", "\"fifty\" is no percentage"},
    {"set_default_active_thread_percentage 50%", "\"50%\" is no percentage"},
    {"set_default_active_thread_percentage 12.345", "\"12.345\" is no percentage"},
    {"set_default_active_thread_percentage 1e1", "\"1e1\" is no percentage"},
    {"set_active_thread_percentage S 0.0", "\"0.0\" is no percentage"},
    {"set_active_thread_percentage S 99999999999999999999", "is no percentage"},
    {"restart servers", "\"servers\" is not executors: usage: restart [-f] [-t SECONDS] [--json] [executors]"},
    // nothing of that name
    {"get_server_status 1", "there is no server with pid 1: see get_server_list"},
    {"get_client_list 1", "there is no server with pid 1"},
    {"get_device_client_list 1", "there is no server with pid 1"},
    {"get_device_pinned_mem_limit 1 0", "there is no server with pid 1"},
    {"set_device_pinned_mem_limit 1 0 1G", "there is no server with pid 1"},
    {"get_active_thread_percentage 1", "there is no server with pid 1: see get_server_list"},
    {"set_active_thread_percentage 1 50", "there is no server with pid 1: see get_server_list"},
    {"ps -p 1", "there is no server with pid 1"},
    {"terminate_client 1 1", "there is no server with pid 1"},
    {"terminate_client S 1", "has no client with pid 1: see get_client_list"},
    {"get_default_device_pinned_mem_limit 9", "there is no device \"9\": an index from 0, or GPU- and a UUID's beginning, as in device_query"},
    {"get_default_device_pinned_mem_limit -1", "there is no device \"-1\""},
    {"get_device_pinned_mem_limit S GPU-zz", "there is no device \"GPU-zz\""},
    {"set_default_device_pinned_mem_limit x 1G", "there is no device \"x\""},
    {"set_device_pinned_mem_limit S 16 1G", "there is no device \"16\""},
    {"start_server -uid 4294967294", "this broker serves user"},
};

}  // namespace

TEST_CASE("what cannot be obeyed is one line with the word and the remedy, and changes nothing") {
  ControlFixture broker;
  broker.serve();
  const TestClient client = broker.attach();
  Console console(broker);
  const std::string server = std::to_string(broker.executor().pid);
  const auto everything = [&] {
    std::string all;
    for (const char* question : {"servers", "ps -l", "users", "get_default_device_pinned_mem_limit 0", "get_default_active_thread_percentage",
                                 "get_default_client_priority"})
      all += console.ok(question);
    return all + console.ok("get_device_pinned_mem_limit " + server + " 0") + console.ok("get_active_thread_percentage " + server);
  };
  const std::string before = everything();
  for (const Mistake& mistake : kMistakes) {
    std::string line = mistake.line;
    if (const auto place = line.find(" S"); place != std::string::npos && (place + 2 == line.size() || line[place + 2] == ' '))
      line.replace(place + 1, 1, server);
    const std::string told = console.error(line);
    INFO(line << "\n" << told);
    CHECK(told.find(mistake.told) != std::string::npos);
    CHECK(told.find('\n') == std::string::npos);
    CHECK(told.size() < 320);
  }
  CHECK(console.error(std::string(5000, 'x')).size() < 250);
  CHECK(everything() == before);
  CHECK(console.quit == -1);
}

TEST_CASE("every command has lines that cannot be obeyed among those above, and no option is without one") {
  for (const CommandSpec& command : command_table()) {
    INFO(command.name);
    const auto is_its = [&](const Mistake& mistake) { return (std::string(mistake.line) + ' ').starts_with(std::string(command.name) + ' '); };
    CHECK(std::ranges::any_of(kMistakes, is_its));
    for (const OptionSpec& option : command.options) {
      INFO(option.name);
      const bool is_everywhere = option.name == "--json" || option.name == "--csv" || option.name == "--format" || option.name == "-f";
      const auto has_it = [&](const Mistake& mistake) { return is_its(mistake) && std::string(mistake.line).find(option.name) != std::string::npos; };
      CHECK((is_everywhere || std::ranges::any_of(kMistakes, has_it)));
    }
  }
}

TEST_CASE("devices are told to be unknown until a server was ready") {
  ControlFixture broker;
  Console console(broker);
  for (const char* line :
       {"device_query", "get_device_client_list", "get_default_device_pinned_mem_limit 0", "set_default_device_pinned_mem_limit 0 1G"}) {
    CHECK(console.error(line) == "no server is ready: its devices are not known yet");
  }
}
