// SPDX-License-Identifier: Apache-2.0
// Contexts with a part of the multiprocessors (CUDA Driver API manual, cuCtxCreate_v3; NVIDIA's MPS manual, "Best Practice for SM Partitioning"). The
// device, or what this process may have of it, is cut into the smallest parts that the driver makes, as for clients with a percentage
// (docs/execution.md). A context gets neighbouring ones, those that the fewest contexts of the process have; the number is rounded up, as the manual
// says.
#include <algorithm>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "interposer/forward/green_contexts.hpp"
#include "interposer/forward/hooks.hpp"
#include "interposer/local/acting_session.hpp"
#include "interposer/local/devices.hpp"
#include "proto/provision.hpp"

namespace mpsshim::interposer::forward {

namespace {

// Into how many parts of `unit` multiprocessors: the driver says.
CUresult count_parts(std::uint32_t unit, std::uint32_t& parts) {
  const proto::ResourceShare whole;
  proto::ResourceSplitReply reply{};
  const CUresult error = session().channel().call({}, proto::ResourceSplitRecord{0, 0, unit, 0}, std::as_bytes(std::span(&whole, 1)), reply);
  parts = std::min(reply.groups, proto::kMaxResourceShares);
  return error;
}

std::uint32_t unit_of(const proto::DeviceFacts& facts) {
  return proto::partition_unit(facts.attribute[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR]);
}

}  // namespace

// A run of them, which go round.
std::vector<std::uint32_t> GreenContexts::choose(std::size_t parts, std::size_t wanted) {
  if (uses_.size() < parts) uses_.resize(parts);
  const auto load_from = [&](std::size_t first) {
    mutex_.assume_held();
    unsigned load = 0;
    for (std::size_t i = 0; i < wanted; ++i) load += uses_[(first + i) % parts];
    return load;
  };
  std::size_t best = 0;
  for (std::size_t first = 1; first < parts; ++first) {
    if (load_from(first) < load_from(best)) best = first;
  }
  std::vector<std::uint32_t> chosen(wanted);
  for (std::size_t i = 0; i < wanted; ++i) {
    chosen[i] = static_cast<std::uint32_t>((best + i) % parts);
    ++uses_[chosen[i]];
  }
  return chosen;
}

CUresult GreenContexts::create_part(CUdevice device, unsigned multiprocessors, GreenObject*& part) {
  part = nullptr;
  const std::uint32_t unit = unit_of(*device_facts(device));
  const std::uint32_t wanted = multiprocessors / unit + (multiprocessors % unit != 0 ? 1 : 0);
  std::uint32_t parts = 0;
  if (const CUresult error = count_parts(unit, parts); error != CUDA_SUCCESS) return error;
  if (wanted >= parts) return CUDA_SUCCESS;
  auto object = std::make_unique<GreenObject>();
  object->device = device;
  std::vector<proto::ResourceShare> shares;
  {
    const std::lock_guard lock(mutex_);
    object->cut = choose(parts, wanted);
    for (const std::uint32_t number : object->cut) shares.push_back({{}, 0, parts, 0, unit, static_cast<std::int32_t>(number)});
    const proto::GreenContextId id = table_.add(std::move(object));
    part = table_.find(id).get();
    if (part != nullptr) part->id = id;
  }
  const CUresult error = part != nullptr ? make(shares, *part) : CUDA_ERROR_OUT_OF_MEMORY;
  if (error == CUDA_SUCCESS) return CUDA_SUCCESS;
  const std::lock_guard lock(mutex_);
  for (const proto::ResourceShare& share : shares) --uses_[static_cast<std::size_t>(share.part)];
  if (part != nullptr) (void)table_.take(part->id);
  part = nullptr;
  return error;
}

CUresult create_context_with_part(CUdevice device, unsigned flags, unsigned multiprocessors, CUcontext& context) {
  if (!driver_has_shares()) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
  const ActingSession acting(session_of(device));
  if (const CUresult error = ensure_session(); error != CUDA_SUCCESS) return error;
  if (const CUresult error = session().begin_call(); error != CUDA_SUCCESS) return error;
  GreenObject* part = nullptr;
  if (const CUresult error = GreenContexts::instance().create_part(device, multiprocessors, part); error != CUDA_SUCCESS) return error;
  if (part == nullptr) return create_context(device, flags, context);
  const CUresult error = create_context(device, flags, context, part->id);
  if (error == CUDA_SUCCESS) {
    part->context = context;
  } else {
    (void)GreenContexts::instance().destroy(part->id);
  }
  return error;
}

unsigned multiprocessors_of_context(CUcontext context) {
  if (!GreenContexts::any()) return 0;
  const GreenObject* place = GreenContexts::instance().place_of(context);
  return place != nullptr ? multiprocessors_of(place->told) : 0;
}

}  // namespace mpsshim::interposer::forward
