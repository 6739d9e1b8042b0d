// SPDX-License-Identifier: Apache-2.0
#include "broker/cpudriver/ptx/device_printf.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <vector>

namespace mpsshim::ptx {
namespace {

constexpr std::size_t kMaxString = 64 * 1024;
constexpr int kMaxWidth = 4096;  // Wider fields are cut: a format from device memory must not ask for gigabytes.

class Formatter {
 public:
  Formatter(DeviceReader& reader, std::uint64_t arguments, std::string& text) : reader_(reader), next_(arguments), text_(text) {}

  bool run(std::string_view format) {
    for (std::size_t i = 0; i < format.size();) {
      if (format[i] != '%') {
        text_ += format[i++];
      } else if (!directive(format, i)) {
        return false;
      }
    }
    return true;
  }
  [[nodiscard]] int count() const { return count_; }

 private:
  template <class T>
  bool take(T& value) {
    next_ = (next_ + sizeof(T) - 1) & ~std::uint64_t{sizeof(T) - 1};
    if (!reader_.read(next_, &value, sizeof value)) return false;
    next_ += sizeof(T);
    ++count_;
    return true;
  }

  // Digits or '*' of a width or precision.
  bool number(std::string_view format, std::size_t& i, std::string& spec) {
    int value = 0;
    if (i < format.size() && format[i] == '*') {
      ++i;
      if (!take(value)) return false;
    } else {
      while (i < format.size() && format[i] >= '0' && format[i] <= '9') value = std::min(value * 10 + (format[i++] - '0'), kMaxWidth);
    }
    spec += std::to_string(std::clamp(value, -kMaxWidth, kMaxWidth));
    return true;
  }

  bool directive(std::string_view format, std::size_t& i) {
    const std::size_t start = i++;
    std::string spec = "%";
    while (i < format.size() && std::strchr("-+ #0", format[i]) != nullptr) spec += format[i++];
    const auto has_number = [&] { return i < format.size() && (format[i] == '*' || (format[i] >= '0' && format[i] <= '9')); };
    if (has_number() && !number(format, i, spec)) return false;
    if (i < format.size() && format[i] == '.') {
      spec += '.';
      ++i;
      if (!number(format, i, spec)) return false;
    }
    const std::size_t length_at = i;
    while (i < format.size() && std::strchr("hlLqjzt", format[i]) != nullptr) ++i;
    const std::string_view length = format.substr(length_at, i - length_at);
    if (i >= format.size()) {
      text_ += format.substr(start);
      return true;
    }
    const char conversion = format[i++];
    return convert(conversion, length, spec, format.substr(start, i - start));
  }

  bool convert(char conversion, std::string_view length, const std::string& spec, std::string_view whole) {
    switch (conversion) {
      case '%': text_ += '%'; return true;
      case 'd':
      case 'i': return integer(conversion, length, spec, true);
      case 'u':
      case 'o':
      case 'x':
      case 'X': return integer(conversion, length, spec, false);
      case 'c': {
        int value = 0;
        if (!take(value)) return false;
        append(spec + 'c', value);
        return true;
      }
      case 'p': {
        std::uint64_t value = 0;
        if (!take(value)) return false;
        append(spec + 'p', reinterpret_cast<const void*>(value));
        return true;
      }
      case 's': {
        std::uint64_t address = 0;
        std::string value = "(null)";
        if (!take(address) || (address != 0 && !read_string(reader_, address, value))) return false;
        append(spec + 's', value.c_str());
        return true;
      }
      case 'f':
      case 'F':
      case 'e':
      case 'E':
      case 'g':
      case 'G':
      case 'a':
      case 'A': {
        double value = 0;
        if (!take(value)) return false;
        append(spec + conversion, value);
        return true;
      }
      default: text_ += whole; return true;  // Unknown: printed as it stands.
    }
  }

  bool integer(char conversion, std::string_view length, const std::string& spec, bool is_signed) {
    const bool wide = !length.empty() && length[0] != 'h';
    std::int64_t value = 0;
    if (wide) {
      if (!take(value)) return false;
    } else {
      std::int32_t narrow = 0;
      if (!take(narrow)) return false;
      if (length == "h") narrow = is_signed ? static_cast<std::int16_t>(narrow) : static_cast<std::uint16_t>(narrow);
      if (length == "hh") narrow = is_signed ? static_cast<std::int8_t>(narrow) : static_cast<std::uint8_t>(narrow);
      value = is_signed ? std::int64_t{narrow} : std::int64_t{static_cast<std::uint32_t>(narrow)};
    }
    append(spec + "ll" + conversion, static_cast<long long>(value));
    return true;
  }

  template <class T>
  void append(const std::string& spec, T value) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
#pragma GCC diagnostic ignored "-Wformat-security"
    // The spec is rebuilt above from checked parts, with one conversion of the argument's type.
    const int size = std::snprintf(nullptr, 0, spec.c_str(), value);
    if (size <= 0) {
      if (size == 0 || spec.back() != 'c') return;
    }
    std::vector<char> buffer(static_cast<std::size_t>(size) + 1);
    std::snprintf(buffer.data(), buffer.size(), spec.c_str(), value);
#pragma GCC diagnostic pop
    text_.append(buffer.data(), static_cast<std::size_t>(size));
  }

  DeviceReader& reader_;
  std::uint64_t next_;
  std::string& text_;
  int count_ = 0;
};

}  // namespace

bool read_string(DeviceReader& reader, std::uint64_t address, std::string& out) {
  out.clear();
  for (std::size_t i = 0; i < kMaxString; ++i) {
    char c = 0;
    if (!reader.read(address + i, &c, 1)) return false;
    if (c == '\0') return true;
    out += c;
  }
  return true;
}

int format_device_printf(DeviceReader& reader, const std::string& format, std::uint64_t arguments, std::string& text) {
  Formatter formatter(reader, arguments, text);
  return formatter.run(format) ? formatter.count() : -1;
}

}  // namespace mpsshim::ptx
