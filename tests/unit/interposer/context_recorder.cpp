// SPDX-License-Identifier: Apache-2.0
// The hooks of the forwarding half, as recorded, and the facts of made-up devices.
#include "tests/unit/interposer/context_recorder.hpp"

#include <cstdlib>
#include <memory>

#include "gen/api_declarations.hpp"
#include "interposer/entry.hpp"
#include "interposer/forward/hooks.hpp"
#include "interposer/local/acting_session.hpp"
#include "interposer/local/contexts.hpp"
#include "interposer/local/devices.hpp"
#include "interposer/settle.hpp"
#include "tests/support/catch.hpp"
#include "tests/unit/interposer/fake_facts.hpp"

namespace mpsshim::test {

proto::DriverFacts& facts() {
  static auto published = std::make_unique<proto::DriverFacts>();
  return *published;
}

void begin() {
  fill_fake_facts(facts(), 2);
  setenv("CUDA_VISIBLE_DEVICES", "0,1", 1);
  REQUIRE(interposer::initialise_devices() == CUDA_SUCCESS);
  while (interposer::pop_context(nullptr) == CUDA_SUCCESS) {
  }
  while (interposer::api::cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS) {
  }
  recorder = {};
}

CUcontext current() {
  CUcontext context = nullptr;
  REQUIRE(interposer::api::cuCtxGetCurrent(&context) == CUDA_SUCCESS);
  return context;
}

CUcontext create() {
  CUcontext context = nullptr;
  REQUIRE(interposer::api::cuCtxCreate_v2(&context, 0, 0) == CUDA_SUCCESS);
  return context;
}

}  // namespace mpsshim::test

using namespace mpsshim;
using namespace mpsshim::interposer;
using namespace mpsshim::test;

const proto::DriverFacts& mpsshim::interposer::driver_facts() { return facts(); }
CUresult mpsshim::interposer::unsupported(ApiId) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult mpsshim::interposer::forward::ensure_session() {
  recorder.session_index = ActingSession::index();
  ++recorder.sessions;
  return recorder.session_result;
}
CUresult mpsshim::interposer::forward::synchronize_context(CUcontext) {
  ++recorder.synchronised;
  return CUDA_SUCCESS;
}
CUresult mpsshim::interposer::forward::raise_context_limit(CUlimit, std::size_t value) {
  recorder.raised = value;
  return recorder.raise_result;
}
CUresult mpsshim::interposer::forward::create_context_with_part(CUdevice, unsigned, unsigned, CUcontext&) { return CUDA_ERROR_NOT_SUPPORTED; }
unsigned mpsshim::interposer::forward::multiprocessors_of_context(CUcontext) { return 0; }
CUresult mpsshim::interposer::forward::set_persisting_cache(CUcontext, std::size_t bytes) {
  recorder.persisting_bytes = bytes;
  return CUDA_SUCCESS;
}
CUresult mpsshim::interposer::forward::renew_process_objects() {
  ++recorder.renewed;
  return CUDA_SUCCESS;
}
void mpsshim::interposer::forward::release_context_objects(CUcontext context) {
  recorder.session_index = ActingSession::index();
  recorder.released.push_back(context);
}
