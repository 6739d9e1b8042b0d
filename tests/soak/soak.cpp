// SPDX-License-Identifier: Apache-2.0
// mpsshim_soak [--minutes M | --seconds S] [--clients N] [--seed N]: N clients at random work (programs/soak_client.cpp), one in three of which is
// killed, stopped for a while, stopped and killed, or faults; whoever has ended is followed by another. In the end the broker must hold what it held
// before, and no client may have seen a wrong word or an error that was not its own. Prints what became of them; exit status 1 where something
// was wrong. The same seed gives the same clients and fates.
// mpsshim_soak --verify [...]: see verifying.hpp, and scripts/soak --help.
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/soak/verifying.hpp"
#include "tests/support/broker_fixture.hpp"

using namespace mpsshim::test;

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kStuck{90};         // beyond a client's own time: it waits for something that does not come
constexpr std::chrono::seconds kBetweenFaults{4};  // five deaths of an executor within ten seconds make the broker pause on purpose
constexpr std::chrono::seconds kBackLimit{30};

struct Options {
  double seconds = 20;
  unsigned clients = 32;
  std::uint64_t seed = 1;
};

enum class Fate { none, killed, stopped, stopped_and_killed, faults };
constexpr const char* kFateNames[] = {"left alone", "killed", "stopped", "stopped and killed", "faulting"};

struct Participant {
  Program program;
  Fate fate = Fate::none;
  std::uint64_t seed = 0;
  Clock::time_point ends;       // by its own count
  Clock::time_point strikes;    // when its fate does
  Clock::time_point continues;  // after a stop
  bool is_struck = false;
  bool is_standing = false;
};

struct Tally {
  unsigned started = 0;
  std::map<Fate, unsigned> fates;
  std::map<std::string, unsigned> ends;  // "ok", "lost", "faulted", "killed"
  std::vector<std::string> wrong;
};

class Soak {
 public:
  explicit Soak(const Options& options) : options_(options), random_(options.seed), broker_(make_broker()) {}
  [[nodiscard]] bool run();

 private:
  // Work that a killed client had in flight may run on for a while: on a busy machine no executor is replaced for that alone.
  static BrokerOptions make_broker() {
    BrokerOptions options;
    options.arguments = {"--orphan-ms", "5000", "--drain-ms", "2000"};
    return options;
  }
  [[nodiscard]] std::chrono::milliseconds within(int least_ms, int most_ms) {
    return std::chrono::milliseconds(least_ms + static_cast<int>(random_() % static_cast<unsigned>(most_ms - least_ms)));
  }
  [[nodiscard]] Fate choose_fate();
  void start_one();
  void strike(Participant& participant);
  [[nodiscard]] bool look_after(Participant& participant);  // false: it has ended
  void note_end(Participant& participant);
  void warm_up();
  [[nodiscard]] bool is_all_back();
  void report(double seconds) const;

  const Options options_;
  std::mt19937_64 random_;
  BrokerFixture broker_;
  Resources before_;
  std::vector<std::unique_ptr<Participant>> crowd_;
  Clock::time_point end_;
  Clock::time_point last_fault_{};
  Tally tally_;
};

Fate Soak::choose_fate() {
  if (random_() % 3 != 0) return Fate::none;
  const auto fate = static_cast<Fate>(1 + random_() % 4);
  if (fate != Fate::faults) return fate;
  if (Clock::now() - last_fault_ < kBetweenFaults) return Fate::killed;
  last_fault_ = Clock::now();
  return fate;
}

