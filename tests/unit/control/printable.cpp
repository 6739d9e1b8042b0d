// SPDX-License-Identifier: Apache-2.0
#include "broker/printable.hpp"

#include "tests/support/catch.hpp"

using mpsshim::broker::kLongestLogLine;
using mpsshim::broker::printable;

TEST_CASE("printable: what can be read stays as it is") {
  for (const char* text : {"", "axpy(float*, int)", "/home/zo\u00eb/\u6a21\u578b/run", "a\\b", "\U0001F600"}) CHECK(printable(text) == text);
}

TEST_CASE("printable: nothing ends a line, moves a cursor or turns the direction") {
  CHECK(printable("a\nb\r\tc") == "a\\x0ab\\x0d\\x09c");
  CHECK(printable("\x1b[31mred\x7f") == "\\x1b[31mred\\x7f");
  CHECK(printable("a\u0085b") == "a\\xc2\\x85b");
  CHECK(printable("a\u2028b\u202eb") == "a\\xe2\\x80\\xa8b\\xe2\\x80\\xaeb");
  CHECK(printable(std::string_view("a\0b", 3)) == "a\\x00b");
}

TEST_CASE("printable: what is no UTF-8 is shown byte for byte") {
  CHECK(printable("\x9b"
                  "31m") == "\\x9b31m");
  CHECK(printable("\xc0\x8a") == "\\xc0\\x8a");           // a line's end, written too long
  CHECK(printable("\xe0\x80\x8a") == "\\xe0\\x80\\x8a");  // and longer
  CHECK(printable("\xed\xa0\x80") == "\\xed\\xa0\\x80");  // half of a pair
  CHECK(printable("\xf4\x90\x80\x80") == "\\xf4\\x90\\x80\\x80");
  CHECK(printable("caf\xc3") == "caf\\xc3");
}

TEST_CASE("printable: a line has an end") {
  const std::string shown = printable(std::string(100'000, '\n'));
  CHECK(shown.size() <= kLongestLogLine + 3);
  CHECK(shown.ends_with("..."));
}
