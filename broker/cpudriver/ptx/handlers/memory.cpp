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

// One element of all active lanes, from checked addresses.
template <class T, class Cell, bool Strong>
[[gnu::always_inline]] inline void gather(const Warp& warp, const Access& access, const std::uint64_t* address, std::uint64_t shift, Cell* d) {
  if (!Strong && warp.exec == kAllLanes) {
    if (access.is_uniform) {
      const auto value = static_cast<Cell>(load_plain<T>(address[0] + shift));
      for (std::uint32_t i = 0; i < kLanes; ++i) d[i] = value;
      return;
    }
    for (std::uint32_t i = 0; i < kLanes; ++i) d[i] = static_cast<Cell>(load_plain<T>(address[i] + shift));
    return;
  }
  for (std::uint32_t rest = warp.exec; rest != 0; rest &= rest - 1) {
    const auto i = static_cast<std::uint32_t>(__builtin_ctz(rest));
    d[i] = static_cast<Cell>(Strong ? load_strong<T>(address[i] + shift) : load_plain<T>(address[i] + shift));
  }
}

// A whole warp loads one element each from shared memory by 32-bit addresses: the inner loop of tiled algorithms.
// False: not that case, or some lane is out of bounds; nothing is done.
template <class T, class Cell>
[[gnu::always_inline]] inline bool load_shared(const Warp& warp, const Instruction& in) {
  if (in.space != Space::shared || warp.exec != kAllLanes || in.count != 1 || (in.flags & kFlagWideAddress) != 0) return false;
  const auto* a = row<const std::uint32_t>(warp, in.a);
  const auto offset = static_cast<std::uint32_t>(in.imm);
  alignas(64) std::uint32_t at[kLanes];
  const std::uint32_t first = a[0] + offset;
  std::uint32_t highest = 0;
  std::uint32_t bits = 0;
  std::uint32_t scattered = 0;
  std::uint32_t different = 0;
  for (std::uint32_t i = 0; i < kLanes; ++i) {
    at[i] = a[i] + offset;
    highest = at[i] > highest ? at[i] : highest;
    bits |= at[i];
    scattered |= at[i] ^ (first + i * static_cast<std::uint32_t>(sizeof(T)));
    different |= at[i] ^ first;
  }
  const AddressRange& window = warp.windows[static_cast<std::size_t>(Window::shared)];
  if (std::uint64_t{highest} + sizeof(T) > window.end - window.begin || (bits & (sizeof(T) - 1)) != 0) return false;
  Cell* d = row<Cell>(warp, in.d);
  if (different == 0) {
    const auto value = static_cast<Cell>(load_plain<T>(window.begin + first));
    for (std::uint32_t i = 0; i < kLanes; ++i) d[i] = value;
  } else if (sizeof(T) == sizeof(Cell) && scattered == 0) {
    std::memcpy(d, reinterpret_cast<const void*>(window.begin + first), sizeof(T) * kLanes);
  } else {
    for (std::uint32_t i = 0; i < kLanes; ++i) d[i] = static_cast<Cell>(load_plain<T>(window.begin + at[i]));
  }
  return true;
}

// T: in memory. Cell: of the register, which may be wider: then extended by T's sign.
template <class T, class Cell, bool Strong>
Flow load(Warp& warp, const Instruction& in) {
  if constexpr (!Strong) {
    if (load_shared<T, Cell>(warp, in)) return Flow::next;
  }
  alignas(64) std::uint64_t address[kLanes];
  Access access{sizeof(T) * in.count, sizeof(T) * in.count};
  if (!resolve(warp, in, access, address)) return Flow::stop;
  if constexpr (Strong) ++warp.strong_accesses;
  const bool is_block = !Strong && sizeof(T) == sizeof(Cell) && in.count == 1 && warp.exec == kAllLanes && access.is_contiguous;
  if (is_block) {
    std::memcpy(row<Cell>(warp, in.d), reinterpret_cast<const void*>(address[0]), sizeof(T) * kLanes);
    return Flow::next;
  }
  const std::uint32_t* targets = in.count == 1 ? &in.d : warp.lists + in.aux;
  for (std::uint32_t k = 0; k < in.count; ++k) {
    if (targets[k] != kNoOperand) gather<T, Cell, Strong>(warp, access, address, k * sizeof(T), row<Cell>(warp, targets[k]));
  }
  return Flow::next;
}

template <class T, class Cell, bool Strong>
Flow store(Warp& warp, const Instruction& in) {
  alignas(64) std::uint64_t address[kLanes];
  Access access{sizeof(T) * in.count, sizeof(T) * in.count};
  access.is_write = true;
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
