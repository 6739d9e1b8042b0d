// SPDX-License-Identifier: Apache-2.0
// Who has caused a fault, as far as it can be shown. The driver tells nobody: after a fault every stream has the same error. What is known is
// the progress table, which no client can write, and now and then the address that the kernel log names. Free of sockets and processes.
//
//   *Suspects* are the sessions that had work under way which can end in such an error: kernels, copies, fills, writes, graphs; of errors that only
//   instructions raise, kernels. Sessions that have ended, or left their stream, at the last moment are among them.
//   A session is *shown guilty* if the executor names it, or if no other suspect can have done it: it is the only one, or the others had no kernel
//   under way, and the address is none that a copy of theirs can have (their memory is checked, a kernel goes anywhere).
//   In whose memory the address lies is no proof: kernels share one address space. Otherwise nobody is guilty, nor of memory or a link that failed.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <cuda.h>

#include "broker/progress_table.hpp"
#include "broker/seen_end.hpp"
#include "proto/handshake.hpp"

namespace mpsshim::broker::control {

struct SessionCondition;
struct DeathReport;

enum class Proof { none, named, only_suspect, address };
[[nodiscard]] const char* proof_text(Proof proof);  // a clause: "nobody else had a kernel under way"

struct Guilt {
  std::uint64_t session = 0;
  Proof proof = Proof::none;
};

// What a session had under way that may fault.
struct SessionWork {
  std::uint32_t kinds = 0;   // WorkKind, joined by |
  std::string kernels = {};  // names of those launched last, one a stream; empty: none
};
using WorkUnderWay = std::map<std::uint64_t, SessionWork>;
[[nodiscard]] std::string work_text(const WorkUnderWay& work, std::uint64_t session);  // "kernel axpy(float*, int)"

// `sessions`: of the executor, as far as there still are such. Where nobody can be a suspect, everybody who was busy is.
[[nodiscard]] std::vector<std::uint64_t> find_suspects(const DeathReport& report, std::span<const SessionCondition> sessions);
// Whose memory it is, guard gaps included; 0: nobody's. A hint for the log.
[[nodiscard]] std::uint64_t owner_of(std::uint64_t address, std::span<const SessionCondition> sessions);
[[nodiscard]] Guilt find_guilty(const DeathReport& report, std::span<const SessionCondition> sessions, std::optional<std::uint64_t> address);

// False for a fault that no program can cause: memory or a link that failed. Nobody goes into quarantine for it.
[[nodiscard]] bool is_a_programs_doing(CUresult error);

// Exact once the executor is dead. After a fault also what ended late (seen_end.hpp), be it in a stream that its session has left since.
[[nodiscard]] WorkUnderWay work_under_way(const ProgressFile& file, const std::optional<LateEnds>& late = std::nullopt);
// The evidence, a line for each stream that had such work: positions, and how long before the report its last end was.
[[nodiscard]] std::vector<std::string> streams_under_way(const ProgressFile& file, const LateEnds& late, ProgressTick report);
// As a person writes it: "axpy(float*, int)" for "_Z4axpyPfi". Cut to 200 characters.
[[nodiscard]] std::string readable_function(const std::string& name);

}  // namespace mpsshim::broker::control
