// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/link_state.hpp"

#include <cstring>

namespace mpsshim::broker {

namespace {

// CUjit_option by number, since older toolkits lack names: 20 LTO, 21 FTZ, 22 and 23 precise division and root, 24 FMA, 30 position independent
// code, 31 blocks a multiprocessor, 32 threads a block, 33 override, 34 split compilation.
constexpr std::uint32_t kNewPlainOptions[] = {20, 21, 22, 23, 24, 30, 31, 32, 33, 34};

void* as_value(std::uint64_t number) { return reinterpret_cast<void*>(number); }  // NOLINT(performance-no-int-to-ptr)

std::string text_of(const std::array<char, kLinkLogBytes>& log) { return {log.data(), strnlen(log.data(), log.size())}; }

}  // namespace

bool is_plain_option(std::uint32_t option) {
  switch (option) {
    case CU_JIT_MAX_REGISTERS:
    case CU_JIT_THREADS_PER_BLOCK:
    case CU_JIT_OPTIMIZATION_LEVEL:
    case CU_JIT_TARGET_FROM_CUCONTEXT:
    case CU_JIT_TARGET:
    case CU_JIT_FALLBACK_STRATEGY:
    case CU_JIT_GENERATE_DEBUG_INFO:
    case CU_JIT_LOG_VERBOSE:
    case CU_JIT_GENERATE_LINE_INFO:
    case CU_JIT_CACHE_MODE:
    case CU_JIT_FAST_COMPILE: return true;
    default: break;
  }
  for (const std::uint32_t plain : kNewPlainOptions) {
    if (option == plain) return true;
  }
  return false;
}

LinkState::~LinkState() {
  if (state_ != nullptr) driver_->cuLinkDestroy(state_);
}

CUresult LinkState::create(const std::vector<JitOption>& options) {
  const std::lock_guard lock(mutex_);
  const auto add = [&](CUjit_option option, void* value) {
    options_.push_back(option);
    values_.push_back(value);
  };
  add(CU_JIT_ERROR_LOG_BUFFER, error_log_.data());
  add(CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, as_value(error_log_.size()));
  add(CU_JIT_INFO_LOG_BUFFER, info_log_.data());
  add(CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, as_value(info_log_.size()));
  for (const JitOption& option : options) add(option.option, as_value(option.value));
  return driver_->cuLinkCreate_v2(static_cast<unsigned>(options_.size()), options_.data(), values_.data(), &state_);
}

CUresult LinkState::add(CUjitInputType type, std::vector<std::byte> data, const std::string& name, const std::vector<JitOption>& options) {
  const std::lock_guard lock(mutex_);
  if (state_ == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  std::vector<CUjit_option> names;
  std::vector<void*> values;
  for (const JitOption& option : options) {
    names.push_back(option.option);
    values.push_back(as_value(option.value));
  }
  const std::size_t size = data.size();
  data.push_back(std::byte{0});  // whatever follows the length that was given does not matter, but a text may be read to its end
  return driver_->cuLinkAddData_v2(AddressKey(), state_, type, data.data(), size, name.c_str(), static_cast<unsigned>(names.size()), names.data(),
                                   values.data());
}

CUresult LinkState::complete(std::vector<std::byte>& linked) {
  const std::lock_guard lock(mutex_);
  if (state_ == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  void* image = nullptr;
  std::size_t size = 0;
  const CUresult result = driver_->cuLinkComplete(state_, &image, &size);
  if (result != CUDA_SUCCESS) return result;
  if (size > kMaxLinkBytes) return CUDA_ERROR_OUT_OF_MEMORY;
  const auto* bytes = static_cast<const std::byte*>(image);
  linked.assign(bytes, bytes + size);
  return CUDA_SUCCESS;
}

LinkState::Logs LinkState::logs() {
  const std::lock_guard lock(mutex_);
  return {text_of(error_log_), text_of(info_log_)};
}

}  // namespace mpsshim::broker
