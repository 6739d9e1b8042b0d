// SPDX-License-Identifier: Apache-2.0
#include "broker/nvidia/answers.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <utility>

#include <fmt/format.h>

#include "broker/ctl/client_rows.hpp"
#include "broker/printable.hpp"

namespace mpsshim::broker::nvidia {

namespace {

constexpr std::size_t kColumnsOfServers = 10;  // number, pid, device, UUID, ..., has_begun
constexpr std::size_t kColumnsOfDevices = 7;   // index, PCI, UUID, memory, multiprocessors, capability, name
constexpr std::size_t kColumnsOfClients = 8;   // pid, session, client, server, server's pid, device, UUID, namespace, ..., command

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream text(line);
  return {std::istream_iterator<std::string>(text), std::istream_iterator<std::string>()};
}

std::string text_of(long number) { return std::to_string(number); }

// A process that has ended and is not waited for yet does not.
bool runs(long pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string stat;
  std::getline(file, stat);
  const std::size_t name_end = stat.rfind(')');  // the state is behind the name, which may have brackets
  return name_end != std::string::npos && name_end + 2 < stat.size() && stat[name_end + 2] != 'Z';
}

// Columns as wide as they have to be, or commas.
std::string text_of(const std::vector<std::vector<std::string>>& lines, bool is_csv) {
  std::string text;
  for (const std::vector<std::string>& line : lines) {
    for (std::size_t i = 0; i < line.size(); ++i) {
      std::size_t width = 0;
      for (const std::vector<std::string>& other : lines) width = std::max(width, other[i].size() + 2);
      const bool is_last = i + 1 == line.size();
      text += is_csv ? line[i] + (is_last ? "" : ",") : fmt::format("{:<{}}", line[i], is_last ? line[i].size() : width);
    }
    text += '\n';
  }
  return text;
}

std::string unknown_server(long number) { return fmt::format("Server {} not found\n", number); }

// "0000:00:06.0" as that program writes it: "0000:00.06.00".
std::string pci_text(const std::string& address) {
  unsigned domain = 0, bus = 0, device = 0, function = 0;
  if (std::sscanf(address.c_str(), "%x:%x:%x.%x", &domain, &bus, &device, &function) != 4) return address;
  return fmt::format("{:04x}:{:02x}.{:02x}.{:02x}", domain, bus, device, function);
}

}  // namespace

long Answers::number_at(const Words& words, std::size_t place) { return place < words.size() ? std::strtol(words[place].c_str(), nullptr, 10) : 0; }

std::string Answers::unknown_command(std::string_view name) { return fmt::format("Unknown command \"{}\"\n", printable(name)); }

const Answers::Row* Answers::find(std::string_view command) {
  static constexpr Row kRows[] = {
      {"get_server_list", &Answers::get_server_list},
      {"get_server_status", &Answers::get_server_status},
      {"start_server", &Answers::start_server},
      {"shutdown_server", &Answers::shutdown_server},
      {"get_client_list", &Answers::get_client_list},
      {"get_device_client_list", &Answers::get_device_client_list},
      {"ps", &Answers::ps},
      {"terminate_client", &Answers::terminate_client},
      {"quit", &Answers::quit},
      {"get_default_active_thread_percentage", &Answers::default_percentage},
      {"set_default_active_thread_percentage", &Answers::default_percentage},
      {"get_active_thread_percentage", &Answers::percentage},
      {"set_active_thread_percentage", &Answers::percentage},
      {"get_default_device_pinned_mem_limit", &Answers::default_memory_limit},
      {"set_default_device_pinned_mem_limit", &Answers::default_memory_limit},
      {"get_device_pinned_mem_limit", &Answers::memory_limit},
      {"set_device_pinned_mem_limit", &Answers::memory_limit},
      {"get_default_client_priority", &Answers::default_priority},
      {"set_default_client_priority", &Answers::default_priority},
      {"device_query", &Answers::device_query},
      {"sm_partition", &Answers::sm_partition},
      {"lspart", &Answers::lspart},
  };
  const auto* const row = std::ranges::find(kRows, command, &Row::command);
  return row != std::end(kRows) ? row : nullptr;
}

std::optional<std::string> Answers::answer(const std::string& line) {
  const Words words = words_of(line);
  const std::string name = words.empty() ? "" : words.front();
  std::string text;
  if (const Row* const row = find(name)) {
    text = (this->*row->handler)(words);
  } else {
    (void)servers();  // whether there is a broker
    text = unknown_command(name);
  }
  return is_lost_ ? std::nullopt : std::optional(text);
}

