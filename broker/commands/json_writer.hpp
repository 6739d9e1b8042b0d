// SPDX-License-Identifier: Apache-2.0
// JSON (RFC 8259) as text, written from front to back. Whoever writes sees to it that what is begun is ended; commas, quotes and escapes come by
// themselves. Any bytes may come as text: what is no UTF-8 becomes U+FFFD, a character for each byte, and what a terminal would obey is escaped, so
// the result is one line of valid UTF-8.
// One thread.
//
//   JsonWriter json;
//   json.begin_object().member("name", name).key("pids").begin_array().value(4711u).end_array().end_object();
//   json.text();  // {"name":"./app","pids":[4711]}
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace mpsshim::broker {

class JsonWriter {
 public:
  JsonWriter& begin_object() { return open('{'); }
  JsonWriter& end_object() { return close('}'); }
  JsonWriter& begin_array() { return open('['); }
  JsonWriter& end_array() { return close(']'); }
  JsonWriter& key(std::string_view name);

  JsonWriter& value(std::string_view text);
  JsonWriter& value(const char* text) { return value(std::string_view(text)); }
  JsonWriter& value(std::same_as<bool> auto truth) { return put(truth ? "true" : "false"); }
  template <std::integral Number>
  requires(!std::same_as<Number, bool>) JsonWriter& value(Number number) { return put(std::to_string(number)); }
  // A number as its digits: "12.5".
  JsonWriter& number(std::string_view digits) { return put(digits); }
  JsonWriter& null() { return put("null"); }
  template <typename Value>
  JsonWriter& value(const std::optional<Value>& given) {
    return given ? value(*given) : null();
  }

  template <typename Value>
  JsonWriter& member(std::string_view name, const Value& given) {
    return key(name).value(given);
  }

  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  JsonWriter& open(char bracket);
  JsonWriter& close(char bracket);
  JsonWriter& put(std::string_view token);
  void separate();

  std::string text_;
  bool follows_ = false;  // something of the same list or object stands before
};

}  // namespace mpsshim::broker
