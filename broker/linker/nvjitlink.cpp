// SPDX-License-Identifier: Apache-2.0
#include "broker/linker/nvjitlink.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>

#include <dlfcn.h>

#include <fmt/format.h>

#include "proto/image/image.hpp"

namespace mpsshim::broker {

namespace {

using Handle = void*;
using Result = int;

// nvJitLinkResult, and nvJitLinkInputType.
constexpr Result kSuccess = 0, kUnknownOption = 1, kPtx = 4, kNvvm = 5, kIncompatibleOptions = 11, kOtherArchitecture = 13, kUnknownArchitecture = 16,
                 kUnsupportedArchitecture = 17;
constexpr int kCubin = 1, kText = 2, kIntermediate = 3, kFatbin = 4, kObject = 5, kArchive = 6;

// CUjit_option and CUjit_target, for which older toolkits have no names.
constexpr std::uint32_t kLto = 20, kFlushToZero = 21, kPreciseDivision = 22, kPreciseRoot = 23, kFusedMultiplyAdd = 24, kSplitCompilation = 34;
constexpr std::uint32_t kAccelerated = 0x10000, kFamily = 0x20000;

constexpr unsigned kRegistersOfMultiprocessor = 65'536, kMostRegisters = 255;

int kind_of(CUjitInputType type) {
  switch (type) {
    case CU_JIT_INPUT_CUBIN: return kCubin;
    case CU_JIT_INPUT_PTX: return kText;
    case CU_JIT_INPUT_FATBINARY: return kFatbin;
    case CU_JIT_INPUT_OBJECT: return kObject;
    case CU_JIT_INPUT_LIBRARY: return kArchive;
    default: return kIntermediate;
  }
}

// What the driver's linker answers where it meets the same.
CUresult as_driver_error(Result result, const std::string& log) {
  switch (result) {
    case kSuccess: return CUDA_SUCCESS;
    case kUnknownOption:
    case kIncompatibleOptions: return CUDA_ERROR_INVALID_VALUE;
    case kPtx: return log.find("Unsupported .version") != std::string::npos ? CUDA_ERROR_UNSUPPORTED_PTX_VERSION : CUDA_ERROR_INVALID_PTX;
    case kNvvm: return CUDA_ERROR_INVALID_PTX;
    case kOtherArchitecture:
    case kUnknownArchitecture:
    case kUnsupportedArchitecture: return CUDA_ERROR_NO_BINARY_FOR_GPU;
    default: return CUDA_ERROR_INVALID_IMAGE;
  }
}

// Texts may ask for what only the device's own kind has (.target sm_90a), and the driver takes them.
std::string architecture(unsigned compute, std::uint32_t target) {
  if (target != 0) {
    const char* const kind = (target & kAccelerated) != 0 ? "a" : (target & kFamily) != 0 ? "f" : "";
    return fmt::format("-arch=sm_{}{}", target & 0xffff, kind);
  }
  return fmt::format("-arch=sm_{}{}", compute, compute >= 90 ? "a" : "");
}

}  // namespace

struct NvJitLink::Functions {
  Functions() = default;
  Functions(const Functions&) = delete;
  ~Functions() {
    if (library != nullptr) dlclose(library);
  }

  [[nodiscard]] bool find(const char* file) {
    library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    return library != nullptr && find("nvJitLinkVersion", version) && find("nvJitLinkCreate", create) && find("nvJitLinkDestroy", destroy) &&
           find("nvJitLinkAddData", add_data) && find("nvJitLinkComplete", complete) && find("nvJitLinkGetLinkedCubinSize", code_size) &&
           find("nvJitLinkGetLinkedCubin", code) && find("nvJitLinkGetErrorLogSize", error_size) && find("nvJitLinkGetErrorLog", error_log) &&
           find("nvJitLinkGetInfoLogSize", info_size) && find("nvJitLinkGetInfoLog", info_log);
  }
  template <typename Function>
  [[nodiscard]] bool find(const char* name, Function*& function) {
    function = reinterpret_cast<Function*>(dlsym(library, name));
    return function != nullptr;
  }

  using Size = Result(Handle, std::size_t*);
  using Text = Result(Handle, char*);

