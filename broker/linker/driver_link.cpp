// SPDX-License-Identifier: Apache-2.0
#include "broker/linker/driver_link.hpp"

#include <cstring>

namespace mpsshim::broker {

namespace {

void* as_value(std::uint64_t number) { return reinterpret_cast<void*>(number); }  // NOLINT(performance-no-int-to-ptr)

// What follows the length that was given does not matter, but a text may be read to its end.
std::vector<std::byte> with_end(const ImageBytes& bytes) {
  std::vector<std::byte> copy(bytes.size() + 1);
  if (!bytes.empty()) std::memcpy(copy.data(), bytes.data(), bytes.size());
  return copy;
}

}  // namespace

DriverLink::~DriverLink() {
  if (state_ != nullptr) driver_->cuLinkDestroy(state_);
}

std::string DriverLink::text_of(const Log& log) { return {log.data(), strnlen(log.data(), log.size())}; }

CUresult DriverLink::create(const std::vector<JitOption>& options) {
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

CUresult DriverLink::add(const LinkStep& step) {
  if (state_ == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  std::vector<CUjit_option> names;
  std::vector<void*> values;
  for (const JitOption& option : step.options) {
    names.push_back(option.option);
    values.push_back(as_value(option.value));
  }
  std::vector<std::byte> data = with_end(step.bytes);
  return driver_->cuLinkAddData_v2(AddressKey(), state_, step.type, data.data(), step.bytes.size(), step.name.c_str(),
                                   static_cast<unsigned>(names.size()), names.data(), values.data());
}

CUresult DriverLink::complete(ImageBytes& code) {
  if (state_ == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  void* image = nullptr;
  std::size_t size = 0;
  const CUresult result = driver_->cuLinkComplete(state_, &image, &size);
  if (result != CUDA_SUCCESS) return result;
  if (size > kMaxLinkBytes) return CUDA_ERROR_OUT_OF_MEMORY;
  const auto* bytes = static_cast<const std::byte*>(image);
  code = ImageBytes(std::vector<std::byte>(bytes, bytes + size));
  return CUDA_SUCCESS;
}

CUresult DriverLink::try_load(const Driver& driver, const ImageBytes& text, std::string& error_log) {
  Log log{};
  std::array options{CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  std::array<void*, 2> values{log.data(), as_value(log.size())};
  const std::vector<std::byte> data = with_end(text);
  CUmodule module = nullptr;
  CUresult result =
      driver->cuModuleLoadDataEx(AddressKey(), &module, data.data(), static_cast<unsigned>(options.size()), options.data(), values.data());
  if (result == CUDA_SUCCESS) result = driver->cuModuleUnload(module);
  error_log = text_of(log);
  return result;
}

}  // namespace mpsshim::broker
