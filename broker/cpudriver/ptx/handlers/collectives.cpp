// SPDX-License-Identifier: Apache-2.0
//
// shfl, vote, match, redux and bar.warp: operations of all lanes that a member mask names. Masks differ from lane to
// lane (tiles of 16 run one instruction with two masks). Lanes may come in several groups, even from different
// places in the code: each leaves its value and waits; the group that comes last computes for all.
#include <cstring>

#include "broker/cpudriver/ptx/form.hpp"
#include "broker/cpudriver/ptx/launch.hpp"

namespace mpsshim::ptx {
namespace {

using u32 = std::uint32_t;
using u64 = std::uint64_t;

// in: d, e = member masks, a = value, b and c = shfl's lane and clamp, aux = second destination, imm = what.
enum class What : std::uint8_t {
  shfl_idx,
  shfl_up,
  shfl_down,
  shfl_bfly,
  vote_all,
  vote_any,
  vote_uni,
  vote_ballot,
  match_any,
  match_all,
  redux_add,
  redux_min,
  redux_max,
  redux_umin,
  redux_umax,
  redux_and,
  redux_or,
  redux_xor,
  sync
};

template <class T>
T* lanes_of(const Warp& warp, const Frame& frame, std::uint32_t operand) {
  std::byte* base = operand >> 30 == 0 ? frame.memory : warp.base[operand >> 30];
  return reinterpret_cast<T*>(base + (operand & 0x3fffffff));
}

template <What W>
constexpr bool kIsVote = W >= What::vote_all&& W <= What::vote_ballot;

template <class T, What W>
void contribute(Warp& warp, const Frame& frame, const Instruction& in, std::uint32_t lanes) {
  if constexpr (W == What::sync) return;
  if constexpr (kIsVote<W>) {
    std::uint32_t p = *lanes_of<const std::uint32_t>(warp, frame, in.a);
    if ((in.flags & kFlagNegateA) != 0) p = ~p;
    for (std::uint32_t i = 0; i < kLanes; ++i) {
      if ((lanes >> i & 1) != 0) warp.exchange.value[i] = p >> i & 1;
    }
  } else {
    const T* a = lanes_of<const T>(warp, frame, in.a);
    for (std::uint32_t i = 0; i < kLanes; ++i) {
      if ((lanes >> i & 1) != 0) warp.exchange.value[i] = a[i];
    }
  }
  warp.exchange.lanes |= lanes;
}

void set_bit(std::uint32_t* mask, std::uint32_t lane, bool value) { *mask = (*mask & ~(1U << lane)) | (std::uint32_t{value} << lane); }

struct Shuffle {
  std::uint32_t source = 0;
  bool is_in_range = false;
};
template <What W>
Shuffle shuffle_source(std::uint32_t lane, std::uint32_t b, std::uint32_t c) {
  const std::uint32_t segment = c >> 8 & 31;
  const std::uint32_t clamp = c & 31;
  const auto last = static_cast<std::int32_t>((lane & segment) | (clamp & ~segment));
  const auto at = static_cast<std::int32_t>(lane);
  const auto by = static_cast<std::int32_t>(b & 31);
  std::int32_t j = 0;
  if constexpr (W == What::shfl_up)
    j = at - by;
  else if constexpr (W == What::shfl_down)
    j = at + by;
  else if constexpr (W == What::shfl_bfly)
    j = at ^ by;
  else
    j = static_cast<std::int32_t>((lane & segment) | (b & 31 & ~segment));
  const bool is_in_range = W == What::shfl_up ? j >= last : j <= last;
  return {is_in_range ? static_cast<std::uint32_t>(j) : lane, is_in_range};
}

template <class T, What W>
void finish_shuffle(Warp& warp, const Frame& frame, const Instruction& in, std::uint32_t lanes) {
  const auto* b = lanes_of<const std::uint32_t>(warp, frame, in.b);
  const auto* c = lanes_of<const std::uint32_t>(warp, frame, in.c);
  T* d = in.d == kNoOperand ? nullptr : lanes_of<T>(warp, frame, in.d);
  auto* p = in.aux == kNoOperand ? nullptr : lanes_of<std::uint32_t>(warp, frame, in.aux);
  for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
    const auto i = static_cast<std::uint32_t>(__builtin_ctz(rest));
    const Shuffle from = shuffle_source<W>(i, b[i], c[i]);
    // The ISA leaves open what comes from a lane that takes no part; the hardware gives 0, and programs count on it.
    const bool is_there = (warp.exchange.lanes >> from.source & 1) != 0;
    if (d != nullptr) d[i] = is_there ? static_cast<T>(warp.exchange.value[from.source]) : T{0};
    if (p != nullptr) set_bit(p, i, from.is_in_range);
  }
}

// The common case: a whole warp converged. No lane is missing, so no exchange is needed.
template <What W>
void shuffle_whole_warp(Warp& warp, const Instruction& in) {
  const auto* b = lanes_of<const std::uint32_t>(warp, *warp.frame, in.b);
  const auto* c = lanes_of<const std::uint32_t>(warp, *warp.frame, in.c);
  std::uint32_t a[kLanes];
  std::memcpy(a, lanes_of<const std::uint32_t>(warp, *warp.frame, in.a), sizeof a);
  std::uint32_t result[kLanes];
  std::uint32_t in_range = 0;
  for (std::uint32_t i = 0; i < kLanes; ++i) {
    const Shuffle from = shuffle_source<W>(i, b[i], c[i]);
    result[i] = a[from.source];
    in_range |= std::uint32_t{from.is_in_range} << i;
  }
  if (in.d != kNoOperand) std::memcpy(lanes_of<std::uint32_t>(warp, *warp.frame, in.d), result, sizeof result);
  if (in.aux != kNoOperand) *lanes_of<std::uint32_t>(warp, *warp.frame, in.aux) = in_range;
}

template <class T, What W>
T reduce(const Exchange& exchange, std::uint32_t members) {
  T result = static_cast<T>(exchange.value[static_cast<std::size_t>(__builtin_ctz(members))]);
  for (std::uint32_t rest = members & (members - 1); rest != 0; rest &= rest - 1) {
    const T v = static_cast<T>(exchange.value[static_cast<std::size_t>(__builtin_ctz(rest))]);
    if constexpr (W == What::redux_add)
      result += v;
    else if constexpr (W == What::redux_min)
      result = static_cast<std::int32_t>(v) < static_cast<std::int32_t>(result) ? v : result;
    else if constexpr (W == What::redux_max)
      result = static_cast<std::int32_t>(v) > static_cast<std::int32_t>(result) ? v : result;
    else if constexpr (W == What::redux_umin)
      result = v < result ? v : result;
    else if constexpr (W == What::redux_umax)
      result = v > result ? v : result;
    else if constexpr (W == What::redux_and)
      result &= v;
    else if constexpr (W == What::redux_or)
      result |= v;
    else if constexpr (W == What::redux_xor)
      result ^= v;
  }
  return result;
}

template <class T, What W>
void finish_one(const Exchange& exchange, std::uint32_t lane, std::uint32_t members, std::byte* d, std::uint32_t* p) {
  if constexpr (kIsVote<W>) {
    std::uint32_t ballot = 0;
    for (std::uint32_t rest = members; rest != 0; rest &= rest - 1) {
      const auto i = static_cast<std::uint32_t>(__builtin_ctz(rest));
      ballot |= static_cast<std::uint32_t>(exchange.value[i]) << i;
    }
    auto* target = reinterpret_cast<std::uint32_t*>(d);
    if constexpr (W == What::vote_ballot)
      target[lane] = ballot;
    else
      set_bit(target, lane, W == What::vote_all ? ballot == members : W == What::vote_any ? ballot != 0 : ballot == 0 || ballot == members);
  } else if constexpr (W == What::match_any || W == What::match_all) {
    std::uint32_t same = 0;
    for (std::uint32_t rest = members; rest != 0; rest &= rest - 1) {
      const auto i = static_cast<std::uint32_t>(__builtin_ctz(rest));
      if (exchange.value[i] == exchange.value[lane]) same |= 1U << i;
    }
    const bool is_all = same == members;
    if (W == What::match_all && !is_all) same = 0;
    if (d != nullptr) reinterpret_cast<std::uint32_t*>(d)[lane] = same;
    if (p != nullptr) set_bit(p, lane, is_all);
  } else {
    reinterpret_cast<T*>(d)[lane] = reduce<T, W>(exchange, members);
  }
}

template <class T, What W>
void finish(Warp& warp, const Frame& frame, const Instruction& in, std::uint32_t lanes) {
  if constexpr (W == What::sync)
    return;
  else if constexpr (W <= What::shfl_bfly)
    finish_shuffle<T, W>(warp, frame, in, lanes);
  else {
    const auto* member = lanes_of<const std::uint32_t>(warp, frame, in.e);
    std::byte* d = in.d == kNoOperand ? nullptr : lanes_of<std::byte>(warp, frame, in.d);
    auto* p = in.aux == kNoOperand ? nullptr : lanes_of<std::uint32_t>(warp, frame, in.aux);
    for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
      const auto i = static_cast<std::uint32_t>(__builtin_ctz(rest));
      finish_one<T, W>(warp.exchange, i, (member[i] | 1U << i) & warp.exchange.lanes, d, p);
    }
  }
}

