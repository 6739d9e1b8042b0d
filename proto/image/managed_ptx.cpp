// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <charconv>
#include <optional>

#include "proto/image/managed.hpp"
#include "proto/image/ptx_tokens.hpp"

namespace mpsshim::image {
namespace {

std::uint64_t number_of(std::string_view token) {
  std::uint64_t value = 0;
  std::from_chars(token.data(), token.data() + token.size(), value);
  return value;
}

// ".u32", ".b8", ".f64x2": the width stands in the name.
std::uint64_t type_bytes(std::string_view token) {
  const std::size_t digit = token.find_first_of("0123456789");
  return digit == std::string_view::npos ? 0 : number_of(token.substr(digit)) / 8;
}

// Takes "(.managed)" off the front if it is there.
bool take_managed(std::string_view& text) {
  std::string_view rest = text;
  if (next_ptx_token(rest) != "(" || next_ptx_token(rest) != ".managed" || next_ptx_token(rest) != ")") return false;
  text = rest;
  return true;
}

// [.attribute(.managed)] [.align A] [.v2] .type name[N][M] [= values] ; behind ".global". Stops in front of the values.
std::optional<ManagedVariable> read_declaration(std::string_view& text) {
  ManagedVariable variable;
  bool is_managed = false;
  std::uint64_t element_bytes = 0;
  std::uint64_t count = 1;
  for (;;) {
    std::string_view rest = text;
    const std::string_view token = next_ptx_token(rest);
    if (token.empty() || token == "=" || token == "," || token == ";") {
      variable.size_bytes = element_bytes * count;
      variable.starts_as_zeroes = token != "=";
      break;
    }
    text = rest;
    if (token == ".attribute") {
      is_managed |= take_managed(text);
    } else if (token == ".align") {
      (void)next_ptx_token(text);
    } else if (token == ".v2" || token == ".v4") {
      count *= token == ".v2" ? 2 : 4;
    } else if (token == "[") {
      count *= number_of(next_ptx_token(text));
      (void)next_ptx_token(text);  // "]"
    } else if (token.front() == '.') {
      element_bytes = type_bytes(token);
    } else {
      variable.name = token;
    }
  }
  return is_managed ? std::optional(std::move(variable)) : std::nullopt;
}

// Takes "+8", "-8" or "+-8" off the front if it is there: a number has no offset in PTX.
std::uint64_t take_offset(std::string_view& text) {
  std::string_view rest = text;
  std::string_view token = next_ptx_token(rest);
  if (token != "+" && token != "-") return 0;
  bool is_negative = token == "-";
  token = next_ptx_token(rest);
  if (token == "-" && !is_negative) {
    is_negative = true;
    token = next_ptx_token(rest);
  }
  if (token.empty() || token.find_first_not_of("0123456789") != std::string_view::npos) return 0;
  text = rest;
  return is_negative ? 0 - number_of(token) : number_of(token);
}

}  // namespace

std::vector<ManagedVariable> managed_of_ptx(std::string_view text) {
  std::vector<ManagedVariable> variables;
  int depth = 0;  // of braces
  bool is_extern = false;
  for (std::string_view token = next_ptx_token(text); !token.empty(); token = next_ptx_token(text)) {
    if (token == "{") ++depth;
    if (token == "}") --depth;
    if (token == ".extern") is_extern = true;
    if (token == ";") is_extern = false;
    if (token != ".global" || depth != 0 || is_extern) continue;
    if (auto variable = read_declaration(text)) variables.push_back(std::move(*variable));
  }
  return variables;
}

std::string place_in_ptx(std::string_view text, std::span<const Placement> placements) {
  std::string placed;
  const char* copied = text.data();  // up to here
  const auto replace = [&](const char* from, const char* to, std::string_view by) {
    placed.append(copied, from).append(by);
    copied = to;
  };
  int depth = 0;
  bool declares = false;  // its own name stays
  for (std::string_view token = next_ptx_token(text); !token.empty(); token = next_ptx_token(text)) {
    if (token == "{") ++depth;
    if (token == "}") --depth;
    if (token == ".global" && depth == 0) declares = true;
    if (token == "[" || token == "=" || token == "," || token == ";") declares = false;
    if (token == ".attribute" && take_managed(text)) replace(token.data(), text.data(), {});
    if (declares) continue;
    const auto placement = std::ranges::find_if(placements, [&](const Placement& one) { return one.name == token; });
    if (placement == placements.end()) continue;
    const std::uint64_t address = placement->address + take_offset(text);
    replace(token.data(), text.data(), std::to_string(address));
  }
  return placed.append(copied, text.data() + text.size());
}

}  // namespace mpsshim::image
