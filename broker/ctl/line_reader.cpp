// SPDX-License-Identifier: Apache-2.0
#include "broker/ctl/line_reader.hpp"

#include <algorithm>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include <dlfcn.h>
#include <unistd.h>

#include "broker/commands/command_table.hpp"

namespace mpsshim::broker::ctl {

namespace {

constexpr const char* kPrompt = "mpsctl> ";
// The library's name with the version of its interface: what is declared here belongs to that (editline/readline.h).
constexpr const char* kLibrary = "libedit.so.2";
using Generator = char*(const char* text, int state);
using Completion = char**(const char* text, int begin, int end);

// What libedit asks while it completes one word; it has no place for anything of ours.
struct Completer {
  char** (*matches)(const char* text, Generator* generator) = nullptr;
  int* is_over = nullptr;             // no names of files after ours
  const char** line = nullptr;        // as it stands
  std::vector<std::string> offers{};  // for the word at the cursor
  std::size_t next = 0;
};
Completer completer;

// Commands for the first word, verbs for the second of one that takes them, that command's options for others.
void gather_offers(std::string_view before, std::string_view word) {
  completer.offers.clear();
  before.remove_prefix(std::min(before.find_first_not_of(' '), before.size()));
  if (before.empty()) {
    for (const CommandSpec& command : command_table()) {
      const std::string_view name = command.name.substr(0, command.name.find(' '));
      if (completer.offers.empty() || completer.offers.back() != name) completer.offers.emplace_back(name);
    }
  } else if (const CommandSpec* command = leading_command(before); command == nullptr) {
    for (const CommandSpec& other : command_table()) {
      if (other.name.starts_with(before)) completer.offers.emplace_back(other.name.substr(before.size()));
    }
  } else {
    for (const OptionSpec& option : command->options) completer.offers.emplace_back(option.name);
  }
  std::erase_if(completer.offers, [word](const std::string& offer) { return !offer.starts_with(word); });
}

char* next_offer(const char* /*text*/, int state) {
  if (state == 0) completer.next = 0;
  return completer.next < completer.offers.size() ? strdup(completer.offers[completer.next++].c_str()) : nullptr;  // libedit frees it
}

char** complete(const char* text, int begin, int /*end*/) {
  *completer.is_over = 1;
  gather_offers(std::string_view(*completer.line).substr(0, static_cast<std::size_t>(begin)), text);
  return completer.matches(text, next_offer);
}

bool is_terminal() { return isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1; }

bool can_edit() {
  const char* const terminal = std::getenv("TERM");
  return terminal != nullptr && *terminal != '\0' && std::strcmp(terminal, "dumb") != 0;
}

template <typename Symbol>
bool find(void* library, const char* name, Symbol*& symbol) {
  symbol = reinterpret_cast<Symbol*>(dlsym(library, name));
  return symbol != nullptr;
}

}  // namespace

LineReader::LineReader() : is_interactive_(is_terminal()) {
  if (!is_interactive_ || !can_edit()) return;
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);  // it stays
  if (library == nullptr) return;
  Completion** hook = nullptr;
  const bool is_whole = find(library, "add_history", remember_) && find(library, "rl_attempted_completion_function", hook) &&
                        find(library, "rl_attempted_completion_over", completer.is_over) && find(library, "rl_line_buffer", completer.line) &&
                        find(library, "rl_completion_matches", completer.matches) && find(library, "readline", edit_);
  if (!is_whole) {
    edit_ = nullptr;
    return;
  }
  std::setlocale(LC_CTYPE, "");  // for characters of several bytes
  *hook = complete;
}

std::optional<std::string> LineReader::next() {
  std::string line;
  if (edit_ != nullptr) {
    std::fflush(stdout);
    char* const typed = edit_(kPrompt);
    if (typed == nullptr) {
      std::fputs("\n", stdout);
      return std::nullopt;
    }
    line = typed;
    std::free(typed);
    if (!line.empty()) remember_(line.c_str());
    return line;
  }
  if (is_interactive_) {
    std::fputs(kPrompt, stdout);
    std::fflush(stdout);
  }
  if (std::getline(std::cin, line)) return line;
  if (is_interactive_) std::fputs("\n", stdout);
  return std::nullopt;
}

}  // namespace mpsshim::broker::ctl
