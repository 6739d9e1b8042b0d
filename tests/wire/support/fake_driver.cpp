// SPDX-License-Identifier: Apache-2.0
#include "tests/wire/support/fake_driver.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "tests/wire/support/fake_work.hpp"

namespace mpsshim::test {

namespace {

FakeDriver* the_driver = nullptr;

CUresult CUDAAPI set_current(CUcontext) { return CUDA_SUCCESS; }
CUresult CUDAAPI error_name(CUresult, const char** name) {
  *name = "a driver's error";
  return CUDA_SUCCESS;
}

}  // namespace

FakeDriver::FakeDriver() { the_driver = this; }
FakeDriver::~FakeDriver() {
  const std::vector<std::string> violations = oracle.take_violations();
  for (const std::string& violation : violations) std::fprintf(stderr, "The driver was given what it must not have: %s\n", violation.c_str());
  if (!violations.empty()) std::abort();
  the_driver = nullptr;
}

FakeDriver& FakeDriver::current() { return *the_driver; }

std::unique_ptr<broker::Driver> FakeDriver::driver() const {
  DriverTable table;
  table.cuCtxSetCurrent = set_current;
  table.cuGetErrorName = error_name;
  FakeMemory::fill(table);
  FakeStreams::fill(table);
  FakeLaunches::fill(table);
  FakeGraphs::fill(table);
  FakeArrays::fill(table);
  guard_addresses(table);
  return broker::Driver::from_table(table);
}

void FakeDriver::submit(CUstream stream, FakeCall call, std::function<void()> effect) {
  std::vector<FakeCall> calls;
  calls.push_back(std::move(call));
  submit_all(stream, std::move(calls), std::move(effect));
}

void FakeDriver::begin_green_use(CUcontext context) {
  {
    const std::lock_guard lock(mutex_);
    auto& users = green_users_[context];
    if (users.size() != users.count(std::this_thread::get_id())) ++green_conflicts;
    users.insert(std::this_thread::get_id());
  }
  std::this_thread::yield();  // so that another thread gets its chance to be wrong
}

void FakeDriver::end_green_use(CUcontext context) {
  const std::lock_guard lock(mutex_);
  auto& users = green_users_[context];
  users.erase(users.find(std::this_thread::get_id()));
}

void FakeDriver::submit_all(CUstream stream, std::vector<FakeCall> calls, std::function<void()> effect) {
  CUcontext context = nullptr;
  int priority = 0;
  {
    const std::lock_guard lock(mutex_);
    context = streams_[stream].context;
    priority = streams_[stream].priority;
  }
  if (context != nullptr) begin_green_use(context);
  {
    const std::lock_guard lock(mutex_);
    for (FakeCall& call : calls) {
      call.stream = stream;
      call.stream_context = context;
      call.priority = priority;
    }
    if (!effect) effect = [] {};
    if (holding_) {
      // One with an event is alone in its submission.
      std::uint64_t count = 0;
      if (!calls.empty() && calls.front().kind == FakeCall::record) count = ++records_[calls.front().event].made;
      if (!calls.empty() && calls.front().kind == FakeCall::wait) count = records_[calls.front().event].made;
      streams_[stream].pending.push_back({std::move(effect), calls, count});
    } else {
      effect();
    }
    for (FakeCall& call : calls) calls_.push_back(std::move(call));
  }
  if (context != nullptr) end_green_use(context);
}

std::vector<FakeCall> FakeDriver::calls() const {
  std::lock_guard lock(mutex_);
  return calls_;
}

std::vector<FakeCall> FakeDriver::calls(FakeCall::Kind kind) const {
  std::vector<FakeCall> matching;
  for (FakeCall& call : calls()) {
    if (call.kind == kind) matching.push_back(std::move(call));
  }
  return matching;
}

void FakeDriver::forget_calls() {
  std::lock_guard lock(mutex_);
  calls_.clear();
  graph_launches_ = 0;
}

void FakeDriver::hold_work() {
  std::lock_guard lock(mutex_);
  holding_ = true;
}

bool FakeDriver::may_end(const Submission& submission) const {
  if (!keeps_event_order || submission.calls.empty() || submission.calls.front().kind != FakeCall::wait) return true;
  const auto records = records_.find(submission.calls.front().event);
  return records == records_.end() || records->second.ended >= submission.count;
}

void FakeDriver::end_first(Stream& stream) {
  Submission& first = stream.pending.front();
  first.effect();
  if (!first.calls.empty() && first.calls.front().kind == FakeCall::record) {
    std::uint64_t& ended = records_[first.calls.front().event].ended;
    ended = std::max(ended, first.count);
  }
  stream.pending.pop_front();
}

void FakeDriver::complete(std::size_t submissions) {
  std::lock_guard lock(mutex_);
  std::map<CUstream, std::size_t> ended;
  for (bool any = true; any;) {
    any = false;
    for (auto& [handle, stream] : streams_) {
      for (std::size_t& count = ended[handle]; count < submissions && !stream.pending.empty() && may_end(stream.pending.front()); ++count) {
        end_first(stream);
        any = true;
      }
    }
  }
}

void FakeDriver::look_for_users(const char* where, std::uint64_t begin, std::uint64_t size_bytes) {
  const std::lock_guard lock(mutex_);
  const auto is_inside = [&](std::uint64_t address) { return address - begin < size_bytes; };
  for (const auto& [handle, stream] : streams_) {
    for (const Submission& submission : stream.pending) {
      for (const FakeCall& call : submission.calls) {
        const bool has_source = call.kind == FakeCall::copy;
        const bool has_destination = has_source || call.kind == FakeCall::fill || call.kind == FakeCall::write;
        if ((has_destination && is_inside(call.destination)) || (has_source && is_inside(call.source)))
          return oracle.report(std::string(where) + ": work that has not ended names what ends");
      }
    }
  }
}

void FakeDriver::resume_work() {
  {
    std::lock_guard lock(mutex_);
    holding_ = false;
  }
  complete();
}

}  // namespace mpsshim::test
