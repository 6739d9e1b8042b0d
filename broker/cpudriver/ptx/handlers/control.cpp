// SPDX-License-Identifier: Apache-2.0
//
// Branches, calls, returns, exit, traps, fences and clocks. Compiled once.
#include <chrono>
#include <cstring>

#include "broker/cpudriver/ptx/form.hpp"
#include "broker/cpudriver/ptx/launch.hpp"

namespace mpsshim::ptx {
namespace {

constexpr std::uint32_t kCallBytes = 16;  // What a call takes of the stack besides its variables.
constexpr std::size_t kMaxFrames = 4096;  // Of a warp.

Flow branch(Warp& warp, const Instruction& in) {
  const auto target = static_cast<std::uint32_t>(in.imm);
  const std::uint32_t taken = warp.exec;
  if (taken != warp.mask) {
    set_aside(warp, warp.pc, warp.mask & ~taken, warp.frame, GroupState::runnable);
    warp.mask = taken;
  }
  const bool is_backward = target < warp.pc;
  warp.pc = target;
  if (is_backward) note_backward_branch(warp);
  return warp.group_count == 0 ? Flow::next : reschedule(warp);
}

// The current group has lost `lanes`; what is left goes on behind the instruction.
Flow without(Warp& warp, std::uint32_t lanes) {
  warp.mask &= ~lanes;
  if (warp.mask == 0) return next_group(warp);
  return warp.group_count == 0 ? Flow::next : reschedule(warp);
}

Flow exit_lanes(Warp& warp, const Instruction&) {
  retire_lanes(warp, warp.exec);
  return without(warp, warp.exec);
}

void copy_slot(std::byte* to, const Slot& target, const std::byte* from, const Slot& source, std::uint32_t lanes) {
  for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
    const auto i = static_cast<std::uint32_t>(__builtin_ctz(rest));
    std::memcpy(to + target.offset + i * target.stride, from + source.offset + i * source.stride, source.size);
  }
}

Flow return_lanes(Warp& warp, const Instruction& in) {
  Frame* frame = warp.frame;
  if (frame->parent == nullptr) return exit_lanes(warp, in);
  Frame* parent = frame->parent;
  const std::uint32_t lanes = warp.exec;
  const Program& program = *warp.block->launch->program;
  const CallSite& site = program.calls[program.code[frame->call_pc].aux];
  for (std::size_t i = 0; i < site.returns.size(); ++i) {
    copy_slot(parent->memory, site.returns[i], frame->memory, frame->function->returns[i], lanes);
  }
  frame->live &= ~lanes;
  set_aside(warp, frame->call_pc + 1, lanes, parent, GroupState::runnable);
  return without(warp, lanes);
}

Frame* find_frame(Warp& warp, const Function& function, std::uint32_t call_pc) {
  Frame* spare = nullptr;
  for (auto& frame : warp.frames) {
    if (frame->live == 0) {
      if (frame->capacity >= function.frame_bytes) spare = frame.get();
    } else if (frame->parent == warp.frame && frame->call_pc == call_pc && frame->function == &function) {
      return frame.get();
    }
  }
  if (spare == nullptr) {
    if (warp.frames.size() >= kMaxFrames) return nullptr;
    auto frame = std::make_unique<Frame>();
    frame->capacity = (function.frame_bytes + 63) & ~std::size_t{63};
    frame->owned = allocate_zeroed(frame->capacity);
    frame->memory = frame->owned.get();
    spare = frame.get();
    warp.frames.push_back(std::move(frame));
  }
  const std::uint32_t local = (warp.frame->function->local_bytes + 15) & ~15U;
  spare->parent = warp.frame;
  spare->function = &function;
  spare->call_pc = call_pc;
  spare->depth = warp.frame->depth + 1;
  spare->local_offset = warp.frame->local_offset + (local > kCallBytes ? local : kCallBytes);
  return spare;
}

Flow enter(Warp& warp, const Instruction& in, const Function& function, const CallSite& site) {
  if (function.builtin != Builtin::none) return call_builtin(warp, in, site, function);
  Frame* frame = find_frame(warp, function, warp.pc - 1);
  const bool fits = frame != nullptr && std::uint64_t{frame->local_offset} + function.local_bytes <= warp.local_stride;
  if (!fits) return raise(warp, Fault::stack_error, in);
  const std::uint32_t lanes = warp.exec;
  for (std::size_t i = 0; i < site.parameters.size(); ++i) {
    copy_slot(frame->memory, function.parameters[i], warp.frame->memory, site.parameters[i], lanes);
  }
  frame->live |= lanes;
  if (warp.mask != lanes) set_aside(warp, warp.pc, warp.mask & ~lanes, warp.frame, GroupState::runnable);
  warp.mask = lanes;
  warp.pc = function.entry_pc;
  if (warp.pinned == 0) warp.stop_pc = 0xffffffff;
  activate(warp, frame);
  return warp.group_count == 0 ? Flow::next : reschedule(warp);
}

Flow call_direct(Warp& warp, const Instruction& in) {
  const Program& program = *warp.block->launch->program;
  const CallSite& site = program.calls[in.aux];
  return enter(warp, in, program.functions[site.function], site);
}

bool matches(const std::vector<Slot>& a, const std::vector<Slot>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].size != b[i].size) return false;
  }
  return true;
}