  void* library = nullptr;
  Result (*version)(unsigned* major, unsigned* minor) = nullptr;
  Result (*create)(Handle*, std::uint32_t count, const char* const* options) = nullptr;
  Result (*destroy)(Handle*) = nullptr;
  Result (*add_data)(Handle, int kind, const void* data, std::size_t bytes, const char* name) = nullptr;
  Result (*complete)(Handle) = nullptr;
  Size* code_size = nullptr;
  Result (*code)(Handle, void*) = nullptr;
  Size* error_size = nullptr;
  Text* error_log = nullptr;
  Size* info_size = nullptr;
  Text* info_log = nullptr;
};

namespace {

// It is created with the first input, since options of inputs are the linker's there.
class ToolkitLink final : public Link {
 public:
  ToolkitLink(std::shared_ptr<const NvJitLink::Functions> functions, unsigned compute) : functions_(std::move(functions)), compute_(compute) {}
  ~ToolkitLink() override {
    if (handle_ != nullptr) functions_->destroy(&handle_);
  }

  [[nodiscard]] CUresult create(const std::vector<JitOption>& options) override {
    options_ = options;
    return CUDA_SUCCESS;
  }

  [[nodiscard]] CUresult add(const LinkStep& step) override {
    const std::vector<std::string> own = NvJitLink::words_of(step.options, compute_);
    if (handle_ == nullptr) {
      std::vector<JitOption> all = options_;
      all.insert(all.end(), step.options.begin(), step.options.end());
      if (const CUresult error = create_now(all); error != CUDA_SUCCESS) return error;
      first_ = own;
    } else if (own != first_) {
      refusal_ = "nvJitLink has the same options for all inputs of a linker";
      return CUDA_ERROR_NOT_SUPPORTED;
    }
    // A text is read to its end, which what was given need not have.
    std::vector<std::byte> data(step.bytes.size() + 1);
    std::copy_n(step.bytes.data(), step.bytes.size(), data.begin());
    const bool is_text = step.type == CU_JIT_INPUT_PTX;
    return as_result(functions_->add_data(handle_, kind_of(step.type), data.data(), step.bytes.size() + (is_text ? 1 : 0), step.name.c_str()));
  }

  [[nodiscard]] CUresult complete(ImageBytes& code) override {
    if (handle_ == nullptr) {
      if (const CUresult error = create_now(options_); error != CUDA_SUCCESS) return error;
    }
    if (const CUresult error = as_result(functions_->complete(handle_)); error != CUDA_SUCCESS) return error;
    std::size_t size = 0;
    if (const CUresult error = as_result(functions_->code_size(handle_, &size)); error != CUDA_SUCCESS) return error;
    if (size > kMaxLinkBytes) return CUDA_ERROR_OUT_OF_MEMORY;
    std::vector<std::byte> bytes(size);
    const CUresult error = as_result(functions_->code(handle_, bytes.data()));
    if (error == CUDA_SUCCESS) code = ImageBytes(std::move(bytes));
    return error;
  }

  [[nodiscard]] std::string error_log() const override { return refusal_.empty() ? log(functions_->error_size, functions_->error_log) : refusal_; }
  [[nodiscard]] std::string info_log() const override { return log(functions_->info_size, functions_->info_log); }

 private:
  [[nodiscard]] CUresult create_now(const std::vector<JitOption>& options) {
    const std::vector<std::string> words = NvJitLink::words_of(options, compute_);
    std::vector<const char*> arguments;
    arguments.reserve(words.size());
    for (const std::string& word : words) arguments.push_back(word.c_str());
    return as_result(functions_->create(&handle_, static_cast<std::uint32_t>(arguments.size()), arguments.data()));
  }

  [[nodiscard]] CUresult as_result(Result result) const { return result == kSuccess ? CUDA_SUCCESS : as_driver_error(result, error_log()); }

  [[nodiscard]] std::string log(NvJitLink::Functions::Size* size_of, NvJitLink::Functions::Text* text_of) const {
    std::size_t size = 0;
    if (handle_ == nullptr || size_of(handle_, &size) != kSuccess || size == 0) return {};
    std::string text(size + 1, '\0');
    if (text_of(handle_, text.data()) != kSuccess) return {};
    text.resize(std::min({text.find('\0'), size, kLinkLogBytes - 1}));
    return text;
  }

