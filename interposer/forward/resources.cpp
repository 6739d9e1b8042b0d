// SPDX-License-Identifier: Apache-2.0
// Device resources (CUDA Driver API manual, "Green Contexts"). A CUdevResource is a value that the application copies as it likes; beside what
// the driver tells in its union it holds, where the driver has its own, how the resource was made: that is what records carry, in every epoch.
#include <cstddef>
#include <cstring>
#include <memory>

#include "gen/api_declarations.hpp"
#include "interposer/forward/green_contexts.hpp"
#include "interposer/local/acting_session.hpp"
#include "interposer/local/devices.hpp"

namespace mpsshim::interposer::forward {

namespace {

static_assert(sizeof(CUdevResource) == 144 && sizeof(CUdevResource::_oversize) == sizeof(proto::ResourceTold::content));

// In CUdevResource::_internal_padding.
struct Inside {
  std::uint64_t mark = 0;
  proto::ResourceShare share;
};
static_assert(sizeof(Inside) <= sizeof(CUdevResource::_internal_padding));
constexpr std::uint64_t kMark = 0x1e50'0ce5'4a6d'5001;

}  // namespace

CUresult read_resource(const CUdevResource& resource, Resource& read) {
  if (resource.type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  Inside inside;
  std::memcpy(static_cast<void*>(&inside), resource._internal_padding, sizeof inside);
  if (inside.mark != kMark) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  read.share = inside.share;
  read.told.type = static_cast<std::uint32_t>(resource.type);
  std::memcpy(read.told.content, resource._oversize, sizeof read.told.content);
  return CUDA_SUCCESS;
}

CUdevResource written_resource(const Resource& resource) {
  CUdevResource written{};
  written.type = static_cast<CUdevResourceType>(resource.told.type);
  if (written.type == CU_DEV_RESOURCE_TYPE_SM) {
    const Inside inside{kMark, resource.share};
    std::memcpy(written._internal_padding, &inside, sizeof inside);
  }
  std::memcpy(written._oversize, resource.told.content, sizeof resource.told.content);
  return written;
}

std::uint32_t multiprocessors_of(const proto::ResourceTold& told) {
  std::uint32_t count = 0;  // CUdevSmResource::smCount is the first word
  std::memcpy(&count, told.content, sizeof count);
  return count;
}

// An executor knows its own device: where the process has no session there, one begins.
CUresult device_resource(CUdevice device, Resource& resource) {
  if (device_facts(device) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  const ActingSession acting(session_of(device));
  if (const CUresult error = session().ensure_attached(); error != CUDA_SUCCESS) return error;
  proto::ResourceQueryReply reply{};
  const CUresult error = session().channel().call({}, proto::ResourceQueryRecord{}, {}, reply);
  if (error != CUDA_SUCCESS) return error;
  resource = {};
  resource.told.type = reply.type;
  std::memcpy(resource.told.content, reply.content, sizeof reply.content);
  return CUDA_SUCCESS;
}

namespace {

// Descriptors end with the process: the manual has no call that ends one.
struct Descriptor {
  std::vector<proto::ResourceShare> shares;
};
using DescriptorTable = proto::HandleTable<proto::HandleKind::resource_descriptor, Descriptor>;

DescriptorTable& descriptors() {
  static auto* table = new DescriptorTable();  // never destroyed
  return *table;
}

CUresult check_type(const CUdevResource* resource, CUdevResourceType type) {
  if (resource == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return type == CU_DEV_RESOURCE_TYPE_SM ? CUDA_SUCCESS : CUDA_ERROR_INVALID_RESOURCE_TYPE;
}

CUresult answer_green(const GreenObject& green, CUdevResource* resource, CUdevResourceType type) {
  if (const CUresult error = check_type(resource, type); error != CUDA_SUCCESS) return error;
  Resource whole{{}, green.told};
  whole.share.origin = green.id;
  *resource = written_resource(whole);
  return CUDA_SUCCESS;
}

CUresult answer_device(CUdevice device, CUdevResource* resource, CUdevResourceType type) {
  if (const CUresult error = check_type(resource, type); error != CUDA_SUCCESS) return error;
  Resource whole;
  const CUresult error = device_resource(device, whole);
  if (error == CUDA_SUCCESS) *resource = written_resource(whole);
  return error;
}

// What the executor has said about a split, as resources of the application.
CUresult take_split(const Answer& answer, proto::ResourceShare share, CUdevResource* result, CUdevResource* remaining) {
  static std::atomic<std::uint64_t> last_instance{0};
  share.instance = last_instance.fetch_add(1, std::memory_order_relaxed) + 1;
  const std::span<const std::byte> told = std::span(answer.payload).subspan(proto::ResourceSplitReply::kBodyBytes);
  if (told.size() != (std::size_t{share.groups} + 1) * sizeof(proto::ResourceTold)) return CUDA_ERROR_MPS_RPC_FAILURE;
  for (std::uint32_t i = 0; i <= share.groups; ++i) {
    Resource part{share, {}};
    std::memcpy(static_cast<void*>(&part.told), told.data() + i * sizeof part.told, sizeof part.told);
    part.share.part = i < share.groups ? static_cast<std::int32_t>(i) : proto::kRemainingResource;
    if (i < share.groups) {
      result[i] = written_resource(part);
    } else if (remaining != nullptr) {
      *remaining = written_resource(part);
    }
  }
  return CUDA_SUCCESS;
}

}  // namespace

}  // namespace mpsshim::interposer::forward

namespace mpsshim::interposer::api {

using namespace forward;

CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource* resource, CUdevResourceType type) {
  if (resource == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (device_facts(device) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  return answer_device(device, resource, type);
}

CUresult cuCtxGetDevResource(CUcontext hCtx, CUdevResource* resource, CUdevResourceType type) {
  const auto context = find_context(hCtx);
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  if (const GreenObject* green = GreenContexts::instance().place_of(hCtx)) return answer_green(*green, resource, type);
  return answer_device(context->device, resource, type);
}

CUresult cuGreenCtxGetDevResource(CUgreenCtx hCtx, CUdevResource* resource, CUdevResourceType type) {
  const GreenObject* green = GreenContexts::instance().resolve(hCtx);
  return green != nullptr ? answer_green(*green, resource, type) : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuDevSmResourceSplitByCount(CUdevResource* result, unsigned int* nbGroups, const CUdevResource* input, CUdevResource* remaining,
                                     unsigned int useFlags, unsigned int minCount) {
  if (nbGroups == nullptr || input == nullptr || (result != nullptr && *nbGroups == 0)) return CUDA_ERROR_INVALID_VALUE;
  Resource whole;
  if (const CUresult error = read_resource(*input, whole); error != CUDA_SUCCESS) return error;
  if (const CUresult error = session().ensure_attached(); error != CUDA_SUCCESS) return error;
  const std::uint32_t wanted = result != nullptr ? std::min(*nbGroups, proto::kMaxResourceGroups) : 0;
  const proto::ResourceSplitRecord record{wanted, useFlags, minCount, 0};
  proto::ResourceSplitReply reply{};
  Answer answer;
  const CUresult error = session().channel().call({}, record, std::as_bytes(std::span(&whole.share, 1)), reply, &answer);
  if (error != CUDA_SUCCESS) return error;
  // Parts of parts have no name here. No driver makes them: "the output results cannot be split again" (manual).
  if (result != nullptr && whole.share.part != proto::kWholeResource) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
  if (result != nullptr && reply.groups > wanted) return CUDA_ERROR_MPS_RPC_FAILURE;
  *nbGroups = reply.groups;
  if (result == nullptr) return CUDA_SUCCESS;
  return take_split(answer, {whole.share.origin, 0, reply.groups, useFlags, minCount, 0}, result, remaining);
}

CUresult cuDevResourceGenerateDesc(CUdevResourceDesc* phDesc, CUdevResource* resources, unsigned int nbResources) {
  if (phDesc == nullptr || resources == nullptr || nbResources == 0) return CUDA_ERROR_INVALID_VALUE;
  if (nbResources > proto::kMaxResourceShares) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
  auto descriptor = std::make_unique<Descriptor>();
  for (const CUdevResource& resource : std::span(resources, nbResources)) {
    Resource read;
    if (const CUresult error = read_resource(resource, read); error != CUDA_SUCCESS) return error;
    // "They must originate from the same split API call" (manual).
    if (!descriptor->shares.empty() && read.share.instance != descriptor->shares.front().instance) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    descriptor->shares.push_back(read.share);
  }
  if (const CUresult error = session().ensure_attached(); error != CUDA_SUCCESS) return error;
  proto::ResourceDescribeReply reply{};
  const CUresult error = session().channel().call({}, proto::ResourceDescribeRecord{}, std::as_bytes(std::span(descriptor->shares)), reply);
  if (error != CUDA_SUCCESS) return error;
  const auto id = descriptors().add(std::move(descriptor));
  if (!id.has_kind()) return CUDA_ERROR_OUT_OF_MEMORY;
  *phDesc = to_handle<CUdevResourceDesc>(id);
  return CUDA_SUCCESS;
}

// It retains the primary context, which ends with it unless somebody else has it.
CUresult cuGreenCtxCreate(CUgreenCtx* phCtx, CUdevResourceDesc desc, CUdevice dev, unsigned int flags) {
  if (phCtx == nullptr || flags != CU_GREEN_CTX_DEFAULT_STREAM) return CUDA_ERROR_INVALID_VALUE;
  if (device_facts(dev) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  const auto descriptor = descriptors().find(id_of<proto::HandleKind::resource_descriptor>(desc));
  if (!descriptor) return CUDA_ERROR_INVALID_VALUE;
  CUcontext primary = nullptr;
  if (const CUresult error = retain_primary_context(dev, primary); error != CUDA_SUCCESS) return error;
  GreenObject* green = nullptr;
  CUresult error = session().begin_call();
  if (error == CUDA_SUCCESS) error = GreenContexts::instance().create(descriptor->shares, dev, green);
  if (error != CUDA_SUCCESS) {
    (void)release_primary_context(dev);
    return error;
  }
  *phCtx = to_handle<CUgreenCtx>(green->id);
  return CUDA_SUCCESS;
}

}  // namespace mpsshim::interposer::api
