// SPDX-License-Identifier: Apache-2.0
#include "broker/cpudriver/context/green_context.hpp"

#include <atomic>

#include "broker/cpudriver/context/context.hpp"

namespace mpsshim::cpudriver {
namespace {

using GreenTable = HandleTable<GreenContext>;

// Contexts of all kinds count in one row.
unsigned long long next_context_id() {
  static std::atomic<unsigned long long> last{Context::kId};
  return ++last;
}

}  // namespace

GreenContext::GreenContext(const SmShare& share) : share_(share), id_(next_context_id()) {}

GreenContextPtr GreenContext::make(CUdevice device, const SmShare& share, CUresult& error) {
  auto green = std::make_shared<GreenContext>(share);
  green->null_stream_ = std::make_shared<Stream>(Stream::Kind::null_stream, 0u, 0, green);
  error = Context::primary().retain(device);
  if (error != CUDA_SUCCESS) return nullptr;
  GreenTable::get().add(green);
  return green;
}

GreenContextPtr GreenContext::find(CUgreenCtx handle) { return GreenTable::get().find(handle); }

GreenContextPtr GreenContext::find(CUcontext handle) {
  return handle == nullptr ? nullptr : GreenTable::get().find(reinterpret_cast<char*>(handle) - 1);
}

GreenContextPtr GreenContext::current() {
  const CUcontext context = Context::current();
  return context == nullptr || Context::primary().is_mine(context) ? nullptr : find(context);
}

bool GreenContext::destroy(CUgreenCtx handle) {
  if (GreenTable::get().remove(handle) == nullptr) return false;
  (void)Context::primary().release();
  return true;
}

}  // namespace mpsshim::cpudriver
