// SPDX-License-Identifier: Apache-2.0
#include "broker/commands/json_writer.hpp"

#include "broker/commands/table.hpp"
#include "tests/support/catch.hpp"

using mpsshim::broker::Cell;
using mpsshim::broker::JsonWriter;
using mpsshim::broker::Table;

namespace {

std::string json_text(std::string_view text) { return JsonWriter().value(text).text(); }

}  // namespace

TEST_CASE("json: lists and objects, with commas where they belong") {
  JsonWriter json;
  json.begin_object().member("name", "a").member("no", false).key("none").null().key("empty").begin_array().end_array();
  json.key("list").begin_array().value(-1).value(UINT64_MAX).begin_object().end_object().begin_object().member("x", 1).end_object().end_array();
  json.member("given", std::optional<int>(3)).member("not", std::optional<int>()).end_object();
  CHECK(json.text() == R"({"name":"a","no":false,"none":null,"empty":[],"list":[-1,18446744073709551615,{},{"x":1}],"given":3,"not":null})");
}

TEST_CASE("json: any bytes become a text of one line, in valid UTF-8, that no terminal obeys") {
  CHECK(json_text("a \"b\" \\ /") == R"("a \"b\" \\ /")");
  CHECK(json_text(std::string_view("\0\n\t\x1b[31m\x7f", 9)) == R"("\u0000\u000a\u0009\u001b[31m\u007f")");
  CHECK(json_text("zo\u00eb \u6a21 \U0001F600") == "\"zo\u00eb \u6a21 \U0001F600\"");
  CHECK(json_text("a\u0085\u2028\u202e") == R"("a\u0085\u2028\u202e")");
  CHECK(json_text("\xff"
                  "a\xc3") == "\"\ufffda\ufffd\"");
  CHECK(json_text("\xed\xa0\x80") == "\"\ufffd\ufffd\ufffd\"");  // half of a pair
  CHECK(json_text("") == "\"\"");
}

TEST_CASE("a table's three forms have the same cells") {
  const Table table{{{"pid", "PID", 6}, {"bytes", "MIB", 5}, {"limit"}, {"each", "EACH", 4}, {"name", "NAME"}},
                    {{{std::int64_t{12}}, {std::uint64_t{3} << 20, "3"}, {nullptr}, {std::vector<std::uint64_t>{1, 2}}, {"a, \"b\"\n\xff"}},
                     {{nullptr}, {std::uint64_t{0}, "0"}, {std::uint64_t{7}}, {std::vector<std::uint64_t>{}}, {""}}}};
  CHECK(mpsshim::broker::columns_of(table) == "PID   MIB  EACH NAME\n12    3    1 2 a, \"b\"\\x0a\\xff\n-     0        \n");
  CHECK(mpsshim::broker::comma_separated(table, true) == "pid,bytes,limit,each,name\n12,3145728,,1 2,\"a, \"\"b\"\"\\x0a\\xff\"\n,0,7,,\n");
  CHECK(mpsshim::broker::comma_separated(table, false).starts_with("12,"));
  JsonWriter json;
  write_rows(json, table);
  CHECK(json.text() == R"([{"pid":12,"bytes":3145728,"limit":null,"each":[1,2],"name":"a, \"b\"\u000a)"
                       "\ufffd"
                       R"("},{"pid":null,"bytes":0,"limit":7,"each":[],"name":""}])");
}