// Lanes that call something else than the first lane execute the instruction again afterwards.
Flow call_indirect(Warp& warp, const Instruction& in) {
  const Program& program = *warp.block->launch->program;
  const CallSite& site = program.calls[in.aux];
  const auto* targets = reinterpret_cast<const std::uint64_t*>(warp.base[in.a >> 30] + (in.a & 0x3fffffff));
  const std::uint64_t handle = targets[__builtin_ctz(warp.exec)];
  const std::uint64_t index = (handle - kFunctionHandleBase) / 16;
  const bool is_function = handle >= kFunctionHandleBase && handle % 16 == 0 && index < program.functions.size();
  if (!is_function || !matches(site.parameters, program.functions[index].parameters) || !matches(site.returns, program.functions[index].returns)) {
    return raise(warp, Fault::invalid_pc, in, handle);
  }
  std::uint32_t same = 0;
  for (std::uint32_t rest = warp.exec; rest != 0; rest &= rest - 1) {
    if (targets[__builtin_ctz(rest)] == handle) same |= rest & (0 - rest);
  }
  const std::uint32_t others = warp.exec & ~same;
  if (others != 0) {
    set_aside(warp, warp.pc - 1, others, warp.frame, GroupState::runnable);
    warp.mask &= ~others;
    warp.exec = same;
  }
  return enter(warp, in, program.functions[index], site);
}

Flow trap(Warp& warp, const Instruction& in) { return raise(warp, Fault::launch_failed, in); }

Flow fence(Warp&, const Instruction&) {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  return Flow::next;
}

Flow nothing(Warp&, const Instruction&) { return Flow::next; }

Flow nanosleep(Warp& warp, const Instruction&) {
  ++warp.strong_accesses;  // Who sleeps in a loop waits for somebody.
  warp.wants_yield = true;
  return Flow::next;
}

