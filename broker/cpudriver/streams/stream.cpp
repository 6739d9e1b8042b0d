// SPDX-License-Identifier: Apache-2.0
#include "broker/cpudriver/streams/stream.hpp"

#include <atomic>

#include "broker/cpudriver/context/green_context.hpp"

namespace mpsshim::cpudriver {
namespace {

std::uint64_t next_stream_id() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

StreamPtr default_stream_of(Stream::Kind kind, const GreenContextPtr& green) {
  if (kind == Stream::Kind::null_stream) return nullptr;
  return green != nullptr ? green->null_stream() : Stream::legacy_default();
}

}  // namespace

Stream::Stream(Kind kind, unsigned flags, int priority, const std::shared_ptr<GreenContext>& green)
    : kind_(kind),
      flags_(kind == Kind::ordinary && green != nullptr ? flags | CU_STREAM_NON_BLOCKING : flags),
      priority_(priority),
      id_(next_stream_id()),
      is_green_(green != nullptr),
      green_(green),
      default_stream_(default_stream_of(kind, green)) {}

const StreamPtr& Stream::legacy_default() {
  // Leaked on purpose: workers may use it while static destructors run.
  static const StreamPtr& stream = *new StreamPtr(std::make_shared<Stream>(Kind::null_stream, 0u, 0));
  return stream;
}

const StreamPtr& Stream::per_thread_default() {
  thread_local const StreamPtr stream = std::make_shared<Stream>(Kind::ordinary, 0u, 0);
  return stream;
}

}  // namespace mpsshim::cpudriver
