// SPDX-License-Identifier: Apache-2.0
// The device and the context as a whole: questions about the one, calls that concern the other.
#include "broker/executor/records/dispatch.hpp"

namespace mpsshim::broker {

namespace {

CUresult answer_to(const ExecutorParts& parts, const proto::DeviceQueryRecord& record, std::uint64_t& value) {
  switch (record.query) {
    case proto::DeviceQuestion::texture_width: {
      std::size_t width = 0;
      const CUresult result =
          parts.driver->cuDeviceGetTexture1DLinearMaxWidth(&width, static_cast<CUarray_format>(record.first), record.second, parts.device);
      value = width;
      return result;
    }
    case proto::DeviceQuestion::host_atomics: {
      unsigned capabilities = 0;
      const auto operation = static_cast<CUatomicOperation>(record.first);
      const CUresult result = parts.driver->cuDeviceGetHostAtomicCapabilities(&capabilities, &operation, 1, parts.device);
      value = capabilities;
      return result;
    }
  }
  return CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace

void handle(SessionCall& incoming, const proto::DeviceQueryRecord& record) {
  Session& session = incoming.session;
  proto::DeviceQueryReply reply{};
  const CUresult result = answer_to(session.parts(), record, reply.value);
  incoming.answer_with(session.parts().faults.check(result, session.id(), "a question about the device"), reply);
}

void handle(OutOfLineCall& incoming, const proto::ContextCallRecord& record) {
  Session& session = incoming.session;
  if (record.call == proto::ContextAction::flush_remote_writes) {
    return session.start_job([reply = incoming.share_reply(), target = record.first, scope = record.second](const std::shared_ptr<Session>& self) {
      const CUresult result = self->parts().driver->cuFlushGPUDirectRDMAWrites(static_cast<CUflushGPUDirectRDMAWritesTarget>(target),
                                                                               static_cast<CUflushGPUDirectRDMAWritesScope>(scope));
      reply->answer(self->parts().faults.check(result, self->id(), "cuFlushGPUDirectRDMAWrites"));
      self->finish_job();
    });
  }
  // Not known to wait for running kernels, nor known not to.
  session.start_window_call("cuCtxResetPersistingL2Cache", [reply = incoming.share_reply(), &session](WindowResult window) {
    const CUresult result = window == WindowResult::open ? session.parts().driver->cuCtxResetPersistingL2Cache() : CUDA_ERROR_MPS_SERVER_NOT_READY;
    reply->answer(session.parts().faults.check(result, session.id(), "cuCtxResetPersistingL2Cache"));
  });
}

}  // namespace mpsshim::broker
