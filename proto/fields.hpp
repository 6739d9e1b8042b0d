// SPDX-License-Identifier: Apache-2.0
// What fields of records are made of where a plain number would not say what it can be (proto/spec/enums.toml). Their bytes are those of the
// number, whatever a client sent: out_of_range() of the record says whether it is one that it can be, and is asked before any handler.
#pragma once

#include <cstdint>
#include <type_traits>

namespace mpsshim::proto {

// An enum, or a bool, in a field that is wider than it.
template <typename T, typename Word>
struct Wide {
  Word word;

  Wide() = default;
  constexpr Wide(T value) : word(static_cast<Word>(value)) {}    // NOLINT(google-explicit-constructor): it is a T
  constexpr operator T() const { return static_cast<T>(word); }  // NOLINT(google-explicit-constructor)
  [[nodiscard]] constexpr std::uint64_t number() const { return word; }
};

// Any of the bits that `Flag` names.
template <typename Flag>
struct Flags {
  using Bits = std::underlying_type_t<Flag>;
  Bits bits;

  Flags() = default;
  constexpr Flags(Flag flag) : bits(static_cast<Bits>(flag)) {}  // NOLINT(google-explicit-constructor): one flag is flags
  [[nodiscard]] constexpr bool has(Flag flag) const { return (bits & static_cast<Bits>(flag)) != 0; }
  constexpr void set(Flag flag, bool on = true) { bits = static_cast<Bits>(on ? bits | static_cast<Bits>(flag) : bits & ~static_cast<Bits>(flag)); }
  [[nodiscard]] constexpr Flags with(Flag flag, bool on = true) const {
    Flags all = *this;
    all.set(flag, on);
    return all;
  }
  [[nodiscard]] constexpr std::uint64_t number() const { return bits; }
  constexpr bool operator==(const Flags&) const = default;
};

// The number in a field, for its check.
template <typename T>
constexpr std::uint64_t number_in(const T& field) {
  if constexpr (std::is_enum_v<T> || std::is_integral_v<T>) {
    return static_cast<std::uint64_t>(field);
  } else {
    return field.number();
  }
}

}  // namespace mpsshim::proto
