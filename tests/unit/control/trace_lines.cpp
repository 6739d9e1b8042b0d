// SPDX-License-Identifier: Apache-2.0
// Which lines of a timeline are events: mpsctl trace leaves out the others.
#include <string>

#include "broker/ctl/trace_lines.hpp"
#include "tests/support/catch.hpp"

using mpsshim::broker::ctl::is_json_object;

TEST_CASE("a line is an event if it is one object of strict JSON") {
  for (const char* text : {R"({})", R"({"a":1,"b":-0.5e+10,"c":"x\"\u00e4\n","d":[],"e":[{},true,false,null,0]})", R"({"a":{"b":{"c":{}}}})"}) {
    INFO(text);
    CHECK(is_json_object(text));
  }
  for (const char* text : {"",
                           "[]",
                           "1",
                           "{",
                           "{}}",
                           "{},",
                           " {}",
                           R"({"a"})",
                           R"({"a":})",
                           R"({"a":01})",
                           R"({"a":1.})",
                           R"({"a":.5})",
                           R"({"a":+1})",
                           R"({"a":NaN})",
                           R"({"a":1,})",
                           R"({a:1})",
                           R"({'a':1})",
                           R"({"a":"b)",
                           R"({"a":"\x"})",
                           R"({"a":"\u12"})",
                           R"({"a":"\u12g4"})",
                           R"({"a":1 "b":2})",
                           R"({"a":[1,]})",
                           "{\"a\":\"\t\"}",
                           "{\"a\":\"\x80\"}",
                           R"({"name":"a hole{"name":"b"})"}) {
    INFO(text);
    CHECK_FALSE(is_json_object(text));
  }
  const std::string deep = std::string(R"({"a":)") + std::string(1'000'000, '[');
  CHECK_FALSE(is_json_object(deep));  // and the stack is not at its end
}
