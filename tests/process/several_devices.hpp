// SPDX-License-Identifier: Apache-2.0
// Brokers with several devices, and who is on which. The CPU driver has three here; on GPUs there are as many as the machine has.
#pragma once

#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "tests/process/client.hpp"
#include "tests/support/broker_fixture.hpp"
#include "tests/support/catch.hpp"

namespace mpsshim::test {

inline constexpr const char* kVisible = "CUDA_VISIBLE_DEVICES";

[[nodiscard]] inline BrokerOptions three_devices(std::map<std::string, std::string> environment = {}) {
  environment["MPSSHIM_CPU_DEVICES"] = "3";
  BrokerOptions options;
  options.environment = std::move(environment);
  return options;
}

// UUIDs, by index.
[[nodiscard]] inline std::vector<std::string> devices_of(const BrokerFixture& broker) {
  std::vector<std::string> uuids;
  std::string text;
  const auto asked = [&] {
    const Outcome outcome = broker.ctl({"device_query", "--format=csv,noheader"});
    text = outcome.output;
    return outcome.ok();
  };
  REQUIRE(eventually(std::chrono::seconds(30), asked));
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t begin = line.find("GPU-");
    uuids.push_back(line.substr(begin, line.find(',', begin) - begin));
  }
  return uuids;
}

[[nodiscard]] inline Client on(const BrokerFixture& broker, const std::string& visible, const std::string& program = "memory_client",
                               const std::map<std::string, std::string>& more = {}) {
  ProgramOptions options;
  options.converses = true;
  options.environment = more;
  if (!visible.empty()) options.environment[kVisible] = visible;
  return {broker.start(program, options), Client::Attached::waits};
}

// The pids that `get_device_client_list` has under a device, which it names by its UUID's beginning.
[[nodiscard]] inline std::string clients_on(const BrokerFixture& broker, const std::string& whole_uuid) {
  const std::string uuid = whole_uuid.substr(0, std::string("GPU-01234567-89ab-cdef").size());
  const std::string list = broker.ctl({"get_device_client_list"}).output;
  const std::size_t begin = list.find(uuid);
  if (begin == std::string::npos) return "no " + uuid + " in " + list;
  const std::size_t line = list.find('\n', begin) + 1;
  return list.substr(line, list.find("GPU-", line) - line);
}

[[nodiscard]] inline bool stands_in(const std::string& list, Client& client) {
  return ("\n" + list).find("\n" + std::to_string(client.program().pid()) + "\n") != std::string::npos;
}

[[nodiscard]] inline std::string first_of(const std::string& answer) {  // "ok COUNT UUID BUS"
  std::istringstream words(answer);
  std::string ok, count, uuid;
  words >> ok >> count >> uuid;
  return uuid;
}

}  // namespace mpsshim::test
