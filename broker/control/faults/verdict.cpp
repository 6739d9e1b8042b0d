// SPDX-License-Identifier: Apache-2.0
#include "broker/control/faults/verdict.hpp"

#include <algorithm>

namespace mpsshim::broker::control {

namespace {

bool has_work(const StreamProgress& stream) {
  return stream.held.load(std::memory_order_acquire) != 0 ||
         stream.completed.load(std::memory_order_acquire) != stream.issued.load(std::memory_order_acquire);
}

// Exceptions of a multiprocessor after which a grid may come to its end; seen on an H200 with the first, beside another client's kernel.
bool writes_words_behind(CUresult error) {
  return error == CUDA_ERROR_MISALIGNED_ADDRESS || error == CUDA_ERROR_INVALID_ADDRESS_SPACE || error == CUDA_ERROR_INVALID_PC;
}

Verdict judge(const DeathReport& report, const SessionCondition& session, const Guilt& guilt) {
  const bool is_named = report.named_session != 0 && report.named_session == session.session;
  const auto failed = [&](CUresult error) { return Verdict{session.session, Fate::failed, error}; };
  if (session.client_gone) return {session.session, Fate::dropped, CUDA_SUCCESS};
  if (session.terminated) return failed(CUDA_ERROR_MPS_CLIENT_TERMINATED);
  if (guilt.proof != Proof::none && guilt.session == session.session) return failed(report.error);
  if (is_named && report.cause != DeathReport::Cause::fault) return failed(CUDA_ERROR_MPS_SERVER_NOT_READY);
  if (session.is_tried) return {session.session, Fate::tried, CUDA_SUCCESS};
  if (session.busy) return failed(CUDA_ERROR_MPS_SERVER_NOT_READY);
  return {session.session, Fate::moved, CUDA_SUCCESS};
}

}  // namespace

std::vector<Verdict> judge(const DeathReport& report, std::span<const SessionCondition> sessions, const Guilt& guilt) {
  std::vector<Verdict> verdicts;
  for (const SessionCondition& session : sessions) verdicts.push_back(judge(report, session, guilt));
  return verdicts;
}

namespace {

bool is_at_rest(const ProgressTable& table) {
  return std::ranges::none_of(table.stream,
                              [](const StreamProgress& stream) { return stream.session.load(std::memory_order_acquire) != 0 && has_work(stream); });
}

// What was seen to end after `until`.
enum class Later : std::uint8_t { counts_as_then, is_left_out };

// How long before `until` the last end of all was; nullopt: there is none.
std::optional<ProgressTick> last_end_before(const ProgressTable& table, ProgressTick until, Later later) {
  std::optional<ProgressTick> least;
  for (const StreamProgress& stream : table.stream) {
    const auto seen = static_cast<ProgressTick>(stream.end_seen.load(std::memory_order_acquire) >> 32);
    if (seen == 0 || stream.session.load(std::memory_order_acquire) == 0) continue;
    const auto before = static_cast<std::int32_t>(until - seen);
    if (before < 0 && later == Later::is_left_out) continue;
    const auto ticks = static_cast<ProgressTick>(std::max(0, before));
    least = least ? std::min(*least, ticks) : ticks;
  }
  return least;
}

// True if `holds` does so for the time since which some work has been under way.
template <typename Holds>
bool any_work_since(const ProgressTable& table, Holds holds) {
  return std::ranges::any_of(table.stream, [&](const StreamProgress& stream) {
    return stream.session.load(std::memory_order_acquire) != 0 && has_work(stream) && holds(stream.busy_seen.load(std::memory_order_acquire));
  });
}

// How long after a fault is it told of, at most: by the kernel log, and by the driver.
struct Delays {
  ProgressTick log = 0;
  ProgressTick report = 0;
};
constexpr Delays kUsual{kLongestLogDelay, kLongestStandstill};
constexpr Delays kOnSharedGpu{kLongestStandstillAtRest, kLongestStandstillAtRest};

// Since when nothing has ended, by what was at work besides: the last end before the log's line, if work begun at once behind it still runs. The
// line's time, if there is none such: it may be late where other processes have the GPU in turn.
ProgressTick standstill_before(const ProgressTable& table, ProgressTick heard, const Delays& longest) {
  const std::optional<ProgressTick> last_end = last_end_before(table, heard, Later::is_left_out);
  if (!last_end || *last_end > longest.log) return heard;
  const ProgressTick end = heard - *last_end;
  return any_work_since(table, [&](ProgressTick begun) { return begun != 0 && is_not_before(end + kLateEnd, begun); }) ? end : heard;
}

// Without the kernel log: what ended last of all may have been the fault.
LateEnds ends_before_standstill(const ProgressTable& table, ProgressTick report, CUresult error, const Delays& longest) {
  const std::optional<ProgressTick> standstill = last_end_before(table, report, Later::counts_as_then);
  if (!standstill || *standstill > (is_at_rest(table) ? kLongestStandstillAtRest : longest.report)) return {report - kLateEnd};
  const ProgressTick end = report - *standstill;
  // What was begun after the last end explains the fault as well, and better, unless words are known to be written behind such a fault.
  const bool is_explained =
      !writes_words_behind(error) && any_work_since(table, [&](ProgressTick begun) { return begun == 0 || is_not_before(begun, end); });
  return {(is_explained ? report : end) - kLateEnd};
}

LateEnds ends_about(const ProgressTable& table, ProgressTick report, CUresult error, std::optional<ProgressTick> heard, const Delays& longest) {
  if (error == CUDA_ERROR_ILLEGAL_ADDRESS) return {report - kLateEnd};
  if (heard && writes_words_behind(error)) {
    const LateEnds since{standstill_before(table, *heard, longest) - kLogDelay};
    if (!busy_sessions(table, since).empty()) return since;
  } else if (heard && is_at_rest(table)) {
    const LateEnds around{report - kLateEnd, LateEnds::Span{*heard - kLogDelay, *heard + kLateEnd}};
    if (!busy_sessions(table, around).empty()) return around;
  }
  return ends_before_standstill(table, report, error, longest);  // the log was late, if it explains nothing
}

}  // namespace

LateEnds late_ends(const ProgressTable& table, ProgressTick report, CUresult error, std::optional<ProgressTick> heard) {
  return ends_about(table, report, error, heard, kUsual);
}

LateEnds suspect_ends(const ProgressTable& table, ProgressTick report, CUresult error, std::optional<ProgressTick> heard) {
  return ends_about(table, report, error, heard, writes_words_behind(error) ? kOnSharedGpu : kUsual);
}

std::set<std::uint64_t> busy_sessions(const ProgressTable& table) {
  std::set<std::uint64_t> busy;
  for (const StreamProgress& stream : table.stream) {
    const std::uint64_t session = stream.session.load(std::memory_order_acquire);
    if (session != 0 && has_work(stream)) busy.insert(session);
  }
  return busy;
}

std::map<std::uint64_t, std::uint64_t> work_in_flight(const ProgressTable& table) {
  std::map<std::uint64_t, std::uint64_t> in_flight;
  for (const StreamProgress& stream : table.stream) {
    const std::uint64_t session = stream.session.load(std::memory_order_acquire);
    if (session == 0) continue;
    const std::uint32_t completed = stream.completed.load(std::memory_order_acquire);  // first: it never comes before what is issued
    const std::uint32_t left = stream.issued.load(std::memory_order_acquire) - completed;
    if (left != 0 && left < 1u << 31) in_flight[session] += left;  // beyond: the stream has another owner meanwhile
  }
  return in_flight;
}

std::set<std::uint64_t> busy_sessions(const ProgressTable& table, const LateEnds& late) {
  std::set<std::uint64_t> busy = busy_sessions(table);
  for (const StreamProgress& stream : table.stream) {
    const std::uint64_t session = stream.session.load(std::memory_order_acquire);
    if (session != 0 && ended_late(stream, late)) busy.insert(session);
    if (former_ended_late(stream, late)) busy.insert(stream.former_session.load(std::memory_order_acquire));
  }
  return busy;
}

bool is_busy(const ProgressTable& table, std::uint64_t session) {
  return std::ranges::any_of(
      table.stream, [&](const StreamProgress& stream) { return stream.session.load(std::memory_order_acquire) == session && has_work(stream); });
}

bool has_streams(const ProgressTable& table, std::uint64_t session) {
  return std::ranges::any_of(table.stream, [&](const StreamProgress& stream) { return stream.session.load(std::memory_order_acquire) == session; });
}

std::vector<RunningStream> running_streams(const ProgressTable& table, std::uint64_t except_session) {
  std::vector<RunningStream> running;
  for (std::uint32_t index = 0; index < kProgressStreams; ++index) {
    const StreamProgress& stream = table.stream[index];
    const std::uint64_t session = stream.session.load(std::memory_order_acquire);
    if (session == 0 || session == except_session) continue;
    const std::uint32_t completed = stream.completed.load(std::memory_order_acquire);
    if (completed != stream.issued.load(std::memory_order_acquire)) running.push_back({index, completed, session});
  }
  return running;
}

bool runs_on(const ProgressTable& table, const RunningStream& running) {
  const StreamProgress& stream = table.stream[running.index];
  const std::uint32_t completed = stream.completed.load(std::memory_order_acquire);
  return stream.session.load(std::memory_order_acquire) == running.session && completed == running.completed &&
         completed != stream.issued.load(std::memory_order_acquire);
}

}  // namespace mpsshim::broker::control
