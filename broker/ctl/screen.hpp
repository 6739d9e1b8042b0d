// SPDX-License-Identifier: Apache-2.0
// The whole terminal, by ncurses where that is installed: it is looked for when the screen is opened, so mpsctl needs it neither to be built nor to
// run. The terminal is as it was again when the object goes, or leave() was called. One object, one thread; who opens it sees to signals.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace mpsshim::broker::ctl {

struct Curses;  // the functions of the library that are used

class Screen {
 public:
  Screen() = default;
  Screen(const Screen&) = delete;
  ~Screen() { leave(); }

  // False, with the reason: there is no terminal, it cannot do this, or the library is not there.
  [[nodiscard]] bool open(std::string& why);
  void leave();

  [[nodiscard]] std::size_t width() const { return width_; }
  [[nodiscard]] std::size_t height() const { return height_; }
  void begin_page();
  void write(std::size_t line, std::string_view text, bool is_inverse = false);  // what is too long is cut
  void show_page();
  void take_size();                              // the terminal has another one
  [[nodiscard]] std::optional<int> key() const;  // nothing: none was pressed

 private:
  const Curses* curses_ = nullptr;
  void* screen_ = nullptr;
  void* window_ = nullptr;
  std::size_t width_ = 0;
  std::size_t height_ = 0;
};

}  // namespace mpsshim::broker::ctl
