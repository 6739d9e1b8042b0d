// SPDX-License-Identifier: Apache-2.0
// mpsshim_siege [--seconds S] [--at-a-time N] [--p99-ms L] [--spare-cores N] [--seed N] [--list]: every attack of tests/hostile against one broker,
// all at once or N at a time, each again and again by a new process, beside a client that behaves and verifies every round
// (programs/watchful_client.cpp). Prints a table: what that client's rounds took while an attack was under way, beside all the others that were, and
// without any; and what a byte to another process and back took meanwhile, without GPU and broker. Exit status 1: a result was wrong, the client had
// an error, an attacker found in memory that it was given what another had left, the executor is another one than at the beginning, or the 99th
// percentile is above L. With
// --spare-cores the attackers' processes keep off that many cores. The CPU driver, or what MPSSHIM_TEST_DRIVER names.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <sched.h>
#include <signal.h>

#include "tests/hostile/siege_attacks.hpp"
#include "tests/hostile/watch.hpp"
#include "tests/hostile/watch_file.hpp"
#include "tests/process/client.hpp"

using namespace mpsshim::test;

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kAttackLimit{15};  // of one; then it is killed, whatever it is at
constexpr std::chrono::milliseconds kMostLinger{1'500};
constexpr std::chrono::seconds kEndLimit{60};  // of the bystander's last round
constexpr double kShareAlone = 0.1;            // of the time, before the first attack
constexpr double kMostAlone = 20;

struct Options {
  double seconds = 30;
  unsigned at_a_time = 0;    // 0: all
  double p99_ms = 0;         // 0: whatever it is
  unsigned spare_cores = 0;  // the last ones, on which no attacker runs
  std::string without;       // attacks that are left out: names, with commas between
  std::uint64_t seed = 1;
};

struct Interval {
  std::uint64_t begin_ns;
  std::uint64_t end_ns;
};

std::uint64_t ns(Clock::time_point time) {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count());
}

// One attack's story.
struct Row {
  const Attack* attack = nullptr;
  std::vector<Interval> rounds;
  unsigned loot = 0;     // rounds in which memory that it was given was not blank
  unsigned refused = 0;  // rounds that did not go as the attack meant, beside the others
  std::string first_refusal;
};

struct Attacker {
  Row* row = nullptr;
  std::optional<Client> client;
  Clock::time_point begun;
  std::optional<Clock::time_point> stays_until;  // it has done what it was to do, and holds what it has
  std::optional<Clock::time_point> rests_until;
};

BrokerOptions broker_options() {
  BrokerOptions options;
  // A killed attacker's last work may run on for a while: on a slow machine nobody's executor is replaced for it.
  // The linker's start and end are felt by everybody: as seldom as by default.
  options.arguments = {"--orphan-ms",      "20000", "--client-host-mib",     "256",   "--host-mib", "2048",
                       "--idle-linker-ms", "5000",  "--most-idle-linker-ms", "300000"};
  options.environment = {{"MPSSHIM_CPU_MEMORY_MIB", "4096"}};
  return options;
}

class Siege {
 public:
  explicit Siege(const Options& options)
      : options_(options),
        random_(options.seed),
        broker_(broker_options()),
        watch_(folder_.path() / "samples", options.seconds + 30),
        echo_(folder_.path() / "echoes", options.seconds + 30) {
    for (const Attack& attack : kAttacks) {
      if (!is_left_out(attack) && (!attack.fills_device || !on_gpu())) rows_.emplace_back().attack = &attack;
    }
  }
  [[nodiscard]] bool run();

 private:
  [[nodiscard]] bool is_left_out(const Attack& attack) const {
    const std::string name(attack.command, std::strcspn(attack.command, " "));
    return ("," + options_.without + ",").find("," + name + ",") != std::string::npos;
  }
  void look_after(Attacker& attacker);
  void keep_off_spare_cores(pid_t pid) const;
  void begin(Attacker& attacker);
  void end(Attacker& attacker);
  [[nodiscard]] Row& next_row();
  void print(Clock::time_point first_attack, Clock::time_point last_attack) const;
  void print_row(const char* name, std::size_t rounds, unsigned refused, std::vector<double> took_ms) const;
  [[nodiscard]] bool judge(const std::vector<pid_t>& servers, Clock::time_point first_attack) const;
  [[nodiscard]] std::vector<double> took_within(const WatchFile& file, const std::vector<Interval>& intervals) const;

  const Options options_;
  std::mt19937_64 random_;
  TemporaryFolder folder_;
  BrokerFixture broker_;
  WatchFile watch_;
  WatchFile echo_;  // of a byte to another process and back
  std::vector<Row> rows_;
  std::vector<Row*> order_;  // of those whose turn is still to come
};

// All have had their turn before one has a second.
Row& Siege::next_row() {
  if (order_.empty()) {
    for (Row& row : rows_) order_.push_back(&row);
    std::ranges::shuffle(order_, random_);
  }
  Row& row = *order_.back();
  order_.pop_back();
  return row;
}

