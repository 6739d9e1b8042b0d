// SPDX-License-Identifier: Apache-2.0
#include "tests/soak/verifying.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "tests/soak/regime.hpp"
#include "tests/soak/verify/tally.hpp"

namespace mpsshim::soak {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::chrono::seconds kStuck{60};  // beyond a client's own time
constexpr std::chrono::seconds kProgressInterval{5};
constexpr std::chrono::seconds kBackLimit{30};
constexpr std::chrono::seconds kOthersMayFail{2};  // behind the first difference, before all are ended

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// The file that all clients count in.
class TallyFile {
 public:
  TallyFile() : path_(folder_.path() / "tally") {
    const int file = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, sizeof(Tally)) != 0) throw std::system_error(errno, std::generic_category(), path_);
    memory_ = mmap(nullptr, sizeof(Tally), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (memory_ == MAP_FAILED) throw std::system_error(errno, std::generic_category(), path_);
  }
  TallyFile(const TallyFile&) = delete;
  ~TallyFile() { munmap(memory_, sizeof(Tally)); }
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] const Tally& operator*() const { return *static_cast<const Tally*>(memory_); }
  [[nodiscard]] std::uint64_t sequences() const {
    std::uint64_t sum = 0;
    for (const auto& count : (**this).sequences) sum += count.load(std::memory_order_relaxed);
    return sum;
  }

 private:
  test::TemporaryFolder folder_;
  std::string path_;
  void* memory_ = nullptr;
};

struct Member {
  test::Program program;
  Clock::time_point ends;  // by its own count
  std::optional<Clock::time_point> killed_at;
  bool is_killed = false;
};

class VerifyingSoak {
 public:
  explicit VerifyingSoak(const VerifyOptions& options) : options_(options), random_(options.seed) {}
  [[nodiscard]] int run();

 private:
  void play_round(Regime regime, double seconds);
  void start_one(Clock::time_point round_end);
  [[nodiscard]] test::Program start_client(std::vector<std::string> arguments);
  [[nodiscard]] bool look_after(Member& member);  // false: it has ended
  void restart_executors();
  void note_wrong(const std::string& what);
  void keep_log();
  void show_progress();
  [[nodiscard]] Handovers round_handovers() const;
  void report() const;

  const VerifyOptions options_;
  Random random_;
  TallyFile tally_;
  const Clock::time_point start_ = Clock::now();
  unsigned round_ = 0;
  Regime regime_;
  std::unique_ptr<test::BrokerFixture> broker_;
  std::vector<std::unique_ptr<Member>> crowd_;
  std::optional<test::Program> restart_;
  Clock::time_point next_restart_, next_progress_ = start_ + kProgressInterval;
  Handovers handovers_, in_round_;
  std::uint64_t clients_ = 0, killed_ = 0;
  std::vector<std::string> wrong_;
  std::optional<Clock::time_point> first_wrong_;
};

test::Program VerifyingSoak::start_client(std::vector<std::string> arguments) {
  test::ProgramOptions client;
  client.arguments = std::move(arguments);
  const auto add = [&](std::initializer_list<std::string> more) { client.arguments.insert(client.arguments.end(), more); };
  add({"--seed", std::to_string(random_.number() >> 1), "--tally", tally_.path()});
  if (!options_.only.empty()) add({"--only", options_.only});
  if (!test::on_gpu() && !options_.is_native) add({"--small"});
#ifdef MPSSHIM_SOAK_CUBLAS
  if (test::on_gpu() && random_.one_in(4)) add({"--cublas", MPSSHIM_SOAK_CUBLAS});
#endif
  ++clients_;
  if (options_.is_native) add({"--narrow-nodes"});
  if (options_.is_native) return test::Program(test::built_program("soak_verify"), client);
  if (regime_.staging_kib != 0) client.environment["MPSSHIM_STAGING_KIB"] = std::to_string(regime_.staging_kib);
  return broker_->start("soak_verify", client);
}