std::optional<std::string> Answers::answer_argument(const std::string& line) {
  constexpr std::string_view kModules[] = {"server", "namespace", "client", "device", "sm-partition"};
  const Words words = words_of(line);
  if (words.empty() || std::ranges::find(kModules, words.front()) == std::end(kModules)) return answer(line);
  const std::string text = ask(line);
  return is_lost_ ? std::nullopt : std::optional(text);
}

std::string Answers::ask(const std::string& command) {
  const ctl::Answer answer = ask_(command);
  is_lost_ |= !answer.was_asked;
  return answer.ok ? answer.text : answer.text + '\n';
}

std::string Answers::value_of(const std::string& command) {
  const ctl::Answer answer = ask_(command);
  is_lost_ |= !answer.was_asked;
  return answer.ok ? answer.text : "";
}

std::vector<Answers::Server> Answers::servers() {
  std::vector<Server> found;
  for (const Words& row : rows_of("servers", kColumnsOfServers)) {
    if (row[kColumnsOfServers - 1] == "1" && number_at(row, 0) > 0) found.push_back({number_at(row, 0), number_at(row, 1), row[3]});
  }
  return found;
}

std::string Answers::server_at(const Words& words, std::size_t place, std::string& answer) {
  const long number = number_at(words, place);
  for (const Server& server : servers()) {
    if (server.number == number || server.pid == number) return text_of(server.number);
  }
  answer = unknown_server(number);
  return "";
}

std::string Answers::get_server_list(const Words& /*words*/) {
  std::string text;
  for (const Server& server : servers()) text += fmt::format("{}\n", server.number);
  return text;
}

std::string Answers::get_server_status(const Words& words) {
  if (words.size() < 2) return "A server PID is required\n";
  std::string answer;
  const std::string server = server_at(words, 1, answer);
  return server.empty() ? answer : ask("get_server_status " + server);
}

std::string Answers::start_server(const Words& words) {
  const bool has_user = words.size() > 2 && words[1] == "-uid" && !words[2].empty() && words[2].find_first_not_of("0123456789") == std::string::npos;
  return has_user ? ask("start_server -uid " + words[2]) : "A user id (UID) is required to start a new server\n";
}

std::string Answers::shutdown_server(const Words& words) {
  std::string answer;
  const std::string server = server_at(words, 1, answer);
  return server.empty() ? answer : fmt::format("Server {} is not shut down: mpsshim ends servers that nobody needs by itself\n", server);
}

std::string Answers::get_client_list(const Words& words) {
  std::string answer;
  const std::string server = server_at(words, 1, answer);
  return server.empty() ? answer : ask("get_client_list " + server);
}

std::vector<Answers::Words> Answers::rows_of(const std::string& command, std::size_t columns) {
  auto rows = ctl::read_comma_separated(value_of(command + " --format=csv,noheader"));
  if (!rows) return {};
  std::erase_if(*rows, [&](const Words& row) { return row.size() < columns; });
  return std::move(*rows);
}

std::string Answers::get_device_client_list(const Words& words) {
  std::string answer;
  std::string server;
  if (words.size() > 1 || servers().empty()) {
    server = server_at(words, 1, answer);
    if (server.empty()) return answer;
  }
  const std::vector<Words> clients = rows_of(server.empty() ? "ps" : "ps -p " + server, kColumnsOfClients);
  std::set<std::string> served;
  for (const Server& one : servers()) {
    if (server.empty() || text_of(one.number) == server) served.insert(one.uuid);
  }
  for (const Words& device : rows_of("device_query", kColumnsOfDevices)) {
    if (!served.contains(device[2])) continue;
    const std::size_t bus = device[1].find(':');  // behind the domain
    answer += fmt::format("[{}] {}, {}\n", device[0], bus == std::string::npos ? device[1] : device[1].substr(bus + 1), device[6]);
    for (const Words& row : clients) {
      if (row[6] == device[2]) answer += fmt::format("{}.{}\n", row[0], row[2]);
    }
  }
  return answer;
}