// What the process begins later stays off them too.
void Siege::keep_off_spare_cores(pid_t pid) const {
  cpu_set_t cores;
  if (options_.spare_cores == 0 || sched_getaffinity(0, sizeof cores, &cores) != 0) return;
  unsigned left = options_.spare_cores;
  for (int core = CPU_SETSIZE - 1; core >= 0 && left != 0; --core) {
    if (!CPU_ISSET(core, &cores)) continue;
    CPU_CLR(core, &cores);
    --left;
  }
  if (CPU_COUNT(&cores) != 0) (void)sched_setaffinity(pid, sizeof cores, &cores);
}

void Siege::begin(Attacker& attacker) {
  attacker.rests_until.reset();
  attacker.stays_until.reset();
  attacker.begun = Clock::now();
  attacker.client.emplace(Client::begin(broker_, "hostile_client"));
  keep_off_spare_cores(attacker.client->program().pid());
  attacker.client->begin("seed " + std::to_string(random_() % 1'000'000));
  attacker.client->begin(attacker.row->attack->command);
}

// With its children.
void Siege::end(Attacker& attacker) {
  const pid_t pid = attacker.client->program().pid();
  attacker.client.reset();
  (void)kill(-pid, SIGKILL);
  attacker.row->rounds.push_back({ns(attacker.begun), ns(Clock::now())});
  attacker.rests_until = Clock::now() + std::chrono::milliseconds(random_() % 300);
}

void Siege::look_after(Attacker& attacker) {
  const auto now = Clock::now();
  if (!attacker.client) {
    if (attacker.rests_until && now < *attacker.rests_until) return;
    return begin(attacker);
  }
  if (attacker.stays_until) {
    if (now >= *attacker.stays_until) end(attacker);
    return;
  }
  const std::string said = attacker.client->program().output();
  const auto lines = std::count(said.begin(), said.end(), '\n');
  const bool has_answered = lines >= 3;  // "ok attached", the seed's and the attack's
  if (!has_answered && attacker.client->program().running() && now - attacker.begun < kAttackLimit) return;
  const std::size_t last = said.size() > 1 ? said.rfind('\n', said.size() - 2) : std::string::npos;
  const std::string answer = has_answered ? said.substr(last == std::string::npos ? 0 : last + 1) : std::string("no answer\n");
  const bool inspects = std::string(attacker.row->attack->command) == "inspect";
  if (inspects && answer.starts_with("ok") && answer != "ok 0\n") ++attacker.row->loot;
  if (!answer.starts_with("ok") && std::string(attacker.row->attack->command) != "stop_in_call" && attacker.row->refused++ == 0)
    attacker.row->first_refusal = answer.substr(0, answer.size() - 1);
  attacker.stays_until = now + std::chrono::milliseconds(random_() % static_cast<unsigned>(kMostLinger.count()));
}

std::vector<double> Siege::took_within(const WatchFile& file, const std::vector<Interval>& intervals) const {
  std::vector<double> took_ms;
  for (const WatchSample& sample : file.samples()) {
    const bool is_within =
        std::ranges::any_of(intervals, [&](const Interval& one) { return sample.begin_ns < one.end_ns && sample.end_ns > one.begin_ns; });
    if (is_within) took_ms.push_back(static_cast<double>(sample.end_ns - sample.begin_ns) / 1e6);
  }
  std::ranges::sort(took_ms);
  return took_ms;
}

double part(const std::vector<double>& sorted, double share) {
  if (sorted.empty()) return 0;
  return sorted[std::min(sorted.size() - 1, static_cast<std::size_t>(share * static_cast<double>(sorted.size())))];
}

void Siege::print_row(const char* name, std::size_t rounds, unsigned refused, std::vector<double> took_ms) const {
  std::printf("| %s | %zu | %u | %zu | %.2f | %.2f | %.2f |\n", name, rounds, refused, took_ms.size(), part(took_ms, 0.5), part(took_ms, 0.99),
              took_ms.empty() ? 0 : took_ms.back());
}

void Siege::print(Clock::time_point first_attack, Clock::time_point last_attack) const {
  std::printf("| attack, beside all the others | rounds | not as meant | bystander's rounds | p50 ms | p99 ms | max ms |\n");
  std::printf("| --- | --- | --- | --- | --- | --- | --- |\n");
  print_row("none", 0, 0, took_within(watch_, {{0, ns(first_attack)}}));
  std::size_t rounds = 0;
  unsigned refused = 0;
  std::vector<const Row*> sorted;
  for (const Row& row : rows_) sorted.push_back(&row);
  std::ranges::sort(sorted, [](const Row* a, const Row* b) { return a->attack < b->attack; });
  for (const Row* row : sorted) {
    print_row(row->attack->command, row->rounds.size(), row->refused, took_within(watch_, row->rounds));
    rounds += row->rounds.size();
    refused += row->refused;
  }
  print_row("all", rounds, refused, took_within(watch_, {{ns(first_attack), ns(last_attack)}}));
  print_row("none; a byte to another process and back", 0, 0, took_within(echo_, {{0, ns(first_attack)}}));
  print_row("all; a byte to another process and back", rounds, refused, took_within(echo_, {{ns(first_attack), ns(last_attack)}}));
  for (const Row* row : sorted) {
    if (row->refused != 0) std::printf("%s, not as meant: %s\n", row->attack->command, row->first_refusal.c_str());
  }
}

