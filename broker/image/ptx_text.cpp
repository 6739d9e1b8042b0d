// SPDX-License-Identifier: Apache-2.0
#include "broker/image/ptx_text.hpp"

#include <cctype>
#include <cstddef>
#include <utility>

#include "broker/image/cubin.hpp"

namespace mpsshim::image {
namespace {

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$' || c == '%'; }

// Drops blanks and comments off the front. A comment without an end is the end of the text.
void skip_blanks(std::string_view& text) {
  for (;;) {
    if (!text.empty() && is_blank(text.front())) {
      text.remove_prefix(1);
      continue;
    }
    std::size_t end = 0;
    if (text.starts_with("//")) {
      end = text.find('\n');
    } else if (text.starts_with("/*")) {
      end = text.find("*/", 2);
      if (end != std::string_view::npos) end += 2;
    } else {
      return;
    }
    text.remove_prefix(end == std::string_view::npos ? text.size() : end);
  }
}

// One token: a word with its dots (".global", "%r1"), a string, or one character.
std::string_view next_token(std::string_view& text) {
  skip_blanks(text);
  std::size_t length = 0;
  if (!text.empty() && text.front() == '"') {
    length = text.find('"', 1);
    length = length == std::string_view::npos ? text.size() : length + 1;
  } else {
    if (!text.empty() && (text.front() == '.' || is_word(text.front()))) length = 1;
    while (length != 0 && length < text.size() && is_word(text[length])) ++length;
    if (length == 0 && !text.empty()) length = 1;
  }
  const std::string_view token = text.substr(0, length);
  text.remove_prefix(length);
  return token;
}

// The variable's name is the last word before '[', '=', ',' or ';'. `text` stands behind the state space, and then at that character.
std::string_view declared_name(std::string_view& text) {
  std::string_view name;
  for (;;) {
    std::string_view rest = text;
    const std::string_view token = next_token(rest);
    if (token.empty() || token == "[" || token == "=" || token == "," || token == ";") break;
    text = rest;
    if (token == "(") {  // .attribute( … )
      while (!text.empty() && next_token(text) != ")") {
      }
      continue;
    }
    if (token.front() != '.') name = token;
  }
  return name;
}

}  // namespace

bool looks_like_ptx(std::string_view text) {
  skip_blanks(text);
  return text.starts_with(".version");
}

bool ptx_has_writable_globals(std::string_view text) { return !ptx_variables(text).empty(); }

std::vector<std::string> ptx_variables(std::string_view text) {
  std::vector<std::string> names;
  int depth = 0;  // of braces: inside a function, .global and .const are modifiers of instructions
  bool is_extern = false;
  bool in_declaration = false;
  for (std::string_view token = next_token(text); !token.empty(); token = next_token(text)) {
    if (token == "{") ++depth;
    if (token == "}") --depth;
    if (token == ";") is_extern = in_declaration = false;
    if (token == "," && depth == 0 && std::exchange(in_declaration, false)) names.emplace_back();  // more than one variable: not read further
    if (token == ".extern") is_extern = true;  // another image's, or the driver's
    if (depth != 0 || is_extern) continue;
    if (token != ".global" && token != ".const") continue;
    const std::string_view name = declared_name(text);
    in_declaration = true;
    if (!is_compiler_text(name)) names.emplace_back(name);
  }
  return names;
}

bool ptx_uses_device_heap(std::string_view text) {
  bool is_extern = false;
  for (std::string_view token = next_token(text); !token.empty(); token = next_token(text)) {
    if (token == ".extern") is_extern = true;
    if (token == ";" || token == "{") is_extern = false;
    if (is_extern && token == "malloc") return true;
  }
  return false;
}

}  // namespace mpsshim::image