// Lanes of `lanes` all of whose live members have arrived.
std::uint32_t ready_lanes(const std::uint32_t* member, std::uint32_t lanes, std::uint32_t arrived, std::uint32_t alive) {
  std::uint32_t ready = 0;
  for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
    const auto i = static_cast<std::uint32_t>(__builtin_ctz(rest));
    if ((member[i] & alive & ~arrived) == 0) ready |= 1U << i;
  }
  return ready;
}

// Someone is missing: works out who can go on, and leaves the rest waiting at this instruction.
template <class T, What W>
Flow collective_in_parts(Warp& warp, const Instruction& in) {
  const Program& program = *warp.block->launch->program;
  const auto is_waiting_here = [&](const Group& g) { return g.state == GroupState::at_collective && program.code[g.pc].handler[0] == in.handler[0]; };
  std::uint32_t arrived = warp.exec;
  for (std::uint32_t i = 0; i < warp.group_count; ++i) {
    if (is_waiting_here(warp.groups[i])) arrived |= warp.groups[i].mask;
  }
  const std::uint32_t lanes = warp.exec;
  Frame* const frame = warp.frame;
  const std::uint32_t ready = ready_lanes(lanes_of<const std::uint32_t>(warp, *frame, in.e), lanes, arrived, warp.alive);
  std::uint32_t group_ready[kLanes] = {};
  contribute<T, W>(warp, *frame, in, ready);
  const std::uint32_t count = warp.group_count;
  for (std::uint32_t i = 0; i < count; ++i) {
    const Group& g = warp.groups[i];
    if (!is_waiting_here(g)) continue;
    const Instruction& other = program.code[g.pc];
    group_ready[i] = ready_lanes(lanes_of<const std::uint32_t>(warp, *g.frame, other.e), g.mask, arrived, warp.alive);
    contribute<T, W>(warp, *g.frame, other, group_ready[i]);
  }
  finish<T, W>(warp, *frame, in, ready);
  for (std::uint32_t i = 0; i < count; ++i) {
    if (group_ready[i] == 0) continue;
    const Group g = warp.groups[i];
    finish<T, W>(warp, *g.frame, program.code[g.pc], group_ready[i]);
    warp.groups[i].mask = group_ready[i];
    warp.groups[i].pc = g.pc + 1;
    warp.groups[i].state = GroupState::runnable;
    const std::uint32_t rest = g.mask & ~group_ready[i];
    if (rest != 0) set_aside(warp, g.pc, rest, g.frame, GroupState::at_collective);
  }
  const std::uint32_t waiting = lanes & ~ready;
  if (waiting != 0) set_aside(warp, warp.pc - 1, waiting, frame, GroupState::at_collective);
  warp.mask &= ~waiting;
  return warp.mask == 0 ? next_group(warp) : reschedule(warp);
}

