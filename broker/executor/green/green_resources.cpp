// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/green/green_resources.hpp"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <tuple>
#include <utility>

#include "broker/executor/base/core.hpp"
#include "broker/log.hpp"

namespace mpsshim::broker {

namespace {

static_assert(sizeof(CUdevResource) == 144 && sizeof(CUdevResource::_oversize) == sizeof(proto::ResourceTold::content));

constexpr std::size_t kMaxIdentityBytes = 16'384;
constexpr std::size_t kToldBytes = 24;  // numbers of CUdevSmResource; newer drivers have an address behind, which is nobody else's

CUresult whole_resource(const ExecutorCore& core, const GreenContextRef& origin, CUdevResource& resource) {
  if (origin != nullptr) {
    const std::lock_guard lock(origin->issue_lock());
    return core.driver->cuGreenCtxGetDevResource(origin->handle(), &resource, CU_DEV_RESOURCE_TYPE_SM);
  }
  return core.driver->cuDeviceGetDevResource(core.device, &resource, CU_DEV_RESOURCE_TYPE_SM);
}

// Shares with the same one are parts of one split.
auto split_key(const proto::ResourceShare& share) {
  return std::tuple(share.origin.value, share.instance, share.groups, share.flags, share.min_count);
}

CUresult part_of(const SplitResult& made, std::int32_t part, CUdevResource& resource) {
  if (part == proto::kRemainingResource) {
    resource = made.remaining;
  } else if (part >= 0 && static_cast<std::size_t>(part) < made.groups.size()) {
    resource = made.groups[static_cast<std::size_t>(part)];
  } else {
    return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  }
  return CUDA_SUCCESS;
}

// Instances are told apart by where they first stand in the list, so that who splits again and again in the same way names the same.
bool identify(std::span<const KnownShare> shares, std::string& identity) {
  std::vector<std::uint64_t> instances;
  for (const KnownShare& known : shares) {
    auto found = std::find(instances.begin(), instances.end(), known.share.instance);
    if (found == instances.end()) found = instances.insert(found, known.share.instance);
    const proto::ResourceShare& share = known.share;
    const std::int64_t numbers[] = {found - instances.begin(), share.groups, share.flags, share.min_count, share.part};
    identity += '(';
    if (known.origin != nullptr) identity += known.origin->identity();
    identity += '|';
    for (const std::int64_t number : numbers) identity += std::to_string(number) + ' ';
    identity += ')';
    if (identity.size() > kMaxIdentityBytes) return false;
  }
  return true;
}

}  // namespace

proto::ResourceTold told_of(const CUdevResource& resource) {
  proto::ResourceTold told;
  told.type = static_cast<std::uint32_t>(resource.type);
  std::memcpy(told.content, resource._oversize, kToldBytes);
  return told;
}

CUresult split_resource(const ExecutorCore& core, const CUdevResource& input, unsigned groups, unsigned flags, unsigned min_count,
                        SplitResult& made) {
  made.groups.assign(groups, CUdevResource{});
  unsigned count = groups;
  const CUresult result = core.driver->cuDevSmResourceSplitByCount(made.groups.data(), &count, &input, &made.remaining, flags, min_count);
  made.groups.resize(result == CUDA_SUCCESS ? std::min(count, groups) : 0);
  return result;
}

CUresult make_resources(const ExecutorCore& core, std::span<const KnownShare> shares, std::vector<CUdevResource>& resources) {
  std::map<decltype(split_key(proto::ResourceShare{})), SplitResult> splits;
  for (const KnownShare& known : shares) {
    const proto::ResourceShare& share = known.share;
    CUdevResource& resource = resources.emplace_back();
    if (share.part == proto::kWholeResource) {
      if (const CUresult error = whole_resource(core, known.origin, resource); error != CUDA_SUCCESS) return error;
      continue;
    }
    if (share.groups == 0 || share.groups > proto::kMaxResourceGroups) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    const auto [made, is_new] = splits.try_emplace(split_key(share));
    if (is_new) {
      CUdevResource input{};
      CUresult error = whole_resource(core, known.origin, input);
      if (error == CUDA_SUCCESS) error = split_resource(core, input, share.groups, share.flags, share.min_count, made->second);
      if (error != CUDA_SUCCESS) return error;
    }
    if (const CUresult error = part_of(made->second, share.part, resource); error != CUDA_SUCCESS) return error;
  }
  return CUDA_SUCCESS;
}

CUresult ResourceDescriptors::allow(std::uint64_t session) {
  if (descriptors_.size() >= kMax || made_[session] >= kMaxOfSession) {
    log_warning("Session {}: has had {} resource descriptors made, all sessions {}; no more of them are made, since the driver never ends one",
                session, made_[session], descriptors_.size());
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  return CUDA_SUCCESS;
}

CUresult ResourceDescriptors::find(const ExecutorCore& core, std::uint64_t session, std::span<const KnownShare> shares,
                                   CUdevResourceDesc& descriptor, std::string& identity) {
  if (!identify(shares, identity)) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
  const std::lock_guard lock(mutex_);
  if (const auto found = descriptors_.find(identity); found != descriptors_.end()) {
    descriptor = found->second;
    return CUDA_SUCCESS;
  }
  std::vector<CUdevResource> resources;
  if (const CUresult error = make_resources(core, shares, resources); error != CUDA_SUCCESS) return error;
  if (const CUresult error = allow(session); error != CUDA_SUCCESS) return error;
  const CUresult result = core.driver->cuDevResourceGenerateDesc(&descriptor, resources.data(), static_cast<unsigned>(resources.size()));
  if (result != CUDA_SUCCESS) return result;
  ++made_[session];
  descriptors_.emplace(identity, descriptor);
  return CUDA_SUCCESS;
}

void ResourceDescriptors::forget_session(std::uint64_t session) {
  const std::lock_guard lock(mutex_);
  made_.erase(session);
}

}  // namespace mpsshim::broker
