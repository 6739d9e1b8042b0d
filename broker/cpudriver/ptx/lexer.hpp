// SPDX-License-Identifier: Apache-2.0
//
// Splits a PTX text into tokens. The views point into the text, which must outlive them. Comments and blanks are
// skipped; a character that starts no token throws LoadError. Used by one parser on one thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "broker/cpudriver/ptx/fault.hpp"

namespace mpsshim::ptx {

// Thrown while an image is loaded; compile() turns it into an Error.
struct LoadError {
  ErrorCode code = ErrorCode::invalid_ptx;
  std::uint32_t line = 0;
  std::string text;
};

enum class TokenKind : std::uint8_t {
  end,
  identifier,  // name, %name, $name; text as written.
  dotted,      // .global, .v4, .shared::cta; text without the dot.
  number,      // 12, 0x1F, 012, 0b1, 3U, 0f3F800000, 0d3FF0000000000000, 1.5e3
  string,      // Without the quotes.
  punctuation  // One character.
};

struct Token {
  TokenKind kind = TokenKind::end;
  std::uint32_t line = 1;
  std::string_view text;

  [[nodiscard]] bool is(char c) const { return kind == TokenKind::punctuation && text[0] == c; }
  [[nodiscard]] bool is_dotted(std::string_view word) const { return kind == TokenKind::dotted && text == word; }
  [[nodiscard]] bool is_identifier(std::string_view word) const { return kind == TokenKind::identifier && text == word; }
};

class Lexer {
 public:
  explicit Lexer(std::string_view text);

  [[nodiscard]] const Token& peek() const { return current_; }
  Token take();  // The current token; advances.

 private:
  void skip_blanks();
  void advance();
  [[nodiscard]] std::size_t number_end(std::size_t from) const;
  [[nodiscard]] char at(std::size_t i) const { return i < text_.size() ? text_[i] : '\0'; }

  std::string_view text_;
  std::size_t position_ = 0;
  std::uint32_t line_ = 1;
  Token current_;
};

}  // namespace mpsshim::ptx
