// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/modules/image_file.hpp"

#include <utility>
#include <vector>

#include "broker/compiler/prepared_file.hpp"
#include "broker/control_messages.hpp"
#include "proto/image/image.hpp"

namespace mpsshim::broker {

ImageCompiler::ImageCompiler(const Driver& driver, LinkerClient& linker, CUdevice device) : driver_(driver), linker_(linker) {
  int major = 0;
  int minor = 0;
  driver_->cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
  driver_->cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
  compute_ = static_cast<unsigned>(major * 10 + minor);
}

ImageTarget ImageCompiler::target(bool has_objects, bool opens_assertions) const {
  return {compute_, driver_.is_cpu(), has_objects, opens_assertions};
}

CUresult ImageCompiler::link(const Image& image, PreparedImage& prepared, bool& is_machine_code, std::string& log) const {
  is_machine_code = false;
  LinkRequest request;
  for (LinkInput& input : std::exchange(prepared.inputs, {})) request.steps.push_back({input.type, std::move(input.bytes), "image"});
  if (prepared.is_compiled_by_loading) {
    request.task = LinkRequest::Task::load;
    request.steps.push_back({CU_JIT_INPUT_PTX, prepared.content, "image"});
  }
  if (request.steps.empty()) return CUDA_SUCCESS;
  LinkOutcome outcome = linker_.run(image.session, image.image, image.has_objects ? kImageHasObjects : 0, request);
  // No linker in this driver: it compiles while it loads.
  if (outcome.status == CUDA_ERROR_NOT_SUPPORTED && !prepared.content.empty()) return CUDA_SUCCESS;
  if (outcome.status != CUDA_SUCCESS) log = std::move(outcome.error_log);
  if (outcome.status != CUDA_SUCCESS || request.task == LinkRequest::Task::load) return outcome.status;
  if (outcome.code.empty() || (image::form_of(outcome.code.bytes()) != image::Form::elf && !ends_within(outcome.code))) {
    log = "what the process that links images has made of it is not understood";
    return CUDA_ERROR_INVALID_PTX;
  }
  const std::span<const std::byte> linked = outcome.code.bytes();
  is_machine_code = image::form_of(linked) == image::Form::elf;
  if (is_machine_code) {
    std::vector<std::byte> placed = std::move(prepared.prefix);
    placed.insert(placed.end(), linked.begin(), linked.end());
    prepared.content = ImageBytes(std::move(placed));
  } else if (prepared.content.empty() || (prepared.prefix.empty() && prepared.assertion_sites.empty())) {
    prepared.content = outcome.code;  // the CPU driver's linker gives texts back
  }
  return CUDA_SUCCESS;
}

CUresult ImageCompiler::prepare(const Image& image, const ImageBytes& bytes, PreparedImage& prepared, ImageBytes& compiled, std::string& log) const {
  const CUresult result = prepare_image(bytes, target(image.has_objects, image.opens_assertions), prepared, log);
  return result == CUDA_SUCCESS ? finish(image, prepared, compiled, log) : result;
}

CUresult ImageCompiler::prepare_again(const Image& image, const proto::FileDescriptor& file, PreparedImage& prepared, ImageBytes& compiled,
                                      std::string& log) const {
  const ImageBytes bytes = map_sealed(file);
  if (bytes.empty()) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = prepare_image(bytes, target(false, image.opens_assertions), prepared, log);
  if (result != CUDA_SUCCESS) return result;
  prepared.is_compiled_by_loading = false;  // it has gone well before
  if (driver_.is_cpu() && !prepared.content.empty()) prepared.inputs.clear();
  return finish(image, prepared, compiled, log);
}

CUresult ImageCompiler::finish(const Image& image, PreparedImage& prepared, ImageBytes& compiled, std::string& log) const {
  bool is_machine_code = false;
  const CUresult result = link(image, prepared, is_machine_code, log);
  if (result != CUDA_SUCCESS || !is_machine_code) return result;
  compiled = prepared.content;
  return prepare_image(compiled, target(false, image.opens_assertions), prepared, log);
}

}  // namespace mpsshim::broker