  const std::shared_ptr<const NvJitLink::Functions> functions_;
  const unsigned compute_;
  std::vector<JitOption> options_;
  std::vector<std::string> first_;  // options of the first input
  std::string refusal_;
  Handle handle_ = nullptr;
};

}  // namespace

std::unique_ptr<NvJitLink> NvJitLink::load(const std::string& file, const LinkTarget& target, std::string& why) {
  const unsigned major = static_cast<unsigned>(target.driver_version) / 1000, minor = static_cast<unsigned>(target.driver_version) % 1000 / 10;
  std::vector<std::string> places{file};
  if (file.empty()) {
    const std::string name = fmt::format("libnvJitLink.so.{}", major);
    places = {name, fmt::format("/usr/local/cuda-{}.{}/lib64/{}", major, minor, name), fmt::format("/usr/local/cuda/lib64/{}", name)};
  }
  why = fmt::format("there is no {} of CUDA {}.{} or a later {}.x: install nvJitLink of the CUDA Toolkit, or name its file (--ptx-compiler)",
                    file.empty() ? places.front() : file, major, minor, major);
  for (const std::string& place : places) {
    const auto functions = std::make_shared<Functions>();
    unsigned has_major = 0, has_minor = 0;
    if (!functions->find(place.c_str())) continue;
    if (functions->version(&has_major, &has_minor) != kSuccess || has_major != major || has_minor < minor) {
      why = fmt::format("{} is of CUDA {}.{}, and the driver of {}.{}", place, has_major, has_minor, major, minor);
      continue;
    }
    return std::unique_ptr<NvJitLink>(new NvJitLink(functions, target.compute));
  }
  return nullptr;
}

std::unique_ptr<Link> NvJitLink::begin() const { return std::make_unique<ToolkitLink>(functions_, compute_); }

CUresult NvJitLink::try_load(const ImageBytes& text, std::string& error_log) const {
  if (image::form_of(text.bytes()) != image::Form::ptx) {  // a container, all of whose texts are for newer devices
    error_log = "the image has no text for this device";
    return CUDA_ERROR_NO_BINARY_FOR_GPU;
  }
  const std::unique_ptr<Link> link = begin();
  CUresult error = link->create({});
  if (error == CUDA_SUCCESS) error = link->add({CU_JIT_INPUT_PTX, text, "image", {}});
  if (error != CUDA_SUCCESS) error_log = link->error_log() + "\n(This is nvJitLink; with mpsbroker --ptx-compiler driver the driver compiles.)";
  return error;
}

std::vector<std::string> NvJitLink::words_of(const std::vector<JitOption>& options, unsigned compute) {
  std::vector<std::string> words;
  std::uint32_t target = 0, registers = 0;
  const auto limit_registers = [&](std::uint32_t most) { registers = registers == 0 ? most : std::min(registers, most); };
  for (const auto& [option, value] : options) {
    switch (static_cast<std::uint32_t>(option)) {
      case CU_JIT_MAX_REGISTERS: limit_registers(value); break;
      case CU_JIT_THREADS_PER_BLOCK:  // so many have to fit
        if (value != 0) limit_registers(std::clamp(kRegistersOfMultiprocessor / value / 8 * 8, 16u, kMostRegisters));
        break;
      case CU_JIT_OPTIMIZATION_LEVEL:
        if (value == 0) words.emplace_back("-O0");
        if (value == 1 || value == 2) words.push_back(fmt::format("-Xptxas=-O{}", value));
        break;
      case CU_JIT_TARGET: target = value; break;
      case CU_JIT_GENERATE_DEBUG_INFO:
        if (value != 0) words.emplace_back("-g");
        break;
      case CU_JIT_GENERATE_LINE_INFO:
        if (value != 0) words.emplace_back("-lineinfo");
        break;
      case CU_JIT_LOG_VERBOSE:
        if (value != 0) words.emplace_back("-verbose");
        break;
      case CU_JIT_CACHE_MODE:
        if (value != 0) words.emplace_back(value == CU_JIT_CACHE_OPTION_CA ? "-Xptxas=-dlcm=ca" : "-Xptxas=-dlcm=cg");
        break;
      case kLto:
        if (value != 0) words.emplace_back("-lto");
        break;
      case kFlushToZero: words.push_back(fmt::format("-ftz={}", value != 0 ? 1 : 0)); break;
      case kPreciseDivision: words.push_back(fmt::format("-prec-div={}", value != 0 ? 1 : 0)); break;
      case kPreciseRoot: words.push_back(fmt::format("-prec-sqrt={}", value != 0 ? 1 : 0)); break;
      case kFusedMultiplyAdd: words.push_back(fmt::format("-fma={}", value != 0 ? 1 : 0)); break;
      case kSplitCompilation: words.push_back(fmt::format("-split-compile={}", value)); break;
      default: break;
    }
  }
  if (registers != 0) words.push_back(fmt::format("-maxrregcount={}", registers));
  words.push_back(architecture(compute, target));
  return words;
}

}  // namespace mpsshim::broker
