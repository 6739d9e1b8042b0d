// SPDX-License-Identifier: Apache-2.0
//
// A green context: a name for a share of the multiprocessors, with a NULL stream of its own. It lives on the primary context, which it retains;
// memory, modules and events are the primary's. As a CUcontext it has another handle, valid once asked for. Any thread may call.
#pragma once

#include <cuda.h>

#include <memory>

#include "broker/cpudriver/device/sm_resource.hpp"
#include "broker/cpudriver/handle_table.hpp"
#include "broker/cpudriver/streams/stream.hpp"

namespace mpsshim::cpudriver {

class GreenContext;
using GreenContextPtr = std::shared_ptr<GreenContext>;

class GreenContext {
 public:
  // It, live and in the table; null with the error of the primary context.
  [[nodiscard]] static GreenContextPtr make(CUdevice device, const SmShare& share, CUresult& error);
  // Null if there is none.
  [[nodiscard]] static GreenContextPtr find(CUgreenCtx handle);
  [[nodiscard]] static GreenContextPtr find(CUcontext handle);
  // The calling thread's current context, if it is a green one.
  [[nodiscard]] static GreenContextPtr current();
  // False: there is none. Its streams are orphans from then on.
  [[nodiscard]] static bool destroy(CUgreenCtx handle);

  explicit GreenContext(const SmShare& share);

  CUgreenCtx handle() { return reinterpret_cast<CUgreenCtx>(this); }
  CUcontext context() { return reinterpret_cast<CUcontext>(reinterpret_cast<char*>(this) + 1); }  // no object's address
  const SmShare& share() const { return share_; }
  unsigned long long id() const { return id_; }
  const StreamPtr& null_stream() const { return null_stream_; }

 private:
  const SmShare share_;
  const unsigned long long id_;
  StreamPtr null_stream_;
};

}  // namespace mpsshim::cpudriver
