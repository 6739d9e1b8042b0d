// SPDX-License-Identifier: Apache-2.0
#include "proto/image/ptx_text.hpp"

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>

#include "proto/image/cubin.hpp"
#include "proto/image/ptx_tokens.hpp"

namespace mpsshim::image {
namespace {

constexpr std::string_view kDeviceRuntimePrefix = " __cudaCDP2";
constexpr std::string_view kDeviceMalloc = "__cudaCDP2Malloc";
constexpr std::string_view kDeviceLaunch = "LaunchDevice";  // what <<< >>> in a kernel becomes, with something before and behind

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

struct PtxFunction {
  bool is_kernel = false;
  bool calls_by_pointer = false;
  bool reaches = false;
  std::vector<std::string_view> names;  // that its calls mention: functions, parameters and registers
};

// The words of a call, up to its end. One through a pointer has a register or a prototype where others have nothing. A launch is like one:
// the kernel is an argument.
void read_call(std::string_view& text, PtxFunction& function) {
  for (std::string_view token = next_ptx_token(text); !token.empty() && token != ";"; token = next_ptx_token(text)) {
    if (token.front() == '%') function.calls_by_pointer = true;
    if (token.find(kDeviceLaunch) != std::string_view::npos) function.calls_by_pointer = true;
    if (is_ptx_word(token.front())) function.names.push_back(token);
  }
}

// The next .entry or .func of the text, with its body if it has one. False: there is none.
bool read_function(std::string_view& text, std::map<std::string_view, PtxFunction>& functions) {
  std::string_view token;
  do {
    token = next_ptx_token(text);
    if (token.empty()) return false;
  } while (token != ".entry" && token != ".func");
  PtxFunction read;
  read.is_kernel = token == ".entry";
  std::string_view name;
  int parentheses = 0;  // around what is returned, and around the parameters
  for (token = next_ptx_token(text); !token.empty() && token != "{" && token != ";"; token = next_ptx_token(text)) {
    if (token == "(") ++parentheses;
    if (token == ")") --parentheses;
    if (parentheses == 0 && name.empty() && is_ptx_word(token.front())) name = token;
  }
  int depth = token == "{" ? 1 : 0;
  while (depth > 0 && !token.empty()) {
    token = next_ptx_token(text);
    if (token == "{") ++depth;
    if (token == "}") --depth;
    if (token == "call") read_call(text, read);
  }
  PtxFunction& kept = functions[name];
  if (!read.names.empty() || kept.names.empty()) kept = std::move(read);
  return true;
}

// Kernels that call one of the functions, or call others that do.
std::vector<std::string> kernels_that_reach(std::string_view text, std::vector<std::string_view> reaching) {
  std::map<std::string_view, PtxFunction> functions;
  while (read_function(text, functions)) {
  }
  for (const std::string_view called : std::vector(reaching)) {
    if (!functions.contains(called)) continue;
    // A function whose address is taken may be called from anywhere.
    for (auto& [name, function] : functions) {
      if (function.calls_by_pointer) function.names.emplace_back(called);
    }
  }
  for (std::size_t i = 0; i < reaching.size(); ++i) {
    for (auto& [name, function] : functions) {
      const bool calls = std::find(function.names.begin(), function.names.end(), reaching[i]) != function.names.end();
      if (calls && !std::exchange(function.reaches, true)) reaching.push_back(name);
    }
  }
  std::vector<std::string> kernels;
  for (const auto& [name, function] : functions) {
    if (function.reaches && function.is_kernel) kernels.emplace_back(name);
  }
  return kernels;
}

}  // namespace

bool looks_like_ptx(std::string_view text) {
  skip_ptx_blanks(text);
  return text.starts_with(".version");
}

unsigned ptx_version(std::string_view text) {
  if (!looks_like_ptx(text)) return 0;
  skip_ptx_blanks(text);
  text.remove_prefix(std::string_view(".version").size());
  skip_ptx_blanks(text);
  const auto number = [&text] {
    unsigned value = 0;
    for (; !text.empty() && text.front() >= '0' && text.front() <= '9' && value < 1000; text.remove_prefix(1)) {
      value = value * 10 + static_cast<unsigned>(text.front() - '0');
    }
    return value;
  };
  const unsigned major = number();
  if (!text.starts_with('.')) return major * 10;
  text.remove_prefix(1);
  return major * 10 + number();
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

std::vector<std::string> ptx_printing_kernels(std::string_view text) { return kernels_that_reach(text, {"vprintf"}); }

std::vector<std::string> ptx_heap_kernels(std::string_view text) { return kernels_that_reach(text, {"malloc", kDeviceMalloc}); }

bool ptx_takes_code_addresses(std::string_view text) {
  for (std::string_view token = next_ptx_token(text); !token.empty(); token = next_ptx_token(text)) {
    if (token == ".func") return true;
  }
  return false;
}

// An instruction's qualifiers stand before its operands; scope and state space are among them.
bool ptx_adds_for_system(std::string_view text) {
  constexpr std::string_view kOperands = "[{(,;";
  for (std::string_view token = next_ptx_token(text); !token.empty(); token = next_ptx_token(text)) {
    if (token != "atom" && token != "red") continue;
    bool is_for_system = false;
    bool is_shared = false;
    while (!token.empty() && kOperands.find(token.front()) == std::string_view::npos) {
      is_for_system |= token == ".sys";
      is_shared |= token == ".shared";
      token = next_ptx_token(text);
    }
    if (is_for_system && !is_shared) return true;
  }
  return false;
}

bool ptx_code_takes_addresses(std::string_view text) {
  std::map<std::string_view, PtxFunction> functions;
  for (std::string_view rest = text; read_function(rest, functions);) {
  }
  int depth = 0;
  for (std::string_view token = next_ptx_token(text); !token.empty(); token = next_ptx_token(text)) {
    if (token == "{") ++depth;
    if (token == "}") --depth;
    if (token == "call" || (depth == 0 && token == "=")) {  // or what a variable begins with
      while (!token.empty() && token != ";") token = next_ptx_token(text);
    } else if (depth > 0 && functions.contains(token)) {
      return true;
    }
  }
  return false;
}

// In parameter lists these words mean objects that are arguments.
bool ptx_has_references(std::string_view text) {
  int depth = 0;  // of braces and parentheses
  for (std::string_view token = next_ptx_token(text); !token.empty(); token = next_ptx_token(text)) {
    if (token == "{" || token == "(") ++depth;
    if (token == "}" || token == ")") --depth;
    if (depth == 0 && (token == ".texref" || token == ".surfref" || token == ".tex")) return true;
  }
  return false;
}

bool ptx_uses_device_heap(std::string_view text) {
  bool is_extern = false;
  for (std::string_view token = next_ptx_token(text); !token.empty(); token = next_ptx_token(text)) {
    if (token == ".extern") is_extern = true;
    if (token == ";" || token == "{") is_extern = false;
    if (is_extern && (token == "malloc" || token == kDeviceMalloc)) return true;
  }
  return false;
}

// By a definition of one of its functions: a declaration begins with .extern.
bool ptx_is_device_runtime(std::string_view text) {
  constexpr std::string_view kDefinition = "\n.visible .func";
  for (std::size_t at = text.find(kDefinition); at != std::string_view::npos; at = text.find(kDefinition, at + 1)) {
    const std::string_view line = text.substr(at + 1, text.find('\n', at + 1) - at - 1);
    if (line.find(kDeviceRuntimePrefix) != std::string_view::npos) return true;
  }
  return false;
}

}  // namespace mpsshim::image
