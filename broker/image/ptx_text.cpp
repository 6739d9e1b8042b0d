// SPDX-License-Identifier: Apache-2.0
#include "broker/image/ptx_text.hpp"

#include <cstddef>
#include <utility>

#include "broker/image/cubin.hpp"
#include "broker/image/ptx_tokens.hpp"

namespace mpsshim::image {
namespace {

// The variable's name is the last word before '[', '=', ',' or ';'. `text` stands behind the state space, and then at that character.
std::string_view declared_name(std::string_view& text) {
  std::string_view name;
  for (;;) {
    std::string_view rest = text;
    const std::string_view token = next_ptx_token(rest);
    if (token.empty() || token == "[" || token == "=" || token == "," || token == ";") break;
    text = rest;
    if (token == "(") {  // .attribute( … )
      while (!text.empty() && next_ptx_token(text) != ")") {
      }
      continue;
    }
    if (token.front() != '.') name = token;
  }
  return name;
}

}  // namespace

bool looks_like_ptx(std::string_view text) {
  skip_ptx_blanks(text);
  return text.starts_with(".version");
}

bool ptx_has_writable_globals(std::string_view text) { return !ptx_variables(text).empty(); }

std::vector<std::string> ptx_variables(std::string_view text) {
  std::vector<std::string> names;
  int depth = 0;  // of braces: inside a function, .global and .const are modifiers of instructions
  bool is_extern = false;
  bool in_declaration = false;
  for (std::string_view token = next_ptx_token(text); !token.empty(); token = next_ptx_token(text)) {
    if (token == "{") ++depth;
    if (token == "}") --depth;
    if (token == ";") is_extern = in_declaration = false;
    if (token == "," && depth == 0 && std::exchange(in_declaration, false)) names.emplace_back();  // more than one variable: not read further
    if (token == ".extern") is_extern = true;                                                      // another image's, or the driver's
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
  for (std::string_view token = next_ptx_token(text); !token.empty(); token = next_ptx_token(text)) {
    if (token == ".extern") is_extern = true;
    if (token == ";" || token == "{") is_extern = false;
    if (is_extern && token == "malloc") return true;
  }
  return false;
}

}  // namespace mpsshim::image
