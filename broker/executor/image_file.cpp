// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/image_file.hpp"

#include <array>
#include <utility>

#include "broker/compiler/prepared_file.hpp"
#include "broker/image/image.hpp"

namespace mpsshim::broker {

ImageCompiler::ImageCompiler(const Driver& driver, CUdevice device) : driver_(driver) {
  int major = 0;
  int minor = 0;
  driver_->cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
  driver_->cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
  compute_ = static_cast<unsigned>(major * 10 + minor);
}

ImageTarget ImageCompiler::target(bool has_objects) const { return {compute_, driver_.is_cpu(), has_objects}; }

CUresult ImageCompiler::link(PreparedImage& prepared, bool& is_machine_code, std::string& log) const {
  is_machine_code = false;
  const std::vector<LinkInput> inputs = std::exchange(prepared.inputs, {});
  if (inputs.empty()) return CUDA_SUCCESS;
  std::vector<std::byte> linked;
  const CUresult result = link(inputs, linked, log);
  // No linker in this driver: it compiles while it loads.
  if (result == CUDA_ERROR_NOT_SUPPORTED && !prepared.content.empty()) return CUDA_SUCCESS;
  if (result != CUDA_SUCCESS) return result;
  is_machine_code = image::form_of(linked) == image::Form::elf;
  if (is_machine_code) {
    std::vector<std::byte> image = std::move(prepared.prefix);
    image.insert(image.end(), linked.begin(), linked.end());
    prepared.content = ImageBytes(std::move(image));
  } else if (prepared.content.empty() || prepared.prefix.empty()) {
    prepared.content = ImageBytes(std::move(linked));  // the CPU driver's linker gives texts back
  }
  return CUDA_SUCCESS;
}

CUresult ImageCompiler::prepare(const proto::FileDescriptor& file, PreparedImage& prepared, ImageBytes& compiled, std::string& log) const {
  const ImageBytes image = map_sealed(file);
  return image.empty() ? CUDA_ERROR_OUT_OF_MEMORY : prepare(image, false, prepared, compiled, log);
}

CUresult ImageCompiler::prepare(const ImageBytes& image, bool has_objects, PreparedImage& prepared, ImageBytes& compiled, std::string& log) const {
  CUresult result = prepare_image(image, target(has_objects), prepared, log);
  bool is_machine_code = false;
  if (result == CUDA_SUCCESS) result = link(prepared, is_machine_code, log);
  if (result != CUDA_SUCCESS || !is_machine_code) return result;
  compiled = prepared.content;
  return prepare_image(compiled, target(false), prepared, log);
}

CUresult ImageCompiler::link(std::span<const LinkInput> inputs, std::vector<std::byte>& result_bytes, std::string& log) const {
  std::array<char, 8192> errors{};
  std::array options{CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  std::array<void*, 2> values{errors.data(), reinterpret_cast<void*>(errors.size())};
  CUlinkState link = nullptr;
  CUresult result = driver_->cuLinkCreate_v2(static_cast<unsigned>(options.size()), options.data(), values.data(), &link);
  if (result != CUDA_SUCCESS) return result;
  for (const LinkInput& input : inputs) {
    if (result != CUDA_SUCCESS) break;
    auto* const bytes = const_cast<std::byte*>(input.bytes.data());  // NOLINT(cppcoreguidelines-pro-type-const-cast): it only reads
    result = driver_->cuLinkAddData_v2(AddressKey(), link, input.type, bytes, input.bytes.size(), "image", 0, nullptr, nullptr);
  }
  void* linked = nullptr;
  std::size_t size = 0;
  if (result == CUDA_SUCCESS) result = driver_->cuLinkComplete(link, &linked, &size);
  if (result == CUDA_SUCCESS) {
    const auto* bytes = static_cast<const std::byte*>(linked);
    result_bytes.assign(bytes, bytes + size);
  } else {
    log.assign(errors.data());
  }
  driver_->cuLinkDestroy(link);
  return result;
}

}  // namespace mpsshim::broker
