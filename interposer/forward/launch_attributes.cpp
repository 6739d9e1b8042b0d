// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/launch_attributes.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "gen/api_declarations.hpp"
#include "interposer/local/devices.hpp"

namespace mpsshim::interposer::forward {

namespace {

constexpr std::uint8_t kDefaultDomain = 0;
constexpr std::uint8_t kRemoteDomain = 1;  // of the default map
constexpr std::uint8_t kDomains = 4;       // CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT since compute capability 9.0

// 0: it has none. A session has one device.
int session_attribute(CUdevice_attribute attribute) {
  const proto::DeviceFacts* facts = device_facts(session_device());
  int value = 0;
  return facts != nullptr && device_attribute(*facts, attribute, value) == CUDA_SUCCESS ? std::max(value, 0) : 0;
}

bool has(std::span<const CUlaunchAttribute> attributes, CUlaunchAttributeID id) {
  return std::any_of(attributes.begin(), attributes.end(), [id](const CUlaunchAttribute& attribute) { return attribute.id == id; });
}

void add_function_attributes(const Function& function, std::vector<CUlaunchAttribute>& attributes) {
  const auto value_of = [&](CUfunction_attribute id) { return function.attribute[static_cast<std::size_t>(id)].load(std::memory_order_relaxed); };
  const int width = value_of(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH);
  if (width != 0 && !function.has_compiled_cluster && !has(attributes, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)) {
    CUlaunchAttribute cluster{};
    cluster.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    cluster.value.clusterDim.x = static_cast<unsigned>(width);
    cluster.value.clusterDim.y = static_cast<unsigned>(value_of(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT));
    cluster.value.clusterDim.z = static_cast<unsigned>(value_of(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH));
    attributes.push_back(cluster);
  }
  const int policy = value_of(CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE);
  if (policy != CU_CLUSTER_SCHEDULING_POLICY_DEFAULT && !has(attributes, CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE)) {
    CUlaunchAttribute preference{};
    preference.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE;
    preference.value.clusterSchedulingPolicyPreference = static_cast<CUclusterSchedulingPolicy>(policy);
    attributes.push_back(preference);
  }
}

bool is_idle(const CUlaunchAttribute& attribute) {
  switch (static_cast<int>(attribute.id)) {
    case CU_LAUNCH_ATTRIBUTE_IGNORE:
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION: return true;
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE: return attribute.value.cooperative == 0;
    default: return false;
  }
}

// Until one is set.
CUstreamAttrValue default_value(const Stream& stream, CUstreamAttrID id) {
  CUstreamAttrValue value{};
  switch (static_cast<int>(id)) {
    case CU_LAUNCH_ATTRIBUTE_PRIORITY: value.priority = stream.priority; break;
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP: value.memSyncDomainMap = {kDefaultDomain, kRemoteDomain}; break;
    default: break;
  }
  return value;
}

// Where the window lies is not looked at, as natively: it may outlive its memory.
bool is_window(const CUaccessPolicyWindow& window) {
  static const auto largest = static_cast<std::size_t>(session_attribute(CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE));
  return window.num_bytes <= largest && window.hitRatio >= 0 && window.hitRatio <= 1 && window.missProp != CU_ACCESS_PROPERTY_PERSISTING;
}

bool is_value(CUstreamAttrID id, const CUstreamAttrValue& value) {
  switch (static_cast<int>(id)) {
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW: return is_window(value.accessPolicyWindow);
    case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
      return value.syncPolicy >= CU_SYNC_POLICY_AUTO && value.syncPolicy <= CU_SYNC_POLICY_BLOCKING_SYNC;
    case CU_LAUNCH_ATTRIBUTE_PRIORITY: return true;
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP: return value.memSyncDomainMap.default_ < kDomains && value.memSyncDomainMap.remote < kDomains;
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
      return value.memSyncDomain == CU_LAUNCH_MEM_SYNC_DOMAIN_DEFAULT || value.memSyncDomain == CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE;
    default: return false;  // none of streams
  }
}

CUstreamAttrValue clamped(CUstreamAttrID id, CUstreamAttrValue value) {
  const proto::DeviceFacts* facts = device_facts(session_device());
  if (id == CU_LAUNCH_ATTRIBUTE_PRIORITY && facts != nullptr) {
    value.priority = std::clamp(value.priority, std::min(facts->greatest_stream_priority, 0), std::max(facts->least_stream_priority, 0));
  }
  return value;
}

}  // namespace

bool has_idle_attributes(std::span<const CUlaunchAttribute> attributes) { return std::any_of(attributes.begin(), attributes.end(), is_idle); }

std::vector<CUlaunchAttribute> without_idle_attributes(std::span<const CUlaunchAttribute> attributes) {
  std::vector<CUlaunchAttribute> left;
  std::remove_copy_if(attributes.begin(), attributes.end(), std::back_inserter(left), is_idle);
  return left;
}

CUresult check_windows(std::span<const CUlaunchAttribute> attributes) {
  const bool are_good = std::all_of(attributes.begin(), attributes.end(), [](const CUlaunchAttribute& attribute) {
    return attribute.id != CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW || is_window(attribute.value.accessPolicyWindow);
  });
  return are_good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

std::vector<CUlaunchAttribute> with_defaults(const Function& function, Stream& stream, std::span<const CUlaunchAttribute> given) {
  std::vector<CUlaunchAttribute> attributes(given.begin(), given.end());
  {
    const std::lock_guard lock(stream.attributes_mutex);
    for (const CUlaunchAttribute& attribute : stream.launch_attributes) {
      if (!has(given, attribute.id)) attributes.push_back(attribute);
    }
  }
  if (function.has_launch_attributes.load(std::memory_order_relaxed)) add_function_attributes(function, attributes);
  return attributes;
}

CUresult set_stream_attribute(Stream& stream, CUstreamAttrID id, const CUstreamAttrValue& value) {
  if (!is_value(id, value)) return CUDA_ERROR_INVALID_VALUE;
  if (id == CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY) {
    stream.sync_policy.store(value.syncPolicy, std::memory_order_relaxed);
    return CUDA_SUCCESS;
  }
  const std::lock_guard lock(stream.attributes_mutex);
  std::vector<CUlaunchAttribute>& set = stream.launch_attributes;
  std::erase_if(set, [id](const CUlaunchAttribute& attribute) { return attribute.id == id; });
  CUlaunchAttribute attribute{};
  attribute.id = id;
  attribute.value = clamped(id, value);
  set.push_back(attribute);
  stream.has_launch_attributes.store(true, std::memory_order_relaxed);
  return CUDA_SUCCESS;
}

CUresult get_stream_attribute(Stream& stream, CUstreamAttrID id, CUstreamAttrValue& value) {
  switch (static_cast<int>(id)) {
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN: break;
    case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY: {
      const std::uint32_t policy = stream.sync_policy.load(std::memory_order_relaxed);  // perhaps none of the enumeration's values
      static_assert(sizeof policy == sizeof value.syncPolicy);
      value = {};
      std::memcpy(&value.syncPolicy, &policy, sizeof policy);
      return CUDA_SUCCESS;
    }
    default: return CUDA_ERROR_INVALID_VALUE;
  }
  const std::lock_guard lock(stream.attributes_mutex);
  const auto found = std::find_if(stream.launch_attributes.begin(), stream.launch_attributes.end(),
                                  [id](const CUlaunchAttribute& attribute) { return attribute.id == id; });
  value = found != stream.launch_attributes.end() ? found->value : default_value(stream, id);
  return CUDA_SUCCESS;
}

void copy_stream_attributes(Stream& destination, Stream& source) {
  if (&destination == &source) return;
  const std::scoped_lock lock(destination.attributes_mutex, source.attributes_mutex);
  destination.launch_attributes = source.launch_attributes;
  destination.has_launch_attributes.store(!destination.launch_attributes.empty(), std::memory_order_relaxed);
  destination.sync_policy.store(source.sync_policy.load(std::memory_order_relaxed), std::memory_order_relaxed);
}

}  // namespace mpsshim::interposer::forward

namespace mpsshim::interposer::api {

using namespace forward;

CUresult cuStreamSetAttribute(CUstream hStream, CUstreamAttrID attr, const CUstreamAttrValue* value) {
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = begin_on(hStream); error != CUDA_SUCCESS) return error;
  Stream* stream = Streams::instance().resolve(hStream);
  return stream != nullptr ? set_stream_attribute(*stream, attr, *value) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuStreamGetAttribute(CUstream hStream, CUstreamAttrID attr, CUstreamAttrValue* value_out) {
  if (value_out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = begin_on(hStream); error != CUDA_SUCCESS) return error;
  Stream* stream = Streams::instance().resolve(hStream);
  return stream != nullptr ? get_stream_attribute(*stream, attr, *value_out) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuStreamCopyAttributes(CUstream dst, CUstream src) {
  if (const CUresult error = begin(); error != CUDA_SUCCESS) return error;
  Stream* destination = Streams::instance().resolve(dst);
  Stream* source = Streams::instance().resolve(src);
  if (destination == nullptr || source == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  copy_stream_attributes(*destination, *source);
  return CUDA_SUCCESS;
}

}  // namespace mpsshim::interposer::api
