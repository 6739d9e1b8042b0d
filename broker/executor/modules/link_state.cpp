// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/modules/link_state.hpp"

#include <utility>

#include <sys/random.h>

namespace mpsshim::broker {

namespace {

std::uint64_t random_number() {
  std::uint64_t number = 0;
  while (getrandom(&number, sizeof number, 0) != static_cast<ssize_t>(sizeof number)) {
  }
  return number;
}

}  // namespace

LinkState::LinkState(LinkerClient& linker, std::uint64_t session) : linker_(linker), session_(session), number_(random_number()) {}

CUresult LinkState::create(const std::vector<JitOption>& options) {
  const std::lock_guard lock(mutex_);
  options_ = options;
  const LinkOutcome outcome = ask(false, nullptr);
  is_created_ = outcome.status == CUDA_SUCCESS;
  return outcome.status;
}

// What the driver has refused stays among the inputs, since its linker has seen it; what never came to it does not.
CUresult LinkState::add(LinkStep step) {
  const std::lock_guard lock(mutex_);
  if (!is_created_) return CUDA_ERROR_INVALID_HANDLE;
  if (steps_.size() + 1 >= kMaxLinkSteps) return CUDA_ERROR_OUT_OF_MEMORY;
  LinkOutcome outcome = ask(false, &step);
  if (outcome.end != LinkOutcome::End::done) return outcome.status;
  kept_bytes_ += step.bytes.size();
  steps_.push_back(std::move(step));
  return outcome.status;
}

CUresult LinkState::complete(std::vector<std::byte>& linked) {
  const std::lock_guard lock(mutex_);
  if (!is_created_) return CUDA_ERROR_INVALID_HANDLE;
  const LinkOutcome outcome = ask(true, nullptr);
  if (outcome.status == CUDA_SUCCESS) linked.assign(outcome.code.bytes().begin(), outcome.code.bytes().end());
  return outcome.status;
}

LinkOutcome LinkState::ask(bool completes, const LinkStep* news) {
  LinkRequest request;
  request.task = LinkRequest::Task::step;
  request.linker = number_;
  request.completes = completes;
  if (is_created_) request.known = steps_.size() + 1;
  if (!is_created_) request.options = options_;
  if (news != nullptr) request.steps.push_back(*news);
  LinkOutcome outcome = linker_.run(session_, 0, 0, request);
  if (is_created_ && outcome.end == LinkOutcome::End::unknown) {
    request.known = 0;
    request.options = options_;
    request.steps = steps_;
    if (news != nullptr) request.steps.push_back(*news);
    outcome = linker_.run(session_, 0, 0, request);
  }
  logs_ = {outcome.error_log, outcome.info_log};
  return outcome;
}

LinkState::Logs LinkState::logs() {
  const std::lock_guard lock(mutex_);
  return logs_;
}

}  // namespace mpsshim::broker
