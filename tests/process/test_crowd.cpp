// SPDX-License-Identifier: Apache-2.0
// As many clients as a broker takes, attached at once: each has its memory, idle ones cost no processor time, and when they are gone the
// broker holds what it held before. MPSSHIM_TEST_CROWD sets how many (default: 512, 64 under sanitizers).
#include <sys/resource.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "tests/process/client.hpp"
#include "tests/support/broker_fixture.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::test;

namespace {

std::size_t crowd_size() {
  if (const char* text = std::getenv("MPSSHIM_TEST_CROWD")) return std::strtoul(text, nullptr, 10);
  return sanitizer_environment().empty() ? 512 : 64;
}

// Each program costs three descriptors here.
void raise_file_limit() {
  rlimit limit{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  limit.rlim_cur = limit.rlim_max;
  REQUIRE(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

// Seconds of processor time that a process's threads have used, to the nanosecond: ticks would hide what idle clients cost.
double processor_seconds(pid_t pid) {
  double sum = 0;
  std::error_code gone;
  for (const auto& task : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task", gone)) {
    double nanoseconds = 0;
    std::ifstream(task.path() / "schedstat") >> nanoseconds;
    sum += nanoseconds / 1e9;
  }
  REQUIRE(sum > 0);
  return sum;
}

double broker_seconds(BrokerFixture& broker) {
  double total = processor_seconds(broker.process().pid());
  for (const pid_t server : broker.servers()) total += processor_seconds(server);
  return total;
}

// How often threads of this name have gone to sleep so far.
long sleeps_of(BrokerFixture& broker, const std::string& thread) {
  long sum = 0;
  for (const pid_t server : broker.servers()) {
    std::error_code gone;
    for (const auto& task : std::filesystem::directory_iterator("/proc/" + std::to_string(server) + "/task", gone)) {
      std::string comm, word;
      if (!std::getline(std::ifstream(task.path() / "comm"), comm) || comm != thread) continue;
      std::ifstream status(task.path() / "status");
      while (status >> word) {
        long sleeps = 0;
        if (word == "voluntary_ctxt_switches:" && status >> sleeps) sum += sleeps;
      }
    }
  }
  return sum;
}

}  // namespace

TEST_CASE("beside an idle client the fault watch looks five times a second") {
  BrokerFixture broker;
  Client client = Client::begin(broker, "memory_client");
  REQUIRE(client.answer() == "ok attached");
  client.begin("hold");
  REQUIRE(client.answer() == "ok");
  std::this_thread::sleep_for(std::chrono::seconds(1));
  const long before = sleeps_of(broker, "fault-watch");
  REQUIRE(before > 0);
  std::this_thread::sleep_for(std::chrono::seconds(2));
  const long sleeps = sleeps_of(broker, "fault-watch") - before;
  CHECK(sleeps >= 2);   // it does look
  CHECK(sleeps <= 30);  // 10, and what else there may be; 72 when each look called for five more
}

TEST_CASE("hundreds of clients at once") {
  raise_file_limit();
  const std::size_t count = crowd_size();
  BrokerFixture broker;
  REQUIRE(broker.run("memory_client").ok());  // what the first client alone costs is there
  REQUIRE(broker.wait_for_clients(0));
  const Resources before = broker.settled_resources();
  {
    std::vector<Client> crowd;
    crowd.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
      crowd.push_back(Client::begin(broker, "memory_client"));
      crowd.back().begin("hold");
    }
    for (std::size_t i = 0; i < count; ++i) {
      const std::string attached = crowd[i].answer();
      const std::string held = crowd[i].answer();
      INFO("client " << i << " of " << count);
      if (attached != "ok attached" || held != "ok") FAIL(attached << ", " << held << "\n" << broker.log());
    }
    CHECK(broker.clients().size() == count);

    // Idle: nobody looks at anything often enough to be seen.
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    const double start = broker_seconds(broker);
    constexpr double kIdleSeconds = 2;
    std::this_thread::sleep_for(std::chrono::duration<double>(kIdleSeconds));
    const double used = broker_seconds(broker) - start;
    INFO("the broker used " << used << " s of " << kIdleSeconds << " s with " << count << " idle clients");
    CHECK(used <= 0.015 * kIdleSeconds);  // mpsctl's question is in it

    for (Client& client : crowd) client.begin("check");
    for (Client& client : crowd) REQUIRE(client.answer() == "ok");
  }
  REQUIRE(broker.wait_for_clients(0));
  // Not its threads: the CPU driver's workers stay for a while. What hundreds leave takes as long as the GPU's other users let it: as long as
  // it becomes less, it is waited for.
  const auto is_back = [&](const Resources& now) { return now.fds <= before.fds && now.processes == before.processes; };
  Resources now = broker.resources();
  for (int left = now.fds + 1; !is_back(now) && now.fds < left;) {
    left = now.fds;
    (void)eventually(std::chrono::seconds(10), [&] {
      now = broker.resources();
      return is_back(now);
    });
  }
  INFO("before: " << before.explain() << "after: " << now.explain());
  CHECK(is_back(now));
}
