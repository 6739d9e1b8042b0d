// SPDX-License-Identifier: Apache-2.0
#include "broker/control/sessions/client_session.hpp"

#include <utility>

#include <fmt/format.h>

#include "proto/provision.hpp"
#include "proto/sm_partition.hpp"

namespace mpsshim::broker::control {

const char* phase_name(SessionPhase phase) {
  switch (phase) {
    case SessionPhase::waiting: return "waiting";
    case SessionPhase::opening: return "opening";
    case SessionPhase::active: return "active";
    case SessionPhase::reopening: return "opening";
    case SessionPhase::moved: return "moved";
    case SessionPhase::lost: return "lost";
    case SessionPhase::terminating: return "terminating";
    case SessionPhase::closing: return "closing";
  }
  return "?";
}

void ClientSession::respond(CUresult status) {
  deadline.reset();
  changing_lease = false;
  if (status == CUDA_SUCCESS && phase == SessionPhase::active) delivered = true;
  const Answer answered = std::exchange(answer, nullptr);
  if (answered) answered(status, *this);
}

void ClientSession::forget_executor() {
  announced.clear();
  granted.clear();
  imported.clear();
  wants_heap = false;
}

bool ClientSession::in_executor() const {
  switch (phase) {
    case SessionPhase::opening:
    case SessionPhase::active:
    case SessionPhase::reopening:
    case SessionPhase::terminating:
    case SessionPhase::closing: return true;
    case SessionPhase::waiting:
    case SessionPhase::moved:
    case SessionPhase::lost: return false;
  }
  return false;
}

std::string ClientSession::provision_text() const {
  const std::uint64_t limit = memory_limit_bytes.value_or(0);
  const std::string share =
      sm_partition != 0 ? fmt::format("static partition {}", proto::partition_text(sm_partition))
                        : fmt::format("{} % of the multiprocessors", proto::percentage_text(thread_percentage.value_or(proto::kWholePercentage)));
  return fmt::format("{}, {}, priority {}", share, limit == 0 ? "device memory without a limit" : fmt::format("{} MiB of device memory", limit >> 20),
                     client_priority.value_or(0));
}

std::string ClientSession::name() const { return fmt::format("Session {} (pid {}, {})", id, client.pid, client.command); }

std::string ClientSession::server_name() const { return fmt::format("{{{}, {}}}", client.pid, id); }

}  // namespace mpsshim::broker::control
