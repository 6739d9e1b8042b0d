// SPDX-License-Identifier: Apache-2.0
//
// The functions that nvcc's code calls and no PTX text defines: vprintf, malloc, free, __assertfail,
// cudaGraphSetConditional. (Those of the device runtime: device_runtime_calls.cpp.)
#include <cstring>
#include <functional>
#include <string_view>

#include "broker/cpudriver/ptx/device_printf.hpp"
#include "broker/cpudriver/ptx/launch.hpp"

namespace mpsshim::ptx {
namespace {

class WarpReader final : public DeviceReader {
 public:
  explicit WarpReader(Warp& warp) : warp_(warp) {}

  bool read(std::uint64_t address, void* out, std::uint32_t bytes) override {
    refused_ = address;
    bool is_accessible = false;
    for (const AddressRange& window : warp_.windows) {
      is_accessible |= address >= window.begin && address < window.end && window.end - address >= bytes;
    }
    if (!is_accessible && !find_range(*warp_.view, address, bytes, false)) return false;
    std::memcpy(out, reinterpret_cast<const void*>(address), bytes);
    return true;
  }
  [[nodiscard]] std::uint64_t refused() const { return refused_; }

 private:
  Warp& warp_;
  std::uint64_t refused_ = 0;
};

std::uint64_t argument(const Warp& warp, const CallSite& site, std::size_t index, std::uint32_t lane) {
  std::uint64_t value = 0;
  const Slot& slot = site.parameters[index];
  std::memcpy(&value, warp.frame->memory + slot.offset + lane * slot.stride, slot.size < 8 ? slot.size : 8);
  return value;
}

void set_result(Warp& warp, const CallSite& site, std::uint32_t lane, std::uint64_t value) {
  if (site.returns.empty()) return;
  const Slot& slot = site.returns[0];
  std::memcpy(warp.frame->memory + slot.offset + lane * slot.stride, &value, slot.size < 8 ? slot.size : 8);
}

void print(Launch& launch, const std::function<void(std::string_view)>& hook, const std::string& text) {
  if (!hook || text.empty()) return;
  const std::lock_guard lock(launch.print_mutex);
  hook(text);
}

Flow print_lanes(Warp& warp, const Instruction& in, const CallSite& site) {
  WarpReader reader(warp);
  std::string text;
  std::string format;
  bool is_accessible = true;
  for (std::uint32_t rest = warp.exec; rest != 0 && is_accessible; rest &= rest - 1) {
    const auto lane = static_cast<std::uint32_t>(__builtin_ctz(rest));
    is_accessible = read_string(reader, argument(warp, site, 0, lane), format);
    if (!is_accessible) break;
    const int count = format_device_printf(reader, format, argument(warp, site, 1, lane), text);
    is_accessible = count >= 0;
    set_result(warp, site, lane, static_cast<std::uint32_t>(count));
  }
  print(*warp.block->launch, warp.block->launch->hooks->print, text);
  return is_accessible ? Flow::next : raise(warp, Fault::illegal_address, in, reader.refused());
}

std::uint32_t special_lane(const Warp& warp, Special row, std::uint32_t lane) {
  return reinterpret_cast<const std::uint32_t*>(warp.special + special_offset(row))[lane];
}

std::string triple(const Warp& warp, Special x, Special y, Special z, std::uint32_t lane) {
  return "[" + std::to_string(special_lane(warp, x, lane)) + "," + std::to_string(special_lane(warp, y, lane)) + "," +
         std::to_string(special_lane(warp, z, lane)) + "]";
}

// __assertfail(message, file, line, function, character size)
Flow fail_assertion(Warp& warp, const Instruction& in, const CallSite& site) {
  WarpReader reader(warp);
  std::string text;
  for (std::uint32_t rest = warp.exec; rest != 0; rest &= rest - 1) {
    const auto lane = static_cast<std::uint32_t>(__builtin_ctz(rest));
    std::string message;
    std::string file;
    std::string function;
    const bool is_accessible = read_string(reader, argument(warp, site, 0, lane), message) &&
                               read_string(reader, argument(warp, site, 1, lane), file) &&
                               read_string(reader, argument(warp, site, 3, lane), function);
    if (!is_accessible) return raise(warp, Fault::illegal_address, in, reader.refused());
    text += file + ":" + std::to_string(argument(warp, site, 2, lane)) + ": " + function +
            ": block: " + triple(warp, Special::ctaid_x, Special::ctaid_y, Special::ctaid_z, lane) +
            ", thread: " + triple(warp, Special::tid_x, Special::tid_y, Special::tid_z, lane) + " Assertion `" + message + "` failed.\n";
  }
  print(*warp.block->launch, warp.block->launch->hooks->print_assertion, text);
  return raise(warp, Fault::device_assert, in);
}

Flow use_heap(Warp& warp, const CallSite& site, bool is_release) {
  DeviceHeap* heap = warp.block->launch->hooks->heap;
  for (std::uint32_t rest = warp.exec; rest != 0; rest &= rest - 1) {
    const auto lane = static_cast<std::uint32_t>(__builtin_ctz(rest));
    const std::uint64_t value = argument(warp, site, 0, lane);
    if (!is_release)
      set_result(warp, site, lane, heap == nullptr ? 0 : heap->allocate(value));
    else if (heap != nullptr && value != 0)
      heap->release(value);
  }
  return Flow::next;
}

// cudaGraphSetConditional(handle, value)
Flow set_condition(Warp& warp, const Instruction& in, const CallSite& site) {
  const auto& hook = warp.block->launch->hooks->set_condition;
  for (std::uint32_t rest = warp.exec; rest != 0; rest &= rest - 1) {
    const auto lane = static_cast<std::uint32_t>(__builtin_ctz(rest));
    const std::uint64_t handle = argument(warp, site, 0, lane);
    const bool is_set = hook && hook(handle, static_cast<std::uint32_t>(argument(warp, site, 1, lane)));
    if (!is_set) return raise(warp, Fault::illegal_address, in, handle);
  }
  return Flow::next;
}

}  // namespace

Flow call_builtin(Warp& warp, const Instruction& in, const CallSite& site, const Function& function) {
  switch (function.builtin) {
    case Builtin::print: return print_lanes(warp, in, site);
    case Builtin::assert_fail: return fail_assertion(warp, in, site);
    case Builtin::allocate: return use_heap(warp, site, false);
    case Builtin::release: return use_heap(warp, site, true);
    case Builtin::set_condition: return set_condition(warp, in, site);
    case Builtin::device_runtime: return call_device_runtime(warp, in, site, function.runtime_call);
    case Builtin::none: break;
  }
  return raise(warp, Fault::illegal_instruction, in);
}

}  // namespace mpsshim::ptx