// Most stay for a while; others come, do a thing or two, and go; some are killed.
void VerifyingSoak::start_one(Clock::time_point round_end) {
  const double left = std::chrono::duration<double>(round_end - Clock::now()).count();
  const double life = std::clamp(0.001 * static_cast<double>(random_.between(500, 20'000)), 0.5, std::max(left, 0.5));
  std::vector<std::string> arguments = {"--seconds", std::to_string(life)};
  std::optional<Clock::time_point> killed_at;
  const std::size_t choice = random_.below(20);
  if (choice < 4) arguments.insert(arguments.end(), {"--sequences", std::to_string(random_.of_any_size(16))});
  if (choice == 4 || choice == 0) arguments.emplace_back("--leave");
  if (choice == 5) killed_at = Clock::now() + milliseconds(static_cast<long>(1'000 * life * static_cast<double>(random_.below(1'000)) / 1'000));
  if (choice == 6 || choice == 7) arguments.insert(arguments.end(), {"--threads", std::to_string(random_.between(2, 3))});
  // A session whose modules have variables stands in the way of a restart.
  if (regime_.restart_ms != 0) arguments.insert(arguments.end(), {"--without", "modules"});
  auto program = start_client(std::move(arguments));
  const auto ends = Clock::now() + milliseconds(static_cast<long>(1'000 * life));
  crowd_.push_back(std::make_unique<Member>(Member{std::move(program), ends, killed_at, false}));
}

bool VerifyingSoak::look_after(Member& member) {
  if (member.program.running()) {
    if (member.killed_at && !member.is_killed && Clock::now() >= *member.killed_at) {
      member.is_killed = true;
      ++killed_;
      member.program.send(SIGKILL);
    }
    if (Clock::now() < member.ends + kStuck) return true;
    member.program.send(SIGABRT);
    note_wrong("a client does not end: " + member.program.wait(std::chrono::seconds(5)).explain());
    return false;
  }
  const test::Outcome& outcome = member.program.wait();
  const bool is_fine = outcome.ok() || (member.is_killed && outcome.signal == SIGKILL);
  if (!is_fine) note_wrong(outcome.exit_code == 1 ? outcome.errors : "a client ended badly: " + outcome.explain());
  return false;
}

void VerifyingSoak::note_wrong(const std::string& what) {
  if (!first_wrong_) first_wrong_ = Clock::now();
  wrong_.push_back("round " + std::to_string(round_) + " (" + regime_.explain() + "), after " + std::to_string(seconds_since(start_)) +
                   " s: " + what);
  std::printf("%s\n", wrong_.back().c_str());
  std::fflush(stdout);
}

// All sessions come to rest and go on in the next life. Refused where somebody's work does not end in time: nothing may change then.
void VerifyingSoak::restart_executors() {
  if (regime_.restart_ms == 0) return;
  if (restart_) {
    if (restart_->running()) return;
    const test::Outcome& outcome = restart_->wait();
    ++(outcome.ok() ? in_round_.restarts : in_round_.restarts_refused);
    restart_.reset();
    next_restart_ = Clock::now() + milliseconds(regime_.restart_ms);
    return;
  }
  if (Clock::now() < next_restart_) return;
  test::ProgramOptions ctl;
  ctl.arguments = {"--pipe-dir", broker_->pipe_dir(), "restart", "-t", "5", "executors"};
  restart_.emplace(test::built_program("mpsctl"), ctl);
}

Handovers VerifyingSoak::round_handovers() const {
  Handovers now = in_round_;
  if (broker_) now.read(broker_->log());
  return now;
}

void VerifyingSoak::show_progress() {
  if (Clock::now() < next_progress_) return;
  next_progress_ = Clock::now() + kProgressInterval;
  Handovers all = handovers_;
  all.add(round_handovers());
  std::printf("%5.0f s, round %u: %s sequences, %s operations, %s clients; %s\n", seconds_since(start_), round_, grouped(tally_.sequences()).c_str(),
              grouped((*tally_).operations.load()).c_str(), grouped(clients_).c_str(), all.explain().c_str());
  std::fflush(stdout);
}

void VerifyingSoak::keep_log() {
  std::error_code error;
  std::filesystem::create_directories(options_.keep, error);
  const std::string path = options_.keep + "/seed-" + std::to_string(options_.seed) + "-round-" + std::to_string(round_) + ".log";
  std::ofstream file(path);
  for (const std::string& text : wrong_) file << text << "\n";
  if (broker_) file << broker_->log();
  std::printf("What the broker said is in %s\n", path.c_str());
}

void VerifyingSoak::play_round(Regime regime, double seconds) {
  ++round_;
  regime_ = regime;
  in_round_ = {};
  const std::size_t wrong_before = wrong_.size();
  std::printf("Round %u, %.0f s: %s\n", round_, seconds, options_.is_native ? "native" : regime_.explain().c_str());
  std::fflush(stdout);
  if (!options_.is_native) broker_ = std::make_unique<test::BrokerFixture>(regime_.broker(options_.driver));
  const auto begun = Clock::now();
  const auto end = begun + milliseconds(static_cast<long>(seconds * 1'000));
  next_restart_ = begun + milliseconds(regime_.restart_ms);
  while (Clock::now() < end || !crowd_.empty() || restart_) {
    const bool gives_up = first_wrong_ && !options_.goes_on && Clock::now() - *first_wrong_ > kOthersMayFail;
    if (gives_up) break;
    for (int started = 0; Clock::now() < end && crowd_.size() < options_.clients && started < 4; ++started) start_one(end);
    std::erase_if(crowd_, [this](const auto& member) { return !look_after(*member); });
    if (Clock::now() < end || restart_) restart_executors();
    show_progress();
    std::this_thread::sleep_for(milliseconds(2));
  }
  crowd_.clear();
  restart_.reset();
  if (broker_ && wrong_.size() == wrong_before) {
    if (!broker_->wait_for_clients(0, kBackLimit)) note_wrong("sessions of clients that have gone are left");
    test::Program last = start_client({"--sequences", "20", "--seconds", "20"});
    if (const test::Outcome& outcome = last.wait(kStuck); !outcome.ok()) note_wrong("a client after all that: " + outcome.explain());
  }
  if (wrong_.size() != wrong_before) keep_log();
  handovers_.add(round_handovers());
  broker_.reset();
}

void VerifyingSoak::report() const {
  std::printf("Verified in %.0f s, %u rounds, seed %llu: %s sequences, %s operations, %s clients (%s killed); %s\n", seconds_since(start_), round_,
              static_cast<unsigned long long>(options_.seed), grouped(tally_.sequences()).c_str(), grouped((*tally_).operations.load()).c_str(),
              grouped(clients_).c_str(), grouped(killed_).c_str(), handovers_.explain().c_str());
  std::printf("Sequences:");
  for (std::size_t i = 0; i < kKinds; ++i) std::printf(" %s %s", kKindNames[i], grouped((*tally_).sequences[i].load()).c_str());
  std::printf("\n%zu wrong\n", wrong_.size());
}

int VerifyingSoak::run() {
  std::printf("Verifying soak of %.0f s, %u clients at a time, seed %llu\n", options_.seconds, options_.clients,
              static_cast<unsigned long long>(options_.seed));
  while (seconds_since(start_) < options_.seconds && (wrong_.empty() || options_.goes_on)) {
    Regime regime;  // the first round forces everything, the second nothing
    if (options_.has_everything || (round_ == 0 && !options_.is_plain)) regime = Regime::with_everything();
    if (round_ > 1 && !options_.is_plain && !options_.has_everything) regime = Regime::at_random(random_);
    play_round(regime, std::min(options_.round_seconds, std::max(1.0, options_.seconds - seconds_since(start_))));
  }
  report();
  return wrong_.empty() ? 0 : 1;
}

}  // namespace

int verify(const VerifyOptions& options) {
  VerifyingSoak soak(options);
  return soak.run();
}

}  // namespace mpsshim::soak