std::string Answers::ps(const Words& words) {
  std::string command = "ps";
  if (words.size() > 1 && words[1] == "-p") {
    std::string answer;
    const std::string server = server_at(words, 2, answer);
    if (server.empty()) return answer + answer + '\n';
    command += " -p " + server;
  } else if (servers().empty()) {
    return "Server not found\n";
  }
  static constexpr char kLine[] = "{:<10}{:<10}{:<15}{:<26}{:<15}{:<15}\n";
  constexpr std::size_t kShownOfUuid = 22;
  std::string text = fmt::format(kLine, "PID", "ID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND");
  for (const Words& row : rows_of(command, kColumnsOfClients)) {
    text += fmt::format(kLine, row[0], row[2], row[3], row[6].substr(0, kShownOfUuid), row[7], row.back());
  }
  return text;
}

std::string Answers::terminate_client(const Words& words) {
  std::string answer;
  const std::string server = server_at(words, 1, answer);
  if (server.empty()) return answer + fmt::format("Server {} not found!\n", number_at(words, 1)) + "1\n";
  const long pid = number_at(words, 2);
  const ctl::Answer done = ask_(fmt::format("terminate_client {} {}", server, pid));
  is_lost_ |= !done.was_asked;
  if (done.ok) return done.text;
  // No client of the server's: a process all the same, or none.
  return runs(pid) ? std::string("201\n") : fmt::format("Invalid process {}!\n1\n", pid);
}

// Without a number behind -t it ends at once.
std::string Answers::quit(const Words& words) {
  if (words.size() < 2 || words[1] != "-t") return ask("quit");
  const long seconds = number_at(words, 2);
  return ask(seconds > 0 ? "quit -t " + text_of(seconds) : "quit --now");
}

// What holds then is the answer, whether it could be set or not.
std::string Answers::default_percentage(const Words& words) {
  if (words.front().starts_with("set") && words.size() > 1) (void)value_of("set_default_active_thread_percentage " + words[1]);
  return ask("get_default_active_thread_percentage");
}

std::string Answers::percentage(const Words& words) {
  std::string answer;
  const std::string server = server_at(words, 1, answer);
  if (server.empty()) return answer;
  if (words.front().starts_with("set") && words.size() > 2) (void)value_of("set_active_thread_percentage " + server + ' ' + words[2]);
  return ask("get_active_thread_percentage " + server);
}

// No limit is no line.
std::string Answers::default_memory_limit(const Words& words) {
  if (words.front().starts_with("set")) {
    if (words.size() > 2) (void)value_of("set_default_device_pinned_mem_limit " + words[1] + ' ' + words[2]);
    return "";
  }
  const std::string limit = words.size() > 1 ? value_of("get_default_device_pinned_mem_limit " + words[1]) : "";
  return limit == "no limit\n" ? "" : limit;
}

std::string Answers::memory_limit(const Words& words) {
  std::string answer;
  const std::string server = server_at(words, 1, answer);
  if (server.empty()) return answer;
  if (words.front().starts_with("set")) {
    if (words.size() > 3) (void)value_of("set_device_pinned_mem_limit " + server + ' ' + words[2] + ' ' + words[3]);
    return "";
  }
  const std::string limit = words.size() > 2 ? value_of("get_device_pinned_mem_limit " + server + ' ' + words[2]) : "";
  return limit == "no limit\n" ? "" : limit;
}

// A word that is no number is 0. None changes nothing and says nothing.
std::string Answers::default_priority(const Words& words) {
  if (!words.front().starts_with("set")) return ask("get_default_client_priority");
  if (words.size() < 2) return "";
  const long priority = number_at(words, 1);
  if (priority != 0 && priority != 1) return "Invalid priority value - must be 0 or 1!\n";
  return ask("set_default_client_priority " + text_of(priority));
}

std::string Answers::device_query(const Words& words) {
  const bool is_csv = words.size() > 1 && words[1] == "--csv";
  if (words.size() > 1 && !is_csv) return "Invalid command format\n";
  const std::vector<Words> devices = rows_of("device_query", kColumnsOfDevices);
  const auto table = [&](const std::string& uuid) {  // "": all
    std::vector<Words> lines{{"Device Ordinal", "PCI IDs", "UUID", "Name", "Attributes"}};
    for (const Words& row : devices) {
      if (uuid.empty() || row[2] == uuid) lines.push_back({row[0], pci_text(row[1]), row[2], row[6], "N/A"});
    }
    return text_of(lines, is_csv);
  };
  std::string text = "Default\n" + table("");
  for (const Server& server : servers()) text += fmt::format("\nServer {}\n", server.number) + table(server.uuid);
  return text;
}

}  // namespace mpsshim::broker::nvidia
