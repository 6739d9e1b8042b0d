// SPDX-License-Identifier: Apache-2.0
// Lines of standard input. Where a person types (input and output are a terminal) with a prompt, and with editing, history and completion by libedit
// where that is installed: it is looked for then, and only then, so mpsctl needs it neither to be built nor to run. One object, one thread.
#pragma once

#include <optional>
#include <string>

namespace mpsshim::broker::ctl {

class LineReader {
 public:
  LineReader();
  LineReader(const LineReader&) = delete;

  // Nothing: the end.
  [[nodiscard]] std::optional<std::string> next();
  [[nodiscard]] bool is_interactive() const { return is_interactive_; }

 private:
  // Of libedit; nullptr without.
  char* (*edit_)(const char* prompt) = nullptr;
  int (*remember_)(const char* line) = nullptr;
  const bool is_interactive_;
};

}  // namespace mpsshim::broker::ctl
