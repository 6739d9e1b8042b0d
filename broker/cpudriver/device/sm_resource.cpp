// SPDX-License-Identifier: Apache-2.0
#include "broker/cpudriver/device/sm_resource.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>

#include "broker/cpudriver/config.hpp"
#include "broker/cpudriver/device/attributes.hpp"

namespace mpsshim::cpudriver {
namespace {

static_assert(kMultiprocessors < 64, "a share is a mask of 64 bits");

// In CUdevResource::_internal_padding.
struct Content {
  std::uint64_t mask;
  std::uint64_t instance;
  std::uint64_t check_sum;
};

// In the union, as CUdevSmResource of CUDA 13; before, it was the first word alone.
struct Told {
  std::uint32_t count;
  std::uint32_t min_partition;
  std::uint32_t alignment;
};

static_assert(sizeof(Content) <= sizeof(CUdevResource::_internal_padding) && sizeof(Told) <= sizeof(CUdevResource::_oversize));

struct Granularity {
  unsigned min_count;
  unsigned alignment;
};

// The guideline of the manual for each architecture. Without co-scheduling: pairs, which is what hardware has.
Granularity granularity(bool is_coscheduled) {
  const int major = Config::get().capability_major;
  if (!is_coscheduled || major < 8) return {2, 2};
  return major == 8 ? Granularity{4, 2} : Granularity{8, 8};
}

std::uint64_t check_sum_of(std::uint64_t mask, std::uint64_t instance) {
  constexpr std::uint64_t kSeed = 0x6d70'7373'6869'6d01;
  return (mask ^ kSeed) * 0x9e37'79b9'7f4a'7c15 + std::rotl(instance * 0xc2b2'ae3d'27d4'eb4f, 29);
}

std::uint64_t lowest(std::uint64_t mask, unsigned count) {
  std::uint64_t taken = 0;
  for (; count > 0 && mask != 0; --count) {
    taken |= mask & (~mask + 1);
    mask &= mask - 1;
  }
  return taken;
}

}  // namespace

unsigned SmShare::count() const { return static_cast<unsigned>(std::popcount(mask)); }

SmShare whole_device() { return {(std::uint64_t{1} << kMultiprocessors) - 1, 0}; }

CUdevResource as_resource(const SmShare& share) {
  CUdevResource resource{};
  if (share.mask == 0) return resource;  // CU_DEV_RESOURCE_TYPE_INVALID
  resource.type = CU_DEV_RESOURCE_TYPE_SM;
  const Content content{share.mask, share.instance, check_sum_of(share.mask, share.instance)};
  std::memcpy(resource._internal_padding, &content, sizeof content);
  const Granularity whole = granularity(true);
  const Told told{share.count(), whole.min_count, whole.alignment};
  std::memcpy(resource._oversize, &told, sizeof told);
  return resource;
}

std::optional<SmShare> share_of(const CUdevResource& resource) {
  if (resource.type != CU_DEV_RESOURCE_TYPE_SM) return std::nullopt;
  Content content;
  std::memcpy(&content, resource._internal_padding, sizeof content);
  if (content.mask == 0 || content.check_sum != check_sum_of(content.mask, content.instance)) return std::nullopt;
  return SmShare{content.mask, content.instance};
}

CUresult plan_split(const SmShare& input, unsigned flags, unsigned min_count, SmSplit& plan) {
  constexpr unsigned kIgnoreCoscheduling = 1;  // others are not looked at, as by NVIDIA's driver 580
  if (min_count > input.count()) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
  if (input.instance != 0) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;  // only what a device or a context has is split
  const Granularity steps = granularity((flags & kIgnoreCoscheduling) == 0);
  plan.group_size = (std::max(min_count, steps.min_count) + steps.alignment - 1) / steps.alignment * steps.alignment;
  plan.groups = input.count() / plan.group_size;
  if (Config::get().uneven && plan.groups > 1) --plan.groups;
  return plan.groups != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
}

SmShare split(const SmShare& input, const SmSplit& plan, std::span<CUdevResource> groups) {
  static std::atomic<std::uint64_t> last_instance{0};
  SmShare left{input.mask, ++last_instance};
  for (CUdevResource& group : groups.first(std::min<std::size_t>(groups.size(), plan.groups))) {
    const SmShare taken{lowest(left.mask, plan.group_size), left.instance};
    left.mask &= ~taken.mask;
    group = as_resource(taken);
  }
  return left;
}

CUresult combine(std::span<const SmShare> shares, SmShare& all) {
  all = {};
  for (const SmShare& share : shares) {
    const bool is_alone = shares.size() == 1;
    const bool fits = is_alone || (share.instance != 0 && share.instance == shares.front().instance && (all.mask & share.mask) == 0);
    if (!fits) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    all.mask |= share.mask;
  }
  return CUDA_SUCCESS;
}

}  // namespace mpsshim::cpudriver
