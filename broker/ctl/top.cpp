// SPDX-License-Identifier: Apache-2.0
#include "broker/ctl/top.hpp"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include "broker/commands/document.hpp"
#include "broker/ctl/broker_client.hpp"
#include "broker/ctl/client_rows.hpp"
#include "broker/ctl/screen.hpp"
#include "broker/ctl/top_view.hpp"

namespace mpsshim::broker::ctl {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kAnswerLimit{3'000};
constexpr milliseconds kUsualInterval{2'000};

volatile std::sig_atomic_t end_signal = 0;  // the one that came
volatile std::sig_atomic_t has_new_size = 0;

// Signals come only while it waits, so none is missed between a look at the flags and the wait. ncurses has handlers of its own; these take their
// place, but for SIGTSTP.
class Signals {
 public:
  Signals() {
    sigset_t mine;
    sigemptyset(&mine);
    for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGWINCH}) sigaddset(&mine, number);
    sigprocmask(SIG_BLOCK, &mine, &before_);
  }
  Signals(const Signals&) = delete;
  ~Signals() { sigprocmask(SIG_SETMASK, &before_, nullptr); }

  static void take() {
    struct sigaction action {};
    action.sa_handler = [](int number) { end_signal = number; };
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) sigaction(number, &action, nullptr);
    action.sa_handler = [](int) { has_new_size = 1; };
    sigaction(SIGWINCH, &action, nullptr);
  }
  // Until a key is pressed, a signal comes or the time has come. `reads`: there is a keyboard. False: it has gone.
  [[nodiscard]] bool wait_until(Clock::time_point until, bool reads) const {
    const auto left = std::max(until - Clock::now(), Clock::duration(0));
    const timespec limit{std::chrono::duration_cast<std::chrono::seconds>(left).count(), static_cast<long>((left % std::chrono::seconds(1)).count())};
    pollfd input{STDIN_FILENO, POLLIN, 0};
    const int ready = ppoll(&input, reads ? 1 : 0, &limit, &before_);
    // Where input is ready ppoll() lets no signal in; that of a terminal which hangs up would wait for ever.
    sigset_t mine;
    sigprocmask(SIG_SETMASK, &before_, &mine);
    sigprocmask(SIG_SETMASK, &mine, nullptr);
    return ready <= 0 || (input.revents & (POLLHUP | POLLERR | POLLNVAL)) == 0;
  }
  // Ends the process by the signal, as its parent expects.
  [[noreturn]] static void end_by(int number) {
    signal(number, SIG_DFL);
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, number);
    raise(number);
    sigprocmask(SIG_UNBLOCK, &one, nullptr);
    _exit(128 + number);
  }

 private:
  sigset_t before_{};
};

std::string time_of_day() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  return fmt::format("{:02}:{:02}:{:02}", local.tm_hour, local.tm_min, local.tm_sec);
}

class Top {
 public:
  Top(const std::string& directory, const ParsedCommand& command)
      : directory_(directory),
        command_(command),
        question_(command.has("-p") ? "ps --csv -p " + command.text("-p") : "ps --csv"),
        interval_(command.has("--interval") ? *parse_interval(command.text("--interval")) : kUsualInterval),
        key_(command.has("--sort") ? command.text("--sort") : std::string(kSortKeys.front())),
        left_(command.has("-n") ? std::optional(command.number("-n")) : std::nullopt) {}

  // Of each look a page, or a line of JSON.
  TopEnd as_text() {
    const Signals signals;
    Signals::take();
    for (;;) {
      if (TopEnd end = look(); end.status != 0) return end;
      fmt::print("{}", command_.format() == AnswerFormat::json ? line() : page());
      if (std::fflush(stdout) != 0) return {1, "what it shows cannot be written"};
      if (is_last()) return {};
      if (command_.format() == AnswerFormat::text) fmt::print("\n");
      const Clock::time_point next = Clock::now() + interval_;
      while (end_signal == 0 && Clock::now() < next) (void)signals.wait_until(next, false);
      if (end_signal != 0) Signals::end_by(end_signal);
    }
  }

  TopEnd on_screen() {
    const Signals signals;
    std::string why;
    if (!screen_.open(why)) return {1, fmt::format("top needs a terminal with a screen: {}; top -b shows the same as text", why)};
    Signals::take();
    for (;;) {
      const TopEnd end = look();
      show(end.fault);
      if (is_last()) return {};
      const Clock::time_point next = Clock::now() + interval_;
      is_to_look_ = false;
      while (end_signal == 0 && !is_to_look_ && Clock::now() < next) {
        if (!signals.wait_until(next, true) && end_signal == 0) return {1, "the terminal has hung up"};
        if (std::exchange(has_new_size, 0) != 0) screen_.take_size(), show(end.fault);
        while (const auto pressed = screen_.key()) {
          if (*pressed == 'q' || *pressed == 'Q') return {};
          press(*pressed, end.fault);
        }
      }
      if (end_signal == 0) continue;
      screen_.leave();
      Signals::end_by(end_signal);
    }
  }

 private:
  // What the broker says now, held against what it said before.
  TopEnd look() {
    const Answer answer = BrokerClient(directory_).ask(question_, kAnswerLimit);
    if (!answer.was_asked) return {2, answer.text};
    if (!answer.ok) return {1, answer.text};
    std::optional<ClientRows> rows = read_clients(answer.text);
    if (!rows) return {1, "the broker's answer is of another version: look at mpsctl --version and mpsbroker --version"};
    compare(*rows, rows_);
    rows_ = std::move(*rows);
    return {};
  }
  [[nodiscard]] std::string page() const {
    const TopView view = view_of(rows_, directory_, time_of_day(), key_);
    std::string text = fmt::format("{}\n{}\n", view.title, view.headings);
    for (const std::string& client : view.clients) text += client + '\n';
    return text;
  }
  [[nodiscard]] std::string line() const {
    JsonWriter json = begin_document(command_);
    write_rows(json.key("clients"), table_of(rows_, key_));
    return end_document(json);
  }
  bool is_last() { return left_ && --*left_ == 0; }

  void press(int key, const std::string& fault) {
    for (const std::string_view name : kSortKeys) {
      if (name.front() == key) key_ = name;
    }
    is_to_look_ = key == ' ';
    show(fault);
  }

  void show(const std::string& fault) {
    constexpr std::size_t kAbove = 2;
    const TopView view = view_of(rows_, directory_, time_of_day(), key_);
    screen_.begin_page();
    screen_.write(0, fault.empty() ? view.title : "mpsctl: " + fault);
    screen_.write(1, view.headings + std::string(screen_.width(), ' '), true);
    for (std::size_t i = 0; i < view.clients.size(); ++i) screen_.write(kAbove + i, view.clients[i]);
    screen_.show_page();
  }

  const std::string directory_;
  const ParsedCommand command_;
  const std::string question_;
  const milliseconds interval_;
  std::string key_;
  std::optional<std::uint64_t> left_;
  ClientRows rows_;
  bool is_to_look_ = false;
  Screen screen_;
};

}  // namespace

TopEnd run_top(const std::string& directory, const ParsedCommand& command) {
  Top top(directory, command);
  const bool is_for_programs = command.format() == AnswerFormat::json;
  return is_for_programs || command.has("-b") || command.has("--batch") ? top.as_text() : top.on_screen();
}

}  // namespace mpsshim::broker::ctl
