// SPDX-License-Identifier: Apache-2.0
#include "broker/control/guilt.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <set>

#include <cxxabi.h>

#include "broker/control/lease_table.hpp"
#include "broker/control/recovery.hpp"
#include "broker/log.hpp"

namespace mpsshim::broker::control {

namespace {

constexpr std::size_t kLongestName = 200;
constexpr std::size_t kMostNames = 4;

bool has_kernel_under_way(const StreamProgress& stream) {
  const std::uint32_t completed = stream.completed.load(std::memory_order_acquire);
  const std::uint32_t issued = stream.issued.load(std::memory_order_acquire);
  return completed != issued && static_cast<std::int32_t>(completed - stream.launched.load(std::memory_order_relaxed)) < 0;
}

bool had_kernel_until(const StreamProgress& stream, const LateEnds& late) {
  return stream.launches.load(std::memory_order_relaxed) != 0 && ended_late(stream, late);
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
    case Proof::only_suspect: return "nobody else had a kernel under way";
    case Proof::address: return "the address lies in its ranges, and it had a kernel under way";
  }
  return "?";
}

std::vector<std::uint64_t> find_suspects(std::span<const SessionCondition> sessions) {
  const bool any_kernel = std::ranges::any_of(sessions, [](const SessionCondition& session) { return !session.kernels.empty(); });
  std::vector<std::uint64_t> suspects;
  for (const SessionCondition& session : sessions) {
    if (any_kernel ? !session.kernels.empty() : session.busy) suspects.push_back(session.session);
  }
  return suspects;
}

Guilt find_guilty(const DeathReport& report, std::span<const SessionCondition> sessions, std::optional<std::uint64_t> address) {
  if (report.cause != DeathReport::Cause::fault) return {};
  if (report.named_session != 0) return {report.named_session, Proof::named};
  const std::vector<std::uint64_t> suspects = find_suspects(sessions);
  if (suspects.size() == 1) return {suspects.front(), Proof::only_suspect};
  if (!address) return {};
  std::vector<std::uint64_t> owners;
  for (const SessionCondition& session : sessions) {
    if (std::ranges::find(suspects, session.session) == suspects.end()) continue;
    if (std::ranges::any_of(session.ranges, [&](const proto::Lease& range) { return contains(range, *address); })) owners.push_back(session.session);
  }
  if (owners.size() == 1) return {owners.front(), Proof::address};
  return {};
}

bool is_a_programs_doing(CUresult error) {
  return error != CUDA_ERROR_ECC_UNCORRECTABLE && error != CUDA_ERROR_NVLINK_UNCORRECTABLE && error != CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

KernelsUnderWay kernels_under_way(const ProgressFile& file, const std::optional<LateEnds>& late) {
  std::map<std::uint64_t, std::set<std::string>> names;
  for (const StreamProgress& stream : file.table.stream) {
    const std::uint64_t session = stream.session.load(std::memory_order_acquire);
    if (session == 0 || !(has_kernel_under_way(stream) || (late && had_kernel_until(stream, *late)))) continue;
    const std::string name = name_at(file.names, stream.function.load(std::memory_order_relaxed));
    names[session].insert(name.empty() ? "(name unknown)" : readable_function(name));
  }
  KernelsUnderWay kernels;
  for (const auto& [session, of_session] : names) {
    std::string& text = kernels[session];
    std::size_t count = 0;
    for (const std::string& name : of_session) {
      if (++count > kMostNames) break;
      text += (text.empty() ? "" : ", ") + name;
    }
    if (of_session.size() > kMostNames) text += " and others";
  }
  return kernels;
}

std::vector<std::string> streams_under_way(const ProgressFile& file, const LateEnds& late, ProgressTick report) {
  std::vector<std::string> lines;
  for (std::uint32_t index = 0; index < kProgressStreams; ++index) {
    const StreamProgress& stream = file.table.stream[index];
    const std::uint64_t session = stream.session.load(std::memory_order_acquire);
    if (session == 0 || !(has_kernel_under_way(stream) || had_kernel_until(stream, late))) continue;
    const std::uint64_t seen = stream.end_seen.load(std::memory_order_acquire);
    lines.push_back(
        fmt::format("Stream {} of session {}: {} issued, {} ended, the last launch at {}; {} were seen to have ended {:.1f} ms before, the rest was "
                    "begun {:.1f} ms before",
                    index, session, stream.issued.load(), stream.completed.load(), stream.launched.load(), static_cast<std::uint32_t>(seen),
                    static_cast<std::int32_t>(report - static_cast<ProgressTick>(seen >> 32)) / 10.0,
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
