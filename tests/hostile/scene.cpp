// SPDX-License-Identifier: Apache-2.0
#include "tests/hostile/scene.hpp"

#include <sys/stat.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>

#include "tests/support/catch.hpp"

namespace mpsshim::test {

namespace fs = std::filesystem;

namespace {

// On a machine with a neighbour on each core; what is waited for takes milliseconds.
constexpr std::chrono::seconds kBystanderLimit{20};
constexpr std::chrono::seconds kAttackLimit{60};
constexpr std::chrono::seconds kBackLimit{20};
// What an allocator keeps of many small things that came and went, and pools of what is used again (events, streams).
constexpr long long kAnonymousSlack = 24ll << 20;
constexpr long long kFileSlack = 1ll << 20;

BrokerOptions patient(const std::vector<std::string>& arguments, const Scene::Environment& environment) {
  BrokerOptions options;
  options.environment = environment;
  // A client's last work may run on for a while: on a slow machine nobody's executor is replaced for it.
  options.arguments = {"--orphan-ms", "20000"};
  options.arguments.insert(options.arguments.end(), arguments.begin(), arguments.end());
  return options;
}

long long anonymous_bytes(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  std::string key;
  long long kib = 0;
  while (status >> key) {
    if (key == "RssAnon:" && status >> kib) return kib << 10;
  }
  return 0;
}

void add_file(const fs::path& path, std::set<std::pair<dev_t, ino_t>>& seen, long long& bytes) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return;
  if (seen.insert({status.st_dev, status.st_ino}).second) bytes += static_cast<long long>(status.st_blocks) * 512;
}

// Of the broker: what a test catches of its output grows with every line.
bool is_memory_file(const fs::path& link) {
  std::error_code error;
  return fs::read_symlink(link, error).string().find("memfd:mpsshim-") != std::string::npos;
}

}  // namespace

HeldMemory memory_of(const std::vector<pid_t>& processes) {
  HeldMemory held;
  std::set<std::pair<dev_t, ino_t>> seen;
  for (const pid_t pid : processes) {
    held.anonymous += anonymous_bytes(pid);
    for (const char* folder : {"fd", "map_files"}) {
      std::error_code error;
      for (const auto& entry : fs::directory_iterator(fs::path("/proc") / std::to_string(pid) / folder, error)) {
        if (is_memory_file(entry.path())) add_file(entry.path(), seen, held.files);
      }
    }
  }
  return held;
}

Scene::Scene(const std::vector<std::string>& arguments, const std::string& rehearsal, const Environment& environment)
    : broker_(patient(arguments, environment)) {
  {
    // What the first clients of each kind cost is there.
    Client raw = hostile();
    REQUIRE(raw.ask("work") == "ok");
    Client first(broker_);
    for (const char* command : {"hold", "check", "use", "storm 20", "pin"}) REQUIRE(first.ask(command).starts_with("ok"));
    end(raw);
    end(first);
  }
  if (!rehearsal.empty()) {
    Client raw = hostile();
    const std::string answer = raw.ask(rehearsal, kAttackLimit);
    INFO(rehearsal << ": " << answer << "\n" << broker_.log());
    REQUIRE(answer.starts_with("ok"));
    end(raw);
  }
  REQUIRE(broker_.wait_for_clients(0));
  resources_ = broker_.settled_resources();
  servers_ = broker_.servers();
  memory_ = memory_of(processes());
  bystander_.emplace(broker_);
  REQUIRE(bystander_->ask("hold") == "ok");
  require_unhurt("the beginning");
}

Client Scene::hostile() const { return Client(broker_, "hostile_client"); }

std::string Scene::attack(Client& hostile, const std::string& command) {
  hostile.begin(command);
  const auto limit = std::chrono::steady_clock::now() + kAttackLimit;
  std::string answer;
  do {
    require_unhurt(command);
    answer = hostile.answer(std::chrono::milliseconds(1));
  } while (answer.starts_with("no answer") && hostile.program().running() && std::chrono::steady_clock::now() < limit);
  INFO(command << ": " << answer << "\n" << broker_.log());
  REQUIRE(answer.starts_with("ok"));
  return answer;
}

void Scene::require_unhurt(const std::string& during) {
  for (const char* command : {"check", "use", "storm 20"}) {
    const std::string answer = bystander_->ask(command, kBystanderLimit);
    INFO(during << ": " << command << ": " << answer << "\n" << broker_.log());
    REQUIRE(answer.starts_with("ok"));
  }
}

void Scene::require_newcomer_served() {
  Client newcomer(broker_);
  const std::string answer = newcomer.ask("storm 20", kBystanderLimit);
  INFO(answer << "\n" << broker_.log());
  REQUIRE(answer.starts_with("ok"));
  end(newcomer);
}

void Scene::end(Client& hostile) const {
  hostile.program().send(SIGKILL);
  (void)hostile.program().wait();
}

void Scene::require_all_back(const std::string& after, const Kept& kept) {
  resources_.fds += kept.descriptors;
  INFO(after);
  REQUIRE(broker_.wait_for_clients(1));
  require_unhurt(after);
  CHECK(broker_.servers() == servers_);
  end(*bystander_);  // what it holds comes and goes: only without it can numbers be compared
  REQUIRE(broker_.wait_for_clients(0));
  const bool back = eventually(kBackLimit, [&] { return broker_.resources().is_within(resources_); });
  INFO("before: " << resources_.explain() << "after: " << broker_.resources().explain() << broker_.log());
  REQUIRE(back);
  HeldMemory now;
  const bool is_freed = eventually(kBackLimit, [&] {
    now = memory_of(processes());
    return now.files <= memory_.files + kept.bytes + kFileSlack &&
           (now.anonymous <= memory_.anonymous + kAnonymousSlack || !sanitizer_environment().empty());
  });
  INFO("memory files " << memory_.files << " -> " << now.files << ", anonymous " << memory_.anonymous << " -> " << now.anonymous);
  CHECK(is_freed);
}

std::vector<pid_t> Scene::processes() {
  std::vector<pid_t> all = broker_.servers();
  all.push_back(broker_.process().pid());
  return all;
}

}  // namespace mpsshim::test
