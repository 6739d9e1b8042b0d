// SPDX-License-Identifier: Apache-2.0
// Who has caused a fault, as far as it can be shown. The driver tells nobody: after a fault every stream has the same error. What is known is
// the progress table, which no client can write, and now and then the address that the kernel log names. Free of sockets and processes.
//
//   *Suspects* are the sessions that had a kernel under way; if nobody had, those that had anything under way.
//   A session is shown guilty if the executor names it, if it is the only suspect, or if the address lies in its ranges and in no other
//   suspect's. Otherwise nobody is.
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
[[nodiscard]] const char* proof_text(Proof proof);  // a clause: "the only one with a kernel under way"

struct Guilt {
  std::uint64_t session = 0;
  Proof proof = Proof::none;
};

[[nodiscard]] std::vector<std::uint64_t> find_suspects(std::span<const SessionCondition> sessions);
[[nodiscard]] Guilt find_guilty(const DeathReport& report, std::span<const SessionCondition> sessions, std::optional<std::uint64_t> address);

// False for a fault that no program can cause: memory or a link that failed. Nobody goes into quarantine for it.
[[nodiscard]] bool is_a_programs_doing(CUresult error);

// Sessions with a kernel under way, and the names of those launched last, one a stream. Exact once the executor is dead. After a fault also
// those with a stream whose work ended late (seen_end.hpp).
using KernelsUnderWay = std::map<std::uint64_t, std::string>;
[[nodiscard]] KernelsUnderWay kernels_under_way(const ProgressFile& file, const std::optional<LateEnds>& late = std::nullopt);
// The evidence, a line for each stream that had a kernel under way: positions, and how long before the report its last end was.
[[nodiscard]] std::vector<std::string> streams_under_way(const ProgressFile& file, const LateEnds& late, ProgressTick report);
// As a person writes it: "axpy(float*, int)" for "_Z4axpyPfi". Cut to 200 characters.
[[nodiscard]] std::string readable_function(const std::string& name);

}  // namespace mpsshim::broker::control
