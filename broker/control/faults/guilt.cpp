// SPDX-License-Identifier: Apache-2.0
#include "broker/control/faults/guilt.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <set>

#include <cxxabi.h>

#include "broker/control/base/lease_table.hpp"
#include "broker/control/faults/verdict.hpp"
#include "broker/log.hpp"

namespace mpsshim::broker::control {

namespace {

constexpr std::size_t kLongestName = 200;
constexpr std::size_t kMostNames = 4;
constexpr std::uint64_t kNothingBelow = 64 << 10;  // Linux maps nothing there (vm.mmap_min_addr), and no driver does: where null pointers lead

// What of its session's work the stream had under way, or may have had when the fault was.
std::uint32_t kinds_under_way(const StreamProgress& stream, const std::optional<LateEnds>& late) {
  const std::uint32_t completed = stream.completed.load(std::memory_order_acquire);
  const std::uint32_t issued = stream.issued.load(std::memory_order_acquire);
  const std::uint32_t all = stream.kinds.load(std::memory_order_relaxed);
  if (late && ended_late(stream, *late)) return all;
  const auto is_ahead = [&](const std::atomic<std::uint32_t>& position) {
    return completed != issued && static_cast<std::int32_t>(completed - position.load(std::memory_order_relaxed)) < 0;
  };
  const bool is_probing = stream.probe_number.load(std::memory_order_acquire) != stream.probes.load(std::memory_order_acquire);
  std::uint32_t kinds = 0;
  if (is_ahead(stream.launched)) kinds |= WorkKind::kernel;
  if (is_ahead(stream.touched) || is_probing) kinds |= WorkKind::memory;
  return kinds & all;
}

std::uint32_t former_kinds(const StreamProgress& stream, const std::optional<LateEnds>& late) {
  return late && former_ended_late(stream, *late) ? stream.former_kinds.load(std::memory_order_relaxed) : 0;
}

// Exceptions that an instruction of a kernel raises, by the driver API's manual; a copy or a fill has none.
bool is_of_kernels_alone(CUresult error) {
  return error == CUDA_ERROR_ASSERT || error == CUDA_ERROR_HARDWARE_STACK_ERROR || error == CUDA_ERROR_ILLEGAL_INSTRUCTION ||
         error == CUDA_ERROR_MISALIGNED_ADDRESS || error == CUDA_ERROR_INVALID_ADDRESS_SPACE || error == CUDA_ERROR_INVALID_PC;
}

// Those whose work can end so.
std::vector<std::uint64_t> able_suspects(const DeathReport& report) {
  const std::uint32_t kinds = is_of_kernels_alone(report.error) ? WorkKind::kernel : WorkKind::kernel | WorkKind::memory;
  std::vector<std::uint64_t> able;
  for (const auto& [session, work] : report.work) {
    if ((work.kinds & kinds) != 0) able.push_back(session);
  }
  return able;
}

// The guard gap belongs to it: a kernel that runs past its own memory faults there.
bool contains(const proto::Lease& lease, std::uint64_t address) {
  return lease.size_bytes != 0 && address + kLeaseGuardBytes >= lease.address && address < lease.address + lease.size_bytes + kLeaseGuardBytes;
}

std::string name_at(const FunctionNames& names, std::uint32_t offset) {
  if (offset >= kFunctionNamesBytes) return {};
  return std::string(names.text + offset, strnlen(names.text + offset, kFunctionNamesBytes - offset));
}

}  // namespace

const char* proof_text(Proof proof) {
  switch (proof) {
    case Proof::none: return "not shown";
    case Proof::named: return "named by its executor";
    case Proof::only_suspect: return "nobody else had work under way that may end so";
    case Proof::address: return "nobody else had a kernel under way, and no copy of others can have that address";
  }
  return "?";
}

std::string work_text(const WorkUnderWay& work, std::uint64_t session) {
  const auto found = work.find(session);
  if (found == work.end()) return "no kernel known";
  return found->second.kernels.empty() ? "no kernel, but copies, fills or the like" : "kernel " + found->second.kernels;
}

std::vector<std::uint64_t> find_suspects(const DeathReport& report, std::span<const SessionCondition> sessions) {
  std::vector<std::uint64_t> suspects = able_suspects(report);
  if (!suspects.empty()) return suspects;
  for (const SessionCondition& session : sessions) {
    if (session.busy) suspects.push_back(session.session);
  }
  return suspects;
}

std::uint64_t owner_of(std::uint64_t address, std::span<const SessionCondition> sessions) {
  for (const SessionCondition& session : sessions) {
    if (std::ranges::any_of(session.ranges, [&](const proto::Lease& range) { return contains(range, address); })) return session.session;
  }
  return 0;
}

Guilt find_guilty(const DeathReport& report, std::span<const SessionCondition> sessions, std::optional<std::uint64_t> address) {
  if (report.cause != DeathReport::Cause::fault || !is_a_programs_doing(report.error)) return {};
  if (report.named_session != 0) return {report.named_session, Proof::named};
  std::vector<std::uint64_t> suspects = able_suspects(report);
  if (suspects.size() == 1) return {suspects.front(), Proof::only_suspect};
  if (!address) return {};
  // Whoever had copies alone had them in its own memory: in its leases, or outside the window, where modules' variables and registered memory are.
  // So an address in somebody else's lease clears it, and one where nothing ever is.
  const std::uint64_t owner = owner_of(*address, sessions);
  if (owner == 0 && *address >= kNothingBelow) return {};
  std::erase_if(suspects, [&](std::uint64_t id) { return id != owner && (report.work.at(id).kinds & WorkKind::kernel) == 0; });
  if (suspects.size() == 1) return {suspects.front(), Proof::address};
  return {};
}

bool is_a_programs_doing(CUresult error) {
  return error != CUDA_ERROR_ECC_UNCORRECTABLE && error != CUDA_ERROR_NVLINK_UNCORRECTABLE && error != CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

WorkUnderWay work_under_way(const ProgressFile& file, const std::optional<LateEnds>& late) {
  WorkUnderWay work;
  std::map<std::uint64_t, std::set<std::string>> names;
  const auto add = [&](std::uint64_t session, std::uint32_t kinds, const std::string& name) {
    if (session == 0 || kinds == 0) return;
    work[session].kinds |= kinds;
    if ((kinds & WorkKind::kernel) != 0) names[session].insert(name.empty() ? "(name unknown)" : readable_function(name));
  };
  for (const StreamProgress& stream : file.table.stream) {
    add(stream.session.load(std::memory_order_acquire), kinds_under_way(stream, late),
        name_at(file.names, stream.function.load(std::memory_order_relaxed)));
    add(stream.former_session.load(std::memory_order_acquire), former_kinds(stream, late), {});
  }
  for (const auto& [session, of_session] : names) {
    std::string& text = work[session].kernels;
    std::size_t count = 0;
    for (const std::string& name : of_session) {
      if (++count > kMostNames) break;
      text += (text.empty() ? "" : ", ") + name;
    }
    if (of_session.size() > kMostNames) text += " and others";
  }
  return work;
}

std::vector<std::string> streams_under_way(const ProgressFile& file, const LateEnds& late, ProgressTick report) {
  std::vector<std::string> lines;
  for (std::uint32_t index = 0; index < kProgressStreams; ++index) {
    const StreamProgress& stream = file.table.stream[index];
    const std::uint64_t session = stream.session.load(std::memory_order_acquire);
    if (former_kinds(stream, late) != 0) {
      lines.push_back(fmt::format("Stream {} was left by session {}: its work had ended {:.1f} ms before", index, stream.former_session.load(),
                                  static_cast<std::int32_t>(report - stream.former_end.load()) / 10.0));
    }
    if (session == 0 || kinds_under_way(stream, late) == 0) continue;
    const std::uint64_t seen = stream.end_seen.load(std::memory_order_acquire);
    lines.push_back(
        fmt::format("Stream {} of session {}: {} issued, {} ended, the last launch at {}, other work on memory at {}; {} were seen to have ended "
                    "{:.1f} ms before, the rest was begun {:.1f} ms before",
                    index, session, stream.issued.load(), stream.completed.load(), stream.launched.load(), stream.touched.load(),
                    static_cast<std::uint32_t>(seen), static_cast<std::int32_t>(report - static_cast<ProgressTick>(seen >> 32)) / 10.0,
                    static_cast<std::int32_t>(report - stream.busy_seen.load()) / 10.0));
  }
  return lines;
}

namespace {

// A mangled name refers back to parts of itself, S_ S0_ ... and T_ T0_ ..., and what it refers to may refer back: each can double what comes out.
// A client chooses its kernels' names.
bool is_small_when_demangled(std::string_view name) {
  constexpr std::size_t kMostBytes = 1024;
  constexpr unsigned kMostReferences = 12;
  unsigned references = 0;
  for (std::size_t i = 0; i < name.size(); ++i) {
    if (name[i] != 'S' && name[i] != 'T') continue;
    const std::size_t end = name.find_first_not_of("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ", i + 1);
    if (end != std::string_view::npos && name[end] == '_') ++references;
  }
  return name.size() <= kMostBytes && references <= kMostReferences;
}

}  // namespace

std::string readable_function(const std::string& name) {
  int status = -1;
  std::unique_ptr<char, void (*)(void*)> demangled(nullptr, std::free);
  if (is_small_when_demangled(name)) demangled.reset(abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status));
  std::string text = status == 0 && demangled ? demangled.get() : name;
  std::ranges::replace_if(
      text, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, '?');
  if (text.size() > kLongestName) text.replace(kLongestName - 3, std::string::npos, "...");
  return text;
}

}  // namespace mpsshim::broker::control
