// SPDX-License-Identifier: Apache-2.0
#include "broker/linker/link_runner.hpp"

#include <algorithm>
#include <utility>

namespace mpsshim::broker {

namespace {

void note_logs(const Link& link, LinkOutcome& outcome) {
  outcome.error_log = link.error_log();
  outcome.info_log = link.info_log();
}

}  // namespace

LinkOutcome LinkRunner::run(const LinkRequest& request) {
  LinkOutcome outcome;
  switch (request.task) {
    case LinkRequest::Task::link: return link_all(request);
    case LinkRequest::Task::step: return take_step(request);
    case LinkRequest::Task::load: outcome.status = library_.try_load(request.steps.front().bytes, outcome.error_log); return outcome;
  }
  outcome.status = CUDA_ERROR_INVALID_VALUE;
  return outcome;
}

LinkOutcome LinkRunner::link_all(const LinkRequest& request) const {
  LinkOutcome outcome;
  const std::unique_ptr<Link> link = library_.begin();
  outcome.status = link->create(request.options);
  for (const LinkStep& step : request.steps) {
    if (outcome.status == CUDA_SUCCESS) outcome.status = link->add(step);
  }
  if (outcome.status == CUDA_SUCCESS) outcome.status = link->complete(outcome.code);
  note_logs(*link, outcome);
  return outcome;
}

LinkOutcome LinkRunner::take_step(const LinkRequest& request) {
  LinkOutcome outcome;
  auto kept = std::find_if(kept_.begin(), kept_.end(), [&](const Kept& each) { return each.number == request.linker; });
  if (kept != kept_.end() && kept->known != request.known) {
    kept_.erase(kept);
    kept = kept_.end();
  }
  if (kept != kept_.end()) {
    kept_.splice(kept_.begin(), kept_, kept);
  } else if (request.known != 0) {
    outcome.end = LinkOutcome::End::unknown;
    outcome.status = CUDA_ERROR_INVALID_HANDLE;
    return outcome;
  } else {
    kept_.push_front({request.linker, 0, library_.begin()});
    while (kept_.size() > kKeptLinkers) kept_.pop_back();
  }
  Kept& linker = kept_.front();
  if (linker.known == 0) {
    outcome.status = linker.link->create(request.options);
    linker.known = 1;
  }
  // What the earlier ones have come to has been said before: the driver has them again as it had them then.
  for (const LinkStep& step : request.steps) {
    outcome.status = linker.link->add(step);
    ++linker.known;
  }
  if (request.completes) outcome.status = linker.link->complete(outcome.code);
  note_logs(*linker.link, outcome);
  return outcome;
}

}  // namespace mpsshim::broker
