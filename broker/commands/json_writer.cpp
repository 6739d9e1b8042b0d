// SPDX-License-Identifier: Apache-2.0
#include "broker/commands/json_writer.hpp"

#include <fmt/format.h>

#include "broker/utf8.hpp"

namespace mpsshim::broker {

namespace {

std::string quoted_for_json(std::string_view text) {
  std::string quoted = "\"";
  while (!text.empty()) {
    const Utf8Character character = first_character(text);
    if (character.bytes == 0) {
      quoted += "\xef\xbf\xbd";  // U+FFFD
      text.remove_prefix(1);
      continue;
    }
    if (character.code == '"' || character.code == '\\') {
      quoted += {'\\', static_cast<char>(character.code)};
    } else if (is_obeyed_by_terminals(character.code)) {
      quoted += fmt::format("\\u{:04x}", character.code);
    } else {
      quoted += text.substr(0, character.bytes);
    }
    text.remove_prefix(character.bytes);
  }
  return quoted + '"';
}

}  // namespace

JsonWriter& JsonWriter::key(std::string_view name) {
  separate();
  text_ += quoted_for_json(name) + ':';
  follows_ = false;
  return *this;
}

JsonWriter& JsonWriter::value(std::string_view text) { return put(quoted_for_json(text)); }

JsonWriter& JsonWriter::open(char bracket) {
  separate();
  text_ += bracket;
  follows_ = false;
  return *this;
}

JsonWriter& JsonWriter::close(char bracket) {
  text_ += bracket;
  follows_ = true;
  return *this;
}

JsonWriter& JsonWriter::put(std::string_view token) {
  separate();
  text_ += token;
  follows_ = true;
  return *this;
}

void JsonWriter::separate() {
  if (follows_) text_ += ',';
}

}  // namespace mpsshim::broker
