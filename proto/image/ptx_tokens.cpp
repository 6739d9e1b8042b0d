// SPDX-License-Identifier: Apache-2.0
#include "proto/image/ptx_tokens.hpp"

#include <cctype>
#include <cstddef>

namespace mpsshim::image {
namespace {

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

}  // namespace

void skip_ptx_blanks(std::string_view& text) {
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

bool is_ptx_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$' || c == '%'; }

std::string_view next_ptx_token(std::string_view& text) {
  skip_ptx_blanks(text);
  std::size_t length = 0;
  if (!text.empty() && text.front() == '"') {
    length = text.find('"', 1);
    length = length == std::string_view::npos ? text.size() : length + 1;
  } else {
    if (!text.empty() && (text.front() == '.' || is_ptx_word(text.front()))) length = 1;
    while (length != 0 && length < text.size() && is_ptx_word(text[length])) ++length;
    if (length == 0 && !text.empty()) length = 1;
  }
  const std::string_view token = text.substr(0, length);
  text.remove_prefix(length);
  return token;
}

}  // namespace mpsshim::image
