// SPDX-License-Identifier: Apache-2.0
#include "broker/cpudriver/ptx/types.hpp"

#include <unordered_map>

namespace mpsshim::ptx {

std::optional<Type> type_by_name(std::string_view name) {
  static const std::unordered_map<std::string_view, Type> kTypes = {
      {"pred", Type::pred}, {"b8", Type::b8},   {"b16", Type::b16},       {"b32", Type::b32}, {"b64", Type::b64},
      {"u8", Type::u8},     {"u16", Type::u16}, {"u32", Type::u32},       {"u64", Type::u64}, {"s8", Type::s8},
      {"s16", Type::s16},   {"s32", Type::s32}, {"s64", Type::s64},       {"f16", Type::f16}, {"f16x2", Type::f16x2},
      {"bf16", Type::bf16}, {"f32", Type::f32}, {"bf16x2", Type::bf16x2}, {"f64", Type::f64}};
  const auto found = kTypes.find(name);
  if (found == kTypes.end()) return std::nullopt;
  return found->second;
}

std::uint32_t size_of(Type type) {
  switch (type) {
    case Type::none:
    case Type::pred: return 0;
    case Type::b8:
    case Type::u8:
    case Type::s8: return 1;
    case Type::b16:
    case Type::u16:
    case Type::s16:
    case Type::f16:
    case Type::bf16: return 2;
    case Type::b32:
    case Type::u32:
    case Type::s32:
    case Type::f16x2:
    case Type::bf16x2:
    case Type::f32: return 4;
    case Type::b64:
    case Type::u64:
    case Type::s64:
    case Type::f64: return 8;
  }
  return 0;
}

std::optional<Mod> modifier_by_name(std::string_view name) {
  static const std::unordered_map<std::string_view, Mod> kModifiers = {
#define X(id, text) {text, Mod::id},
      MPSSHIM_PTX_MODIFIERS(X)
#undef X
  };
  const auto found = kModifiers.find(name);
  if (found == kModifiers.end()) return std::nullopt;
  return found->second;
}

std::string_view name_of(Mod mod) {
  static constexpr std::string_view kNames[] = {
#define X(id, text) text,
      MPSSHIM_PTX_MODIFIERS(X)
#undef X
  };
  return kNames[static_cast<std::size_t>(mod)];
}

}  // namespace mpsshim::ptx
