// SPDX-License-Identifier: Apache-2.0
#include "broker/ctl/screen.hpp"

#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <dlfcn.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "broker/ctl/top_view.hpp"

namespace mpsshim::broker::ctl {

// As curses.h declares them; SCREEN and WINDOW are the library's own.
struct Curses {
  void* (*newterm)(const char* type, FILE* output, FILE* input) = nullptr;
  void* (*newwin)(int lines, int columns, int y, int x) = nullptr;
  int (*endwin)() = nullptr;
  void (*delscreen)(void* screen) = nullptr;
  int (*cbreak)() = nullptr;
  int (*noecho)() = nullptr;
  int (*curs_set)(int visibility) = nullptr;
  int (*nodelay)(void* window, bool is_set) = nullptr;
  int (*wgetch)(void* window) = nullptr;
  int (*werase)(void* window) = nullptr;
  int (*wmove)(void* window, int y, int x) = nullptr;
  int (*waddnstr)(void* window, const char* text, int bytes) = nullptr;
  int (*wattrset)(void* window, int attributes) = nullptr;
  int (*wrefresh)(void* window) = nullptr;
  int (*wresize)(void* window, int lines, int columns) = nullptr;
  int (*resizeterm)(int lines, int columns) = nullptr;
};

namespace {

// The library's name with the version of its interface: what is declared above belongs to that.
constexpr const char* kLibrary = "libncursesw.so.6";
constexpr int kInverse = 1 << 18;  // A_REVERSE
constexpr int kMostCells = 1'000;

template <typename Symbol>
bool find(void* library, const char* name, Symbol*& symbol) {
  symbol = reinterpret_cast<Symbol*>(dlsym(library, name));
  return symbol != nullptr;
}

const Curses* load() {
  static Curses curses;
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);  // it stays
  if (library == nullptr) return nullptr;
  const bool is_whole =
      find(library, "newterm", curses.newterm) && find(library, "newwin", curses.newwin) && find(library, "endwin", curses.endwin) &&
      find(library, "delscreen", curses.delscreen) && find(library, "cbreak", curses.cbreak) && find(library, "noecho", curses.noecho) &&
      find(library, "curs_set", curses.curs_set) && find(library, "nodelay", curses.nodelay) && find(library, "wgetch", curses.wgetch) &&
      find(library, "werase", curses.werase) && find(library, "wmove", curses.wmove) && find(library, "waddnstr", curses.waddnstr) &&
      find(library, "wattrset", curses.wattrset) && find(library, "wrefresh", curses.wrefresh) && find(library, "wresize", curses.wresize) &&
      find(library, "resizeterm", curses.resizeterm);
  return is_whole ? &curses : nullptr;
}

}  // namespace

bool Screen::open(std::string& why) {
  const char* const terminal = std::getenv("TERM");
  if (isatty(STDIN_FILENO) != 1 || isatty(STDOUT_FILENO) != 1) {
    why = "input and output are no terminal";
    return false;
  }
  if (terminal == nullptr || *terminal == '\0' || std::strcmp(terminal, "dumb") == 0) {
    why = "TERM names no terminal with a screen";
    return false;
  }
  const Curses* const curses = load();
  if (curses == nullptr) {
    why = std::string("ncurses (") + kLibrary + ") is not installed";
    return false;
  }
  std::setlocale(LC_CTYPE, "");  // for characters of several bytes
  screen_ = curses->newterm(nullptr, stdout, stdin);
  if (screen_ == nullptr) {
    why = std::string("the terminal ") + terminal + " is not known to ncurses";
    return false;
  }
  curses_ = curses;
  curses->cbreak();
  curses->noecho();
  curses->curs_set(0);
  window_ = curses->newwin(0, 0, 0, 0);
  curses->nodelay(window_, true);
  take_size();
  return true;
}

void Screen::leave() {
  if (curses_ == nullptr) return;
  curses_->endwin();
  curses_->delscreen(std::exchange(screen_, nullptr));
  curses_ = nullptr;
}

void Screen::take_size() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_row == 0 || size.ws_col == 0) size = {24, 80, 0, 0};
  if (size.ws_row > kMostCells) size.ws_row = kMostCells;
  if (size.ws_col > kMostCells) size.ws_col = kMostCells;
  curses_->resizeterm(size.ws_row, size.ws_col);
  curses_->wresize(window_, size.ws_row, size.ws_col);
  width_ = size.ws_col;
  height_ = size.ws_row;
}

void Screen::begin_page() { curses_->werase(window_); }

void Screen::write(std::size_t line, std::string_view text, bool is_inverse) {
  if (line >= height_) return;
  // The last cell of the last line would make the terminal scroll.
  const std::string_view part = cut_to(text, line + 1 == height_ ? width_ - 1 : width_);
  curses_->wattrset(window_, is_inverse ? kInverse : 0);
  curses_->wmove(window_, static_cast<int>(line), 0);
  curses_->waddnstr(window_, part.data(), static_cast<int>(part.size()));
  curses_->wattrset(window_, 0);
}

void Screen::show_page() { curses_->wrefresh(window_); }

std::optional<int> Screen::key() const {
  const int pressed = curses_->wgetch(window_);
  return pressed < 0 ? std::nullopt : std::optional(pressed);
}

}  // namespace mpsshim::broker::ctl
