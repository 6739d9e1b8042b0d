// SPDX-License-Identifier: Apache-2.0
// CUDA Driver API manual: cuLink* of "Module Management". The result is a fat binary of the PTX given, which the load
// calls take; it is compiled once here, so that errors are found where programs look for them. Waits for nobody.
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "broker/cpudriver/api/entry.hpp"
#include "broker/cpudriver/modules/image_texts.hpp"
#include "broker/cpudriver/modules/jit_options.hpp"
#include "broker/cpudriver/ptx/module.hpp"
#include "proto/image/ptx_text.hpp"

using namespace mpsshim::cpudriver;

namespace {

struct Link {
  JitOptions options;
  std::vector<std::string> texts;
  std::vector<std::byte> image;  // what cuLinkComplete gave out; lives until cuLinkDestroy
};

template <class Body>
CUresult with_link(CUlinkState handle, Body&& body) {
  return entry(Needs::handle, [&]() -> CUresult {
    const auto link = HandleTable<Link>::get().find(handle);
    return link == nullptr ? CUDA_ERROR_INVALID_HANDLE : body(*link);
  });
}

CUresult add(Link& link, CUjitInputType type, const void* data, size_t size) {
  std::string why;
  CUresult result = CUDA_SUCCESS;
  if (type == CU_JIT_INPUT_PTX) {
    const auto* text = static_cast<const char*>(data);
    link.texts.emplace_back(text, strnlen(text, size));
    return CUDA_SUCCESS;
  }
  if (type == CU_JIT_INPUT_CUBIN || type == CU_JIT_INPUT_FATBINARY) {
    result = read_image_texts(data, link.texts, why);
  } else if (type == CU_JIT_INPUT_OBJECT || type == CU_JIT_INPUT_LIBRARY) {
    result = read_object_texts({static_cast<const std::byte*>(data), size}, link.texts, why);
  } else {
    why = "The linker of the CPU driver takes PTX, and what holds PTX: fat binaries, objects and libraries.";
    result = CUDA_ERROR_NOT_SUPPORTED;
  }
  if (result != CUDA_SUCCESS) link.options.report_error(why);
  return result;
}

CUresult complete(Link& link) {
  leave_out_device_runtime(link.texts);
  for (const std::string& text : link.texts) {
    if (mpsshim::image::ptx_version(text) >= mpsshim::image::kOldestLinkedPtx) continue;
    link.options.report_error("Linking requires PTX of .version 3.1 or later (modules may be loaded from older texts)");
    return CUDA_ERROR_INVALID_PTX;
  }
  const std::vector<std::string_view> views(link.texts.begin(), link.texts.end());
  mpsshim::ptx::Error error;
  if (mpsshim::ptx::compile(views, error) == nullptr) {
    link.options.report_error(error.text + " (input " + std::to_string(error.text_index + 1) + ")");
    return static_cast<CUresult>(error.code);
  }
  link.options.clear_logs();
  link.image = write_linked_image(link.texts);
  return CUDA_SUCCESS;
}

}  // namespace

CUresult CUDAAPI cuLinkCreate(unsigned int numOptions, CUjit_option* options, void** optionValues,
                              CUlinkState* stateOut) {
  return entry(Needs::context, [&] {
    if (stateOut == nullptr) return CUDA_ERROR_INVALID_VALUE;
    auto link = std::make_shared<Link>();
    const CUresult understood = JitOptions::read(numOptions, options, optionValues, link->options);
    if (understood != CUDA_SUCCESS) return understood;
    *stateOut = static_cast<CUlinkState>(HandleTable<Link>::get().add(std::move(link)));
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuLinkAddData(CUlinkState state, CUjitInputType type, void* data, size_t size, const char*,
                               unsigned int numOptions, CUjit_option* options, void** optionValues) {
  return with_link(state, [&](Link& link) {
    JitOptions of_this_input;
    const CUresult understood = JitOptions::read(numOptions, options, optionValues, of_this_input);
    if (understood != CUDA_SUCCESS) return understood;
    return data == nullptr || size == 0 ? CUDA_ERROR_INVALID_VALUE : add(link, type, data, size);
  });
}

CUresult CUDAAPI cuLinkAddFile(CUlinkState state, CUjitInputType type, const char* path, unsigned int numOptions,
                               CUjit_option* options, void** optionValues) {
  return with_link(state, [&](Link& link) {
    JitOptions of_this_input;
    const CUresult understood = JitOptions::read(numOptions, options, optionValues, of_this_input);
    if (understood != CUDA_SUCCESS) return understood;
    if (path == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::ifstream file(path, std::ios::binary);
    if (!file) return CUDA_ERROR_FILE_NOT_FOUND;
    const std::string content{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    return content.empty() ? CUDA_ERROR_INVALID_IMAGE : add(link, type, content.c_str(), content.size());
  });
}

CUresult CUDAAPI cuLinkComplete(CUlinkState state, void** cubinOut, size_t* sizeOut) {
  return with_link(state, [&](Link& link) {
    if (cubinOut == nullptr || link.texts.empty()) return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = complete(link);
    if (result != CUDA_SUCCESS) return result;
    *cubinOut = link.image.data();
    if (sizeOut != nullptr) *sizeOut = link.image.size();
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuLinkDestroy(CUlinkState state) {
  return entry(Needs::handle, [&] { return HandleTable<Link>::get().remove(state) == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS; });
}