std::uint64_t nanoseconds(bool since_epoch) {
  const auto now = since_epoch ? std::chrono::system_clock::now().time_since_epoch()
                               : std::chrono::duration_cast<std::chrono::system_clock::duration>(std::chrono::steady_clock::now().time_since_epoch());
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

// mov from %clock (imm 0), %clock_hi (1), %clock64 (2), %globaltimer (3), its halves (4, 5). One tick is 1 ns.
Flow read_clock(Warp& warp, const Instruction& in) {
  ++warp.strong_accesses;
  std::uint64_t value = nanoseconds(in.imm >= 3);
  if (in.imm == 1 || in.imm == 5) value >>= 32;
  std::byte* d = warp.base[in.d >> 30] + (in.d & 0x3fffffff);
  for (std::uint32_t rest = warp.exec; rest != 0; rest &= rest - 1) {
    const auto i = static_cast<std::uint32_t>(__builtin_ctz(rest));
    if (in.imm == 2 || in.imm == 3)
      reinterpret_cast<std::uint64_t*>(d)[i] = value;
    else
      reinterpret_cast<std::uint32_t*>(d)[i] = static_cast<std::uint32_t>(value);
  }
  return Flow::next;
}

// cvta and isspacep: shared, local and parameters have windows; global and const are generic already.
template <Window W, bool ToGeneric>
Flow convert_address(Warp& warp, const Instruction& in) {
  const auto* a = reinterpret_cast<const std::uint64_t*>(warp.base[in.a >> 30] + (in.a & 0x3fffffff));
  auto* d = reinterpret_cast<std::uint64_t*>(warp.base[in.d >> 30] + (in.d & 0x3fffffff));
  const std::uint64_t begin = warp.windows[static_cast<std::size_t>(W)].begin;
  for (std::uint32_t rest = warp.exec; rest != 0; rest &= rest - 1) {
    const auto i = static_cast<std::uint32_t>(__builtin_ctz(rest));
    const std::uint64_t base = begin + (W == Window::local ? std::uint64_t{i} * warp.local_stride : 0);
    d[i] = ToGeneric ? a[i] + base : a[i] - base;
  }
  return Flow::next;
}

bool is_in(const AddressRange& range, std::uint64_t address) { return address >= range.begin && address < range.end; }

Flow is_in_space(Warp& warp, const Instruction& in) {
  const auto* a = reinterpret_cast<const std::uint64_t*>(warp.base[in.a >> 30] + (in.a & 0x3fffffff));
  auto* d = reinterpret_cast<std::uint32_t*>(warp.base[in.d >> 30] + (in.d & 0x3fffffff));
  const AddressRange* windows = warp.windows;
  const Program& program = *warp.block->launch->program;
  for (std::uint32_t rest = warp.exec; rest != 0; rest &= rest - 1) {
    const auto i = static_cast<std::uint32_t>(__builtin_ctz(rest));
    const bool shared = is_in(windows[static_cast<std::size_t>(Window::shared)], a[i]);
    const bool local = is_in(windows[static_cast<std::size_t>(Window::local)], a[i]);
    const bool param = is_in(windows[static_cast<std::size_t>(Window::parameters)], a[i]);
    bool constant = false;
    for (std::uint32_t g = 0; g < program.globals.size(); ++g) {
      if (program.globals[g].space != GlobalSpace::constant) continue;
      const std::uint64_t begin = warp.block->launch->config.instance->global_address(g);
      constant |= a[i] >= begin && a[i] < begin + program.globals[g].size;
    }
    const bool result = in.space == Space::shared     ? shared
                        : in.space == Space::local    ? local
                        : in.space == Space::param    ? param
                        : in.space == Space::constant ? constant
                                                      : !shared && !local && !constant;
    d[0] = (d[0] & ~(1U << i)) | (std::uint32_t{result} << i);
  }
  return Flow::next;
}

Handler select_cvta(const Form& f) {
  const bool to = f.has(Mod::to);
  if (f.type != Type::u64) return nullptr;
  if (f.has(Mod::shared) || f.has(Mod::shared_cta)) return to ? convert_address<Window::shared, false> : convert_address<Window::shared, true>;
  if (f.has(Mod::local)) return to ? convert_address<Window::local, false> : convert_address<Window::local, true>;
  if (f.has(Mod::param)) return to ? convert_address<Window::parameters, false> : convert_address<Window::parameters, true>;
  return nullptr;  // global and const: a move.
}

}  // namespace

Handler select_control(const Form& f) {
  switch (f.op) {
    case Op::bra: return branch;
    case Op::exit: return exit_lanes;
    case Op::ret: return return_lanes;
    case Op::call: return f.type == Type::b64 ? call_indirect : call_direct;  // The decoder's mark.
    case Op::trap: return trap;
    case Op::fence: return fence;
    case Op::griddepcontrol:  // A grid begins when the one before it has ended: there is nothing to wait for.
    case Op::prefetch: return nothing;
    case Op::nanosleep: return nanosleep;
    case Op::mov: return read_clock;
    case Op::cvta: return select_cvta(f);
    case Op::isspacep: return is_in_space;
    default: return nullptr;
  }
}

}  // namespace mpsshim::ptx
