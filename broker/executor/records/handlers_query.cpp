// SPDX-License-Identifier: Apache-2.0
// Questions that only the driver can answer, at once.
#include <algorithm>
#include <cstring>
#include <vector>

#include "broker/executor/operations/launch_attributes.hpp"
#include "broker/executor/records/dispatch.hpp"
#include "broker/executor/window/quiet_window.hpp"

namespace mpsshim::broker {

namespace {

// The driver's answer to a question about a function that others may be launching.
template <typename F>
CUresult with_carve_out_of(Session& session, const SessionFunction& function, F&& ask) {
  const LoadedFunction& loaded = *function.loaded;
  const Driver& driver = session.parts().driver;
  return session.parts().window.exclusively([&] {
    return loaded.cluster.without(driver, loaded.handle,
                                  [&] { return loaded.settings.with_carve_out(driver, loaded.handle, function.carve_out, ask); });
  });
}

CUresult memory_info(Session& session, proto::MemoryInfoReply& info) {
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  const CUresult result = session.parts().driver->cuMemGetInfo_v2(&free_bytes, &total_bytes);
  info = {free_bytes, total_bytes};
  return session.parts().faults.check(result, session.id(), "cuMemGetInfo");
}

}  // namespace

void handle(SessionCall& incoming, const proto::FunctionSetAttributeRecord& record) {
  Session& session = incoming.session;
  const proto::Known<SessionFunction> function = incoming.find(session.functions(), record.function);
  if (!function) return;
  const auto attribute = static_cast<CUfunction_attribute>(record.attribute);
  const LoadedFunction& loaded = *function->loaded;
  const CUresult result =
      session.parts().window.exclusively([&] { return loaded.settings.set(session.parts().driver, loaded.handle, attribute, record.value); });
  if (result == CUDA_SUCCESS && attribute == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT) function->carve_out = record.value;
  incoming.answer_with(session.parts().faults.check(result, session.id(), "cuFuncSetAttribute"), proto::FunctionSetAttributeReply{});
}

void handle(OutOfLineCall& incoming, const proto::MemoryInfoRecord&) {
  Session& session = incoming.session;
  const SharedReply reply = incoming.share_reply();
  const auto ask = [reply](const std::shared_ptr<Session>& self) {
    const DeviceLimit& limit = self->memory().limit();
    proto::MemoryInfoReply info{};
    std::uint64_t left_bytes = 0;
    CUresult result = memory_info(*self, info);
    if (result == CUDA_SUCCESS && limit.is_set()) {
      result = limit.left(left_bytes);
      info.total_bytes = std::min(info.total_bytes, limit.bytes());
      info.free_bytes = std::min(info.free_bytes, left_bytes);
    }
    reply->answer_with(result, info);
    self->finish_job();
  };
  // What has been freed is free. Its release is waited for where nothing else would be: no work, and no quiet window.
  if (session.memory().is_releasing() && session.streams().is_idle() && !session.arrays().is_leaving()) return session.start_after_releases(ask);
  if (session.memory().limit().is_set()) return session.start_job(ask);
  proto::MemoryInfoReply info{};
  reply->answer_with(memory_info(session, info), info);
}
void handle(SessionCall& incoming, const proto::OccupancyRecord& record) {
  Session& session = incoming.session;
  const proto::Known<SessionFunction> function = incoming.find(session.functions(), record.function);
  if (!function) return;
  const Driver& driver = session.parts().driver;
  const CUfunction handle = function->loaded->handle;
  proto::OccupancyReply reply{};
  const CUresult result = with_carve_out_of(session, *function, [&] {
    if (record.query == proto::OccupancyQuestion::active_blocks) {
      int blocks = 0;
      const CUresult answer =
          driver->cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&blocks, handle, record.block_size, record.shared_bytes, record.flags);
      reply.value = static_cast<std::uint64_t>(blocks);
      return answer;
    }
    std::size_t bytes = 0;
    const CUresult answer = driver->cuOccupancyAvailableDynamicSMemPerBlock(&bytes, handle, record.blocks, record.block_size);
    reply.value = bytes;
    return answer;
  });
  incoming.answer_with(session.parts().faults.check(result, session.id(), "an occupancy query"), reply);
}

void handle(SessionCall& incoming, const proto::ClusterOccupancyRecord& record) {
  Session& session = incoming.session;
  const proto::Known<SessionFunction> function = incoming.find(session.functions(), record.function);
  if (!function) return;
  if (record.attribute_count > kMaxLaunchAttributes || record.attribute_count * sizeof(CUlaunchAttribute) > incoming.trailing.size()) {
    return incoming.malformed("its attributes exceed it");
  }
  const CUresult refused = check_launch_attributes(incoming.trailing.data(), record.attribute_count);
  if (refused != CUDA_SUCCESS) return incoming.reject(refused);
  std::vector<CUlaunchAttribute> attributes(record.attribute_count);
  if (!attributes.empty()) std::memcpy(attributes.data(), incoming.trailing.data(), attributes.size() * sizeof(CUlaunchAttribute));
  CUlaunchConfig config{};
  config.gridDimX = record.grid_x;
  config.gridDimY = record.grid_y;
  config.gridDimZ = record.grid_z;
  config.blockDimX = record.block_x;
  config.blockDimY = record.block_y;
  config.blockDimZ = record.block_z;
  config.sharedMemBytes = record.shared_bytes;
  config.attrs = attributes.data();
  config.numAttrs = record.attribute_count;
  const Driver& driver = session.parts().driver;
  const CUfunction handle = function->loaded->handle;
  int value = 0;
  const CUresult result = with_carve_out_of(session, *function, [&] {
    return record.query == proto::ClusterQuestion::active_clusters ? driver->cuOccupancyMaxActiveClusters(&value, handle, &config)
                                                                   : driver->cuOccupancyMaxPotentialClusterSize(&value, handle, &config);
  });
  incoming.answer_with(session.parts().faults.check(result, session.id(), "an occupancy query"),
                       proto::ClusterOccupancyReply{static_cast<std::uint64_t>(value)});
}

}  // namespace mpsshim::broker