bool Siege::judge(const std::vector<pid_t>& servers, Clock::time_point first_attack) const {
  const WatchHeader& header = watch_.header();
  const std::vector<double> took_ms = took_within(watch_, {{ns(first_attack), ~std::uint64_t{0}}});
  bool is_right = true;
  const auto require_that = [&](bool holds, const std::string& what) {
    if (!holds) std::printf("WRONG: %s\n", what.c_str());
    is_right &= holds;
  };
  std::printf("wrong results: %llu of %llu\n", static_cast<unsigned long long>(header.wrong), static_cast<unsigned long long>(header.count));
  require_that(header.count != 0 && !took_ms.empty(), "the bystander had no round");
  require_that(header.wrong == 0, "the bystander read other results than it had computed");
  require_that(header.error[0] == 0, std::string("the bystander had an error: ") + header.error);
  for (const Row& row : rows_) require_that(row.loot == 0, "memory that was given to an attacker held what another had left");
  require_that(header.began_ns == 0, "the bystander's last round has not ended");
  require_that(broker_.servers() == servers, "the executors are others than at the beginning");
  require_that(options_.p99_ms == 0 || part(took_ms, 0.99) <= options_.p99_ms, "the 99th percentile is above the limit");
  if (!is_right) std::printf("%s\n", broker_.log().c_str());
  return is_right;
}

bool Siege::run() {
  const double alone = std::min(options_.seconds * kShareAlone, kMostAlone);
  ProgramOptions watchful;
  watchful.arguments = {watch_.path(), std::to_string(options_.seconds)};
  Program bystander = broker_.start("watchful_client", watchful);
  ProgramOptions echoing;
  echoing.arguments = {echo_.path(), std::to_string(options_.seconds), "echo"};
  Program echo = broker_.start("watchful_client", echoing);
  const auto until = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options_.seconds));
  if (!eventually(std::chrono::seconds(30), [&] { return watch_.header().count != 0 || !bystander.running(); }))
    std::printf("the bystander does not begin\n");
  std::this_thread::sleep_for(std::chrono::duration<double>(alone));
  const std::vector<pid_t> servers = broker_.servers();
  const auto first_attack = Clock::now();
  std::vector<Attacker> attackers(options_.at_a_time == 0 ? rows_.size() : std::min<std::size_t>(options_.at_a_time, rows_.size()));
  const bool has_all = attackers.size() == rows_.size();
  for (std::size_t i = 0; i < attackers.size(); ++i) attackers[i].row = has_all ? &rows_[i] : nullptr;
  while (Clock::now() < until && bystander.running()) {
    for (Attacker& attacker : attackers) {
      if (!attacker.client && !has_all && (!attacker.rests_until || Clock::now() >= *attacker.rests_until)) attacker.row = &next_row();
      look_after(attacker);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  const auto last_attack = Clock::now();
  (void)bystander.wait(kEndLimit);
  (void)echo.wait(kEndLimit);
  for (Attacker& attacker : attackers) {
    if (attacker.client) end(attacker);
  }
  print(first_attack, last_attack);
  return judge(servers, first_attack);
}

}  // namespace

int main(int count, char** arguments) {
  Options options;
  for (int i = 1; i < count; ++i) {
    const std::string name = arguments[i];
    if (name == "--list") {
      for (const Attack& attack : kAttacks) std::printf("%s\n", attack.command);
      return 0;
    }
    const char* const value = i + 1 < count ? arguments[++i] : nullptr;
    if (value == nullptr) return std::fprintf(stderr, "%s needs a value\n", name.c_str()), 2;
    if (name == "--seconds")
      options.seconds = std::atof(value);
    else if (name == "--minutes")
      options.seconds = 60 * std::atof(value);
    else if (name == "--at-a-time" || name == "--clients")
      options.at_a_time = static_cast<unsigned>(std::atoi(value));
    else if (name == "--p99-ms")
      options.p99_ms = std::atof(value);
    else if (name == "--spare-cores")
      options.spare_cores = static_cast<unsigned>(std::atoi(value));
    else if (name == "--without")
      options.without = value;
    else if (name == "--seed")
      options.seed = std::strtoull(value, nullptr, 10);
    else
      return std::fprintf(stderr, "unknown option %s\n", name.c_str()), 2;
  }
  try {
    return Siege(options).run() ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