template <class T, What W>
Flow collective(Warp& warp, const Instruction& in) {
  if constexpr (W <= What::shfl_bfly) {
    if (warp.exec == kAllLanes) {
      shuffle_whole_warp<W>(warp, in);
      return Flow::next;
    }
  }
  warp.exchange.lanes = 0;
  if ((warp.alive & ~warp.exec) != 0) return collective_in_parts<T, W>(warp, in);
  contribute<T, W>(warp, *warp.frame, in, warp.exec);
  finish<T, W>(warp, *warp.frame, in, warp.exec);
  return Flow::next;
}

Flow active_mask(Warp& warp, const Instruction& in) {
  auto* d = lanes_of<std::uint32_t>(warp, *warp.frame, in.d);
  for (std::uint32_t i = 0; i < kLanes; ++i) {
    if ((warp.exec >> i & 1) != 0) d[i] = warp.exec;
  }
  return Flow::next;
}

Handler select_redux(const Form& f) {
  const bool is_bits = f.type == Type::b32;
  const bool is_signed = f.type == Type::s32;
  if (!is_bits && !is_signed && f.type != Type::u32) return nullptr;
  if (is_bits) {
    if (f.has(Mod::and_)) return collective<u32, What::redux_and>;
    if (f.has(Mod::or_)) return collective<u32, What::redux_or>;
    return f.has(Mod::xor_) ? collective<u32, What::redux_xor> : nullptr;
  }
  if (f.has(Mod::add)) return collective<u32, What::redux_add>;
  if (f.has(Mod::min)) return is_signed ? collective<u32, What::redux_min> : collective<u32, What::redux_umin>;
  if (f.has(Mod::max)) return is_signed ? collective<u32, What::redux_max> : collective<u32, What::redux_umax>;
  return nullptr;
}

}  // namespace

