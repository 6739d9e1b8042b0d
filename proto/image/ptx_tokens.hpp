// SPDX-License-Identifier: Apache-2.0
//
// A PTX text by tokens, for questions that need no parser. The text is not trusted; tokens are views into it.
#pragma once

#include <string_view>

namespace mpsshim::image {

// Drops blanks and comments off the front. A comment without an end is the end of the text.
void skip_ptx_blanks(std::string_view& text);

// Takes one off the front: a word with its dot (".global", "%r1"), a string, or one character. Empty: the text has ended.
[[nodiscard]] std::string_view next_ptx_token(std::string_view& text);

// Whether words are made of such characters (a dot begins one).
[[nodiscard]] bool is_ptx_word(char c);

}  // namespace mpsshim::image
