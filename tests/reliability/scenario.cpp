// SPDX-License-Identifier: Apache-2.0
#include "tests/reliability/scenario.hpp"

#include <time.h>

#include <algorithm>
#include <deque>
#include <sstream>
#include <stdexcept>
#include <thread>

namespace mpsshim::test {

namespace {

constexpr auto kLimit = std::chrono::seconds(60);
constexpr int kWorkMs = 800;  // how long bystanders at work go on; the fault comes well inside
constexpr auto kUnderWay = std::chrono::milliseconds(100);
// Variables are copied within 50 ms of rest (docs/reliability.md); where other brokers have the GPU in turn it takes longer.
constexpr auto kAtRest = std::chrono::milliseconds(300);

Client attach(Side& side) { return Client(side.start("reliability_client"), Client::Attached::waits); }

void require_ok(const std::string& what, const std::string& answer) {
  if (answer.rfind("ok", 0) != 0) throw std::runtime_error(what + ": " + answer);
}

// "ok VALUE", or what failed.
bool is_ok(const std::string& answer) { return answer.rfind("ok", 0) == 0; }
double value_of(const std::string& answer) {
  double value = -1;
  std::istringstream(answer.substr(std::min<std::size_t>(answer.size(), 3))) >> value;
  return value;
}

bool keeps(Promise promise, const std::string& answer) { return is_ok(answer) || (promise == Promise::goes_on_or_mps_error && is_mps_error(answer)); }

void bring_guilty(Stage& stage) {
  stage.guilty.emplace(attach(stage.side));
  require_ok("the guilty client", stage.guilty->ask("ready"));
}

// `is_alone`: nobody else was at work, so that the guilty one is certain.
Result judge_guilty(Stage& stage, const Fault& fault, bool is_alone) {
  Result result{fault.name, "", stage.guilty_error, -1, false, {}};
  const bool is_own = std::ranges::any_of(fault.errors, [&](int error) { return stage.guilty_error.rfind(std::to_string(error) + " ", 0) == 0; });
  // Once and for all, and in other threads too: whatever it got.
  const std::string code = stage.guilty_error.substr(0, stage.guilty_error.find(' '));
  const bool is_sticky = stage.guilty->ask("probe " + code) == "ok" && stage.guilty->ask("probe " + code) == "ok";
  result.is_kept = (is_own || (!is_alone && is_mps_error(stage.guilty_error))) && is_sticky;
  if (!is_sticky) result.answer += ", not sticky";
  if (!result.is_kept) result.log = stage.guilty->program().errors() + stage.side.log();
  return result;
}

void keep_log(Result& result, Client& client, Side& side) {
  if (!result.is_kept || result.is_late()) result.log = client.program().errors() + side.log();
}

// All idle kinds at once. Each is asked as soon as the fault is over, in turn.
void play_idle(Side& side, const Fault& fault, std::vector<Result>& results) {
  Stage stage(side);
  std::deque<std::pair<const Bystander*, Client>> idle;
  for (const Bystander& bystander : all_bystanders()) {
    if (!bystander.is_idle) continue;
    idle.emplace_back(&bystander, attach(side));
    require_ok(bystander.kind, idle.back().second.ask("hold " + bystander.kind, kLimit));
  }
  bring_guilty(stage);
  std::this_thread::sleep_for(kAtRest);
  fault.strike(stage);
  for (auto& [bystander, client] : idle) client.begin("go_on " + bystander->kind);
  for (auto& [bystander, client] : idle) {
    const std::string answer = client.answer(kLimit);
    const double next_ms = is_ok(answer) ? (value_of(answer) - static_cast<double>(stage.struck_at)) / 1e6 : -1;
    const bool is_at_work = fault.lives_on && bystander->is_kept_at_rest;
    const Promise promise = is_at_work ? Promise::goes_on_or_mps_error : bystander->promise;
    results.push_back({fault.name, bystander->name, is_ok(answer) ? "ok" : answer, next_ms, keeps(promise, answer), {}});
    keep_log(results.back(), client, side);
  }
  if (!fault.errors.empty()) results.push_back(judge_guilty(stage, fault, true));
}

// One that is in the middle of something.
void play_at_work(Side& side, const Fault& fault, const Bystander& bystander, std::vector<Result>& results) {
  Stage stage(side);
  bring_guilty(stage);
  Client client(side.start("reliability_client"), Client::Attached::not_yet);
  if (bystander.kind != "attaching") {
    require_ok(bystander.kind, client.answer());
    require_ok(bystander.kind, client.ask("hold " + bystander.kind, kLimit));
    client.begin("go_on " + bystander.kind + " " + std::to_string(kWorkMs));
    std::this_thread::sleep_for(kUnderWay);
  }
  fault.strike(stage);
  std::string answer = client.answer(kLimit);
  double pause_ms = is_ok(answer) ? value_of(answer) : -1;
  if (bystander.kind == "attaching" && is_ok(answer)) {
    answer = client.ask("hold idle", kLimit);
    if (is_ok(answer)) answer = client.ask("go_on idle", kLimit);
    pause_ms = is_ok(answer) ? (value_of(answer) - static_cast<double>(stage.struck_at)) / 1e6 : -1;
  }
  results.push_back({fault.name, bystander.name, is_ok(answer) ? "ok" : answer, pause_ms, keeps(bystander.promise, answer), {}});
  // Whoever goes on does so for good, and whoever does not keeps its error.
  const std::string then = client.ask(is_ok(answer) ? "probe 0" : "probe " + answer.substr(0, answer.find(' ')), kLimit);
  if (then != "ok" && client.program().running()) {
    results.back().is_kept = false;
    results.back().answer += ", then " + then;
  }
  keep_log(results.back(), client, side);
  if (fault.errors.empty()) return;
  const Result guilty = judge_guilty(stage, fault, false);
  if (!guilty.is_kept) results.push_back(guilty);
}

}  // namespace

Stamp now_stamp() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return Stamp{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

const std::vector<Bystander>& all_bystanders() {
  constexpr auto kEither = Promise::goes_on_or_mps_error;
  static const std::vector<Bystander> bystanders = {
      {"idle", "idle with everything"},
      {"memory", "memory"},
      {"pinned", "pinned memory"},
      {"streams", "streams, events"},
      {"variables", "variables", Promise::goes_on, true, true},
      {"functions", "function pointers", Promise::goes_on, true, true},
      {"heap", "device heap", kEither},
      {"timed", "timed events", kEither},
      {"busy", "busy", kEither, false},
      {"waiting", "in a wait", kEither, false},
      {"attaching", "attaching", kEither, false},
  };
  return bystanders;
}

std::vector<Result> play(SideKind kind, const Fault& fault) {
  std::vector<Result> results;
  // What cannot be set up with another service says something of that service; with ours it is a failure.
  const auto attempt = [&](const std::string& bystander, const std::function<void()>& scenario) {
    try {
      scenario();
    } catch (const std::exception& failure) {
      if (kind == SideKind::ours) throw;
      results.push_back({fault.name, bystander, std::string("not played: ") + failure.what(), -1, false, {}});
    }
  };
  attempt("", [&] { play_idle(*make_side(kind), fault, results); });
  for (const Bystander& bystander : all_bystanders()) {
    if (!bystander.is_idle) attempt(bystander.name, [&] { play_at_work(*make_side(kind), fault, bystander, results); });
  }
  return results;
}

}  // namespace mpsshim::test
