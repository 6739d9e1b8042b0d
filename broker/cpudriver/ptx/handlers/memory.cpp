// SPDX-License-Identifier: Apache-2.0
//
// ld and st. Each access is checked before a byte moves: the lowest and highest address against the ranges known to
// this thread; only what those do not hold goes the slow way (fault_access). Strong accesses (volatile, relaxed,
// acquire, release) are single loads and stores of their size, as the host polls such words.
#include "broker/cpudriver/ptx/handlers/addresses.hpp"

namespace mpsshim::ptx::MPSSHIM_PTX_ISA {
namespace {

template <class T>
[[gnu::always_inline]] inline T load_plain(std::uint64_t address) {
  T value;
  std::memcpy(&value, reinterpret_cast<const void*>(address), sizeof value);
  return value;
}
template <class T>
[[gnu::always_inline]] inline T load_strong(std::uint64_t address) {
  return __atomic_load_n(reinterpret_cast<const T*>(address), __ATOMIC_ACQUIRE);
}

// T: in memory. Cell: of the register, which may be wider: then extended by T's sign.
template <class T, class Cell, bool Strong>
Flow load(Warp& warp, const Instruction& in) {
  alignas(64) std::uint64_t address[kLanes];
  Access access{sizeof(T) * in.count, sizeof(T) * in.count, false};
  if (!resolve(warp, in, access, address)) return Flow::stop;
  if constexpr (Strong) ++warp.strong_accesses;
  const std::uint32_t* targets = in.count == 1 ? &in.d : warp.lists + in.aux;
  for (std::uint32_t k = 0; k < in.count; ++k) {
    if (targets[k] == kNoOperand) continue;
    Cell* d = row<Cell>(warp, targets[k]);
    const std::uint64_t shift = k * sizeof(T);
    if (!Strong && warp.exec == kAllLanes) {
      if (sizeof(T) == sizeof(Cell) && in.count == 1 && access.is_contiguous) {
        std::memcpy(d, reinterpret_cast<const void*>(address[0]), sizeof(T) * kLanes);
        continue;
      }
      for (std::uint32_t i = 0; i < kLanes; ++i) d[i] = static_cast<Cell>(load_plain<T>(address[i] + shift));
      continue;
    }
    for (std::uint32_t rest = warp.exec; rest != 0; rest &= rest - 1) {
      const auto i = static_cast<std::uint32_t>(__builtin_ctz(rest));
      d[i] = static_cast<Cell>(Strong ? load_strong<T>(address[i] + shift) : load_plain<T>(address[i] + shift));
    }
  }
  return Flow::next;
}

template <class T, class Cell, bool Strong>
Flow store(Warp& warp, const Instruction& in) {
  alignas(64) std::uint64_t address[kLanes];
  Access access{sizeof(T) * in.count, sizeof(T) * in.count, true};
  if (!resolve(warp, in, access, address)) return Flow::stop;
  if constexpr (Strong) __atomic_thread_fence(__ATOMIC_RELEASE);
  const std::uint32_t* sources = in.count == 1 ? &in.d : warp.lists + in.aux;
  for (std::uint32_t k = 0; k < in.count; ++k) {
    const Cell* s = row<const Cell>(warp, sources[k]);
    const std::uint64_t shift = k * sizeof(T);
    if (!Strong && sizeof(T) == sizeof(Cell) && in.count == 1 && warp.exec == kAllLanes && access.is_contiguous) {
      std::memcpy(reinterpret_cast<void*>(address[0]), s, sizeof(T) * kLanes);
      continue;
    }
    for (std::uint32_t rest = warp.exec; rest != 0; rest &= rest - 1) {
      const auto i = static_cast<std::uint32_t>(__builtin_ctz(rest));
      const T value = static_cast<T>(s[i]);
      if constexpr (Strong)
        __atomic_store_n(reinterpret_cast<T*>(address[i] + shift), value, __ATOMIC_RELEASE);
      else
        std::memcpy(reinterpret_cast<void*>(address[i] + shift), &value, sizeof value);
    }
  }
  return Flow::next;
}

// Parameters of the entry named directly: one value for all lanes. The decoder has checked offset and size.
template <class T, class Cell>
Flow load_parameter(Warp& warp, const Instruction& in) {
  const std::uint32_t* targets = in.count == 1 ? &in.d : warp.lists + in.aux;
  for (std::uint32_t k = 0; k < in.count; ++k) {
    if (targets[k] == kNoOperand) continue;
    const AddressRange& parameters = warp.windows[static_cast<std::size_t>(Window::parameters)];
    const auto value = static_cast<Cell>(load_plain<T>(parameters.begin + static_cast<std::uint64_t>(in.imm) + k * sizeof(T)));
    store_lanes<Cell, false>(
        row<Cell>(warp, targets[k]), warp.exec, [&](std::uint32_t) __attribute__((always_inline)) { return value; });
  }
  return Flow::next;
}

// Variables of the .param space in a frame: in.a is the row of lane 0's byte, in.b the stride. Checked when decoded.
template <class T, class Cell>
Flow load_slot(Warp& warp, const Instruction& in) {
  const std::uint32_t* targets = in.count == 1 ? &in.d : warp.lists + in.aux;
  const std::byte* slot = warp.base[0] + in.a;
  for (std::uint32_t k = 0; k < in.count; ++k) {
    if (targets[k] == kNoOperand) continue;
    Cell* d = row<Cell>(warp, targets[k]);
    for (std::uint32_t rest = warp.exec; rest != 0; rest &= rest - 1) {
      const auto i = static_cast<std::uint32_t>(__builtin_ctz(rest));
      d[i] = static_cast<Cell>(load_plain<T>(reinterpret_cast<std::uint64_t>(slot + i * in.b + k * sizeof(T))));
    }
  }
  return Flow::next;
}
template <class T, class Cell>
Flow store_slot(Warp& warp, const Instruction& in) {
  const std::uint32_t* sources = in.count == 1 ? &in.d : warp.lists + in.aux;
  std::byte* slot = warp.base[0] + in.a;
  for (std::uint32_t k = 0; k < in.count; ++k) {
    const Cell* s = row<const Cell>(warp, sources[k]);
    for (std::uint32_t rest = warp.exec; rest != 0; rest &= rest - 1) {
      const auto i = static_cast<std::uint32_t>(__builtin_ctz(rest));
      const T value = static_cast<T>(s[i]);
      std::memcpy(slot + i * in.b + k * sizeof(T), &value, sizeof value);
    }
  }
  return Flow::next;
}

enum class Kind : std::uint8_t { memory, strong, parameter, slot };

template <class T, class Cell>
Handler pick_kind(bool is_load, Kind kind) {
  switch (kind) {
    case Kind::memory: return is_load ? load<T, Cell, false> : store<T, Cell, false>;
    case Kind::strong: return is_load ? load<T, Cell, true> : store<T, Cell, true>;
    case Kind::parameter: return is_load ? load_parameter<T, Cell> : nullptr;
    case Kind::slot: return is_load ? load_slot<T, Cell> : store_slot<T, Cell>;
  }
  return nullptr;
}
template <class T>
Handler pick_cell(const Form& f, bool is_load, Kind kind) {
  if (f.register_bytes == 8) return pick_kind<T, std::uint64_t>(is_load, kind);
  if constexpr (sizeof(T) == 8)
    return nullptr;
  else
    return pick_kind<T, std::uint32_t>(is_load, kind);
}

}  // namespace

Handler select_memory(const Form& f) {
  const bool is_load = f.op == Op::ld;
  const bool strong = f.has(Mod::volatile_) || f.has(Mod::relaxed) || f.has(Mod::acquire) || f.has(Mod::release);
  Kind kind = strong ? Kind::strong : Kind::memory;
  if (f.parameter_kind == ParameterKind::entry) kind = Kind::parameter;
  if (f.parameter_kind == ParameterKind::slot) kind = Kind::slot;
  switch (f.type) {
    case Type::b8:
    case Type::u8: return pick_cell<std::uint8_t>(f, is_load, kind);
    case Type::s8: return is_load ? pick_cell<std::int8_t>(f, is_load, kind) : pick_cell<std::uint8_t>(f, is_load, kind);
    case Type::b16:
    case Type::u16: return pick_cell<std::uint16_t>(f, is_load, kind);
    case Type::s16: return is_load ? pick_cell<std::int16_t>(f, is_load, kind) : pick_cell<std::uint16_t>(f, is_load, kind);
    case Type::b32:
    case Type::u32:
    case Type::f32: return pick_cell<std::uint32_t>(f, is_load, kind);
    case Type::s32: return is_load ? pick_cell<std::int32_t>(f, is_load, kind) : pick_cell<std::uint32_t>(f, is_load, kind);
    case Type::b64:
    case Type::u64:
    case Type::s64:
    case Type::f64: return pick_cell<std::uint64_t>(f, is_load, kind);
    default: return nullptr;
  }
}

}  // namespace mpsshim::ptx::MPSSHIM_PTX_ISA
