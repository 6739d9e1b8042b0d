// SPDX-License-Identifier: Apache-2.0
#include "broker/cpudriver/ptx/lexer.hpp"

namespace mpsshim::ptx {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_word(char c) { return is_digit(c) || is_letter(c) || c == '_' || c == '$'; }

}  // namespace

Lexer::Lexer(std::string_view text) : text_(text) {
  // Images carry a terminating NUL, sometimes padding; nothing after it is text.
  if (const auto nul = text_.find('\0'); nul != std::string_view::npos) text_ = text_.substr(0, nul);
  advance();
}

Token Lexer::take() {
  const Token token = current_;
  advance();
  return token;
}

void Lexer::skip_blanks() {
  for (;;) {
    const char c = at(position_);
    if (c == '\n') {
      ++line_;
      ++position_;
    } else if (c == ' ' || c == '\t' || c == '\r' || c == '\f' || c == '\v') {
      ++position_;
    } else if (c == '/' && at(position_ + 1) == '/') {
      while (position_ < text_.size() && text_[position_] != '\n') ++position_;
    } else if (c == '/' && at(position_ + 1) == '*') {
      position_ += 2;
      while (position_ < text_.size() && !(text_[position_] == '*' && at(position_ + 1) == '/')) {
        if (text_[position_] == '\n') ++line_;
        ++position_;
      }
      if (position_ >= text_.size()) throw LoadError{ErrorCode::invalid_ptx, line_, "A comment does not end"};
      position_ += 2;
    } else {
      return;
    }
  }
}

std::size_t Lexer::number_end(std::size_t from) const {
  std::size_t i = from;
  while (is_word(at(i))) ++i;
  const char second = at(from + 1);
  const bool has_prefix = at(from) == '0' && (second == 'x' || second == 'X' || second == 'f' || second == 'F' || second == 'd' || second == 'D');
  if (has_prefix) return i;
  if (at(i) == '.' && is_digit(at(i + 1))) {
    ++i;
    while (is_word(at(i))) ++i;
  }
  const bool ends_in_exponent = at(i - 1) == 'e' || at(i - 1) == 'E';
  if (ends_in_exponent && (at(i) == '+' || at(i) == '-') && is_digit(at(i + 1))) {
    ++i;
    while (is_digit(at(i))) ++i;
  }
  return i;
}

void Lexer::advance() {
  skip_blanks();
  current_.line = line_;
  if (position_ >= text_.size()) {
    current_ = Token{TokenKind::end, line_, {}};
    return;
  }
  const std::size_t start = position_;
  const char c = text_[start];
  std::size_t end = start + 1;
  if (is_digit(c)) {
    end = number_end(start);
    current_.kind = TokenKind::number;
  } else if (is_letter(c) || c == '_' || c == '$' || (c == '%' && is_word(at(start + 1)))) {
    while (is_word(at(end))) ++end;
    current_.kind = TokenKind::identifier;
  } else if (c == '.' && is_word(at(start + 1))) {
    while (is_word(at(end)) || (at(end) == ':' && at(end + 1) == ':' && is_word(at(end + 2)))) {
      end += at(end) == ':' ? 2 : 1;
    }
    current_.kind = TokenKind::dotted;
  } else if (c == '"') {
    while (end < text_.size() && text_[end] != '"' && text_[end] != '\n') ++end;
    if (at(end) != '"') throw LoadError{ErrorCode::invalid_ptx, line_, "A string does not end on its line"};
    position_ = end + 1;
    current_.kind = TokenKind::string;
    current_.text = text_.substr(start + 1, end - start - 1);
    return;
  } else if (std::string_view("{}()[]<>,;:@!+-=*|~&^?%/.").find(c) != std::string_view::npos) {
    current_.kind = TokenKind::punctuation;
  } else {
    throw LoadError{ErrorCode::invalid_ptx, line_, "A character (code " + std::to_string(static_cast<unsigned char>(c)) + ") starts no token"};
  }
  const std::size_t skip = current_.kind == TokenKind::dotted ? 1 : 0;
  current_.text = text_.substr(start + skip, end - start - skip);
  position_ = end;
}

}  // namespace mpsshim::ptx