void Soak::start_one() {
  const Fate fate = choose_fate();
  const std::uint64_t seed = random_();
  const auto life = within(500, 8'000);
  ProgramOptions options;
  options.arguments = {"--seed", std::to_string(seed), "--seconds", std::to_string(static_cast<double>(life.count()) / 1000)};
  if (fate == Fate::faults) options.arguments.insert(options.arguments.end(), {"--fault-after", std::to_string(random_() % 200)});
  const auto now = Clock::now();
  crowd_.push_back(std::make_unique<Participant>(
      Participant{broker_.start("soak_client", options), fate, seed, now + life, now + within(0, static_cast<int>(life.count())), {}}));
  ++tally_.started;
  ++tally_.fates[fate];
}

void Soak::strike(Participant& participant) {
  participant.is_struck = true;
  switch (participant.fate) {
    case Fate::none:
    case Fate::faults: return;
    case Fate::killed: return participant.program.send(SIGKILL);
    case Fate::stopped:
    case Fate::stopped_and_killed:
      participant.is_standing = true;
      participant.continues = Clock::now() + within(1, 2'000);
      return participant.program.send(SIGSTOP);
  }
}

bool Soak::look_after(Participant& participant) {
  if (!participant.program.running()) {
    note_end(participant);
    return false;
  }
  const auto now = Clock::now();
  if (!participant.is_struck && now >= participant.strikes) strike(participant);
  if (participant.is_standing && now >= participant.continues) {
    participant.is_standing = false;
    participant.ends += std::chrono::seconds(2);
    participant.program.send(participant.fate == Fate::stopped ? SIGCONT : SIGKILL);
  }
  if (now < participant.ends + kStuck) return true;
  tally_.wrong.push_back("a client (pid " + std::to_string(participant.program.pid()) + ", seed " + std::to_string(participant.seed) + ", " +
                         kFateNames[static_cast<int>(participant.fate)] + ") does not end");
  participant.program.send(SIGKILL);
  return false;
}

void Soak::note_end(Participant& participant) {
  const Outcome& outcome = participant.program.wait();
  const bool may_be_killed = participant.fate == Fate::killed || participant.fate == Fate::stopped_and_killed;
  if (outcome.signal == SIGKILL && may_be_killed) {
    ++tally_.ends["killed"];
    return;
  }
  const std::string end = outcome.output.substr(0, outcome.output.find(' '));
  const bool is_known = end == "ok" || end == "lost" || (end == "faulted" && participant.fate == Fate::faults);
  if (outcome.ok() && is_known) {
    ++tally_.ends[end];
    return;
  }
  tally_.wrong.push_back("a client (" + std::string(kFateNames[static_cast<int>(participant.fate)]) + "): " + outcome.explain());
}

// What the first clients alone cost, and the threads of a driver, are there.
void Soak::warm_up() {
  ProgramOptions quick;
  quick.arguments = {"--seconds", "1"};
  for (int i = 0; i < 4; ++i)
    crowd_.push_back(std::make_unique<Participant>(Participant{broker_.start("soak_client", quick), Fate::none, 0, {}, {}, {}}));
  for (const auto& participant : crowd_) {
    const Outcome& outcome = participant->program.wait();
    if (!outcome.ok()) tally_.wrong.push_back("in the warm-up: " + outcome.explain());
  }
  crowd_.clear();
  (void)broker_.wait_for_clients(0);
  before_ = broker_.settled_resources();
}

// A new executor has fewer threads than one that has served many: those of the driver come with work. It is descriptors and processes that
// must not grow; threads may reach what the crowd needed at once.
bool Soak::is_all_back() {
  if (!broker_.wait_for_clients(0, kBackLimit)) return false;
  return eventually(kBackLimit, [&] {
    const Resources now = broker_.resources();
    return now.processes <= before_.processes && now.fds <= before_.fds && now.threads <= before_.threads + 4;
  });
}

void Soak::report(double seconds) const {
  std::printf("soak of %.0f s, %u clients at a time, seed %llu: %u clients", seconds, options_.clients,
              static_cast<unsigned long long>(options_.seed), tally_.started);
  for (const auto& [fate, count] : tally_.fates) std::printf(", %u %s", count, kFateNames[static_cast<int>(fate)]);
  std::printf("; ends:");
  for (const auto& [end, count] : tally_.ends) std::printf(" %u %s", count, end.c_str());
  std::printf("; %zu wrong\n", tally_.wrong.size());
  for (const std::string& text : tally_.wrong) std::printf("WRONG: %s\n", text.c_str());
}

bool Soak::run() {
  warm_up();
  const auto start = Clock::now();
  end_ = start + std::chrono::milliseconds(static_cast<long>(options_.seconds * 1000));
  while (Clock::now() < end_ || !crowd_.empty()) {
    while (Clock::now() < end_ && crowd_.size() < options_.clients) start_one();
    std::erase_if(crowd_, [this](const auto& participant) { return !look_after(*participant); });
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  if (!is_all_back()) {
    tally_.wrong.push_back("the broker does not hold what it held before:\nbefore: " + before_.explain() + "after: " + broker_.resources().explain());
  }
  const Outcome after = broker_.run("soak_client", std::vector<std::string>{"--seconds", "0.5"});
  if (!after.ok() || !after.output.starts_with("ok")) tally_.wrong.push_back("a client after all that: " + after.explain());
  report(std::chrono::duration<double>(Clock::now() - start).count());
  if (!tally_.wrong.empty()) std::printf("%s\n", broker_.log().c_str());
  return tally_.wrong.empty();
}

// Each program costs three descriptors here.
void raise_file_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

int verify(const std::vector<std::string>& words) {
  mpsshim::soak::VerifyOptions options;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const auto value = [&] { return i + 1 < words.size() ? words[++i] : std::string(); };
    if (words[i] == "--minutes")
      options.seconds = 60 * std::atof(value().c_str());
    else if (words[i] == "--seconds")
      options.seconds = std::atof(value().c_str());
    else if (words[i] == "--round")
      options.round_seconds = std::atof(value().c_str());
    else if (words[i] == "--clients")
      options.clients = static_cast<unsigned>(std::atoi(value().c_str()));
    else if (words[i] == "--seed")
      options.seed = std::strtoull(value().c_str(), nullptr, 10);
    else if (words[i] == "--only")
      options.only = value();
    else if (words[i] == "--driver")
      options.driver = value();
    else if (words[i] == "--keep")
      options.keep = value();
    else if (words[i] == "--native")
      options.is_native = true;
    else if (words[i] == "--plain")
      options.is_plain = true;
    else if (words[i] == "--everything")
      options.has_everything = true;
    else if (words[i] == "--go-on")
      options.goes_on = true;
    else if (words[i] != "--verify")
      return std::fprintf(stderr, "mpsshim_soak: unknown option %s\n", words[i].c_str()), 2;
  }
  return mpsshim::soak::verify(options);
}

}  // namespace

int main(int count, char** arguments) {
  const std::vector<std::string> words(arguments + 1, arguments + count);
  if (std::ranges::find(words, "--verify") != words.end()) {
    raise_file_limit();
    return verify(words);
  }
  Options options;
  for (int i = 1; i + 1 < count; i += 2) {
    const std::string name = arguments[i];
    if (name == "--minutes") options.seconds = 60 * std::atof(arguments[i + 1]);
    if (name == "--seconds") options.seconds = std::atof(arguments[i + 1]);
    if (name == "--clients") options.clients = static_cast<unsigned>(std::atoi(arguments[i + 1]));
    if (name == "--seed") options.seed = std::strtoull(arguments[i + 1], nullptr, 10);
  }
  raise_file_limit();
  Soak soak(options);
  return soak.run() ? 0 : 1;
}