Handler select_warp(const Form& f) {
  if (f.op == Op::activemask) return f.type == Type::b32 ? active_mask : nullptr;
  if (!f.has(Mod::sync)) return nullptr;  // Forms before sm_70, which have no member mask.
  switch (f.op) {
    case Op::shfl:
      if (f.type != Type::b32) return nullptr;
      if (f.has(Mod::idx)) return collective<u32, What::shfl_idx>;
      if (f.has(Mod::up)) return collective<u32, What::shfl_up>;
      if (f.has(Mod::down)) return collective<u32, What::shfl_down>;
      return f.has(Mod::bfly) ? collective<u32, What::shfl_bfly> : nullptr;
    case Op::vote:
      if (f.has(Mod::ballot)) return f.type == Type::b32 ? collective<u32, What::vote_ballot> : nullptr;
      if (f.type != Type::pred) return nullptr;
      if (f.has(Mod::all)) return collective<u32, What::vote_all>;
      if (f.has(Mod::any)) return collective<u32, What::vote_any>;
      return f.has(Mod::uni) ? collective<u32, What::vote_uni> : nullptr;
    case Op::match:
      if (f.type != Type::b32 && f.type != Type::b64) return nullptr;
      if (f.has(Mod::any)) return f.type == Type::b64 ? collective<u64, What::match_any> : collective<u32, What::match_any>;
      if (f.has(Mod::all)) return f.type == Type::b64 ? collective<u64, What::match_all> : collective<u32, What::match_all>;
      return nullptr;
    case Op::redux: return select_redux(f);
    case Op::bar: return collective<u32, What::sync>;
    default: return nullptr;
  }
}

}  // namespace mpsshim::ptx
