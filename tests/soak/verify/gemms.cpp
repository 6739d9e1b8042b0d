// SPDX-License-Identifier: Apache-2.0
// Products of matrices by cuBLAS, each made of the one before, as the layers of a model are. Elements are small integers, so every result is exact in
// whatever order it is summed up: all processes must get the same, and the host computes it once for all of them.
#include "exercise.hpp"

#ifdef MPSSHIM_SOAK_CUBLAS

#include <cublas_v2.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "tests/process/programs/driver.hpp"

namespace mpsshim::soak {

namespace {

struct Shape {
  unsigned depth;    // of the square matrix
  unsigned columns;  // of what it is multiplied with
  bool is_half;      // else single precision
};
// Exact in half precision: sums of up to 512 products of -2, -1, 1, 2 are integers up to 2,048. Single precision has room for more.
constexpr Shape kShapes[] = {{512, 1, true},   {512, 4, true},  {256, 16, true},  {512, 64, true},  {512, 128, true}, {384, 7, true},
                             {128, 512, true}, {768, 1, false}, {1024, 1, false}, {512, 16, false}, {256, 256, false}};
constexpr std::size_t kMostLayers = 6;
static_assert(std::size(kShapes) * kMostLayers <= Tally::kDigests);

constexpr int kIntegers[4] = {-2, -1, 1, 2};
constexpr SquashCodes kHalves = {{0xC000, 0xBC00, 0x3C00, 0x4000}};
constexpr SquashCodes kFloats = {{0xC0000000, 0xBF800000, 0x3F800000, 0x40000000}};

Word bits_of(int value, bool is_half) {
  if (!is_half) {
    const auto single = static_cast<float>(value);
    Word bits;
    std::memcpy(&bits, &single, sizeof bits);
    return bits;
  }
  if (value == 0) return 0;
  const auto magnitude = static_cast<unsigned>(value < 0 ? -value : value);
  const auto exponent = static_cast<unsigned>(std::bit_width(magnitude)) - 1;  // up to 11: a normal half, with ten bits behind the first
  return (value < 0 ? 0x8000u : 0u) | (exponent + 15) << 10 | ((magnitude << (10 + 1) >> exponent) >> 1 & 0x3ff);
}

struct Blas {
  std::remove_reference_t<decltype(cublasCreate_v2)>* create;
  std::remove_reference_t<decltype(cublasSetStream_v2)>* set_stream;
  std::remove_reference_t<decltype(cublasSgemm_v2)>* single;
  // Overloaded in C++: its type is that of the library's symbol.
  cublasStatus_t (*mixed)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const void*, const void*, cudaDataType, int,
                          const void*, cudaDataType, int, const void*, void*, cudaDataType, int, cublasComputeType_t, cublasGemmAlgo_t);
};

const Blas* load_blas(const char* path) {
  static const Blas* const blas = [path]() -> const Blas* {
    void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    test::require(library != nullptr, std::string("cuBLAS cannot be loaded: ").append(library == nullptr ? dlerror() : ""));
    const auto get = [library](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      test::require(function != nullptr, std::string("cuBLAS has no ").append(name));
    };
    static Blas found{};
    get(found.create, "cublasCreate_v2");
    get(found.set_stream, "cublasSetStream_v2");
    get(found.single, "cublasSgemm_v2");
    get(found.mixed, "cublasGemmEx");
    return &found;
  }();
  return blas;
}

void require_blas(cublasStatus_t status, const char* call) {
  test::require(status == CUBLAS_STATUS_SUCCESS, std::string(call) + " gives " + std::to_string(static_cast<int>(status)));
}

// The matrices of one shape, the same everywhere.
class Model {
 public:
  Model(const Tools& tools, std::size_t number);
  // Layers on layers; returns the digest of the last product.
  void run(const Blas& blas, cublasHandle_t handle, const Stream& stream, std::size_t layers, CUdeviceptr sum);
  [[nodiscard]] Sum expected(std::size_t layers);

 private:
  [[nodiscard]] std::size_t elements() const { return std::size_t{shape_.depth} * shape_.columns; }
  [[nodiscard]] std::size_t bytes_of(std::size_t count) const { return count * (shape_.is_half ? 2 : 4); }
  [[nodiscard]] int weight(std::size_t index) const { return kIntegers[mix(static_cast<Word>(index), static_cast<Word>(number_)) >> 30]; }
  [[nodiscard]] int input(std::size_t index) const { return kIntegers[mix(static_cast<Word>(index), ~static_cast<Word>(number_)) >> 30]; }
  [[nodiscard]] Sum compute(std::size_t layers) const;
  [[nodiscard]] std::vector<Word> packed(std::size_t count, int (Model::*element)(std::size_t) const) const;

  Tools tools_;
  const std::size_t number_;
  const Shape& shape_;
  DeviceMemory weights_, start_, product_, next_;
};

// So long that whole words are digested.
Model::Model(const Tools& tools, std::size_t number)
    : tools_(tools),
      number_(number),
      shape_(kShapes[number]),
      weights_(bytes_of(std::size_t{shape_.depth} * shape_.depth)),
      start_(bytes_of(elements())),
      product_(bytes_of(elements())),
      next_(bytes_of(elements())) {
  const Stream& stream = tools.work.any_stream();
  tools.transfers.upload(stream, weights_.address(), packed(std::size_t{shape_.depth} * shape_.depth, &Model::weight));
  tools.transfers.upload(stream, start_.address(), packed(elements(), &Model::input));
  tools.work.wait_for(stream);
}

std::vector<Word> Model::packed(std::size_t count, int (Model::*element)(std::size_t) const) const {
  std::vector<Word> words(bytes_of(count) / sizeof(Word));
  for (std::size_t i = 0; i < count; ++i) {
    const Word bits = bits_of((this->*element)(i), shape_.is_half);
    if (shape_.is_half)
      words[i / 2] |= bits << (i % 2 * 16);
    else
      words[i] = bits;
  }
  return words;
}

void Model::run(const Blas& blas, cublasHandle_t handle, const Stream& stream, std::size_t layers, CUdeviceptr sum) {
  Workplace& work = tools_.work;
  const StepKernels& kernels = work.process.kernels;
  const auto depth = static_cast<int>(shape_.depth), columns = static_cast<int>(shape_.columns);
  const float one = 1, zero = 0;
  require_blas(blas.set_stream(handle, stream.handle), "cublasSetStream");
  CUdeviceptr from = start_.address(), product = product_.address(), next = next_.address();
  for (std::size_t layer = 0; layer < layers; ++layer) {
    work.history.note(shape_.is_half ? "cublasGemmEx" : "cublasSgemm", {{"depth", shape_.depth}, {"columns", shape_.columns}, {"layer", layer}});
    work.did(2);
    const auto memory = [](CUdeviceptr address) { return reinterpret_cast<void*>(address); };
    if (shape_.is_half) {
      require_blas(blas.mixed(handle, CUBLAS_OP_N, CUBLAS_OP_N, depth, columns, depth, &one, memory(weights_.address()), CUDA_R_16F, depth,
                              memory(from), CUDA_R_16F, depth, &zero, memory(product), CUDA_R_16F, depth, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
                   "cublasGemmEx");
    } else {
      const auto single = [](CUdeviceptr address) { return reinterpret_cast<float*>(address); };
      require_blas(blas.single(handle, CUBLAS_OP_N, CUBLAS_OP_N, depth, columns, depth, &one, single(weights_.address()), depth, single(from), depth,
                               &zero, single(product), depth),
                   "cublasSgemm");
    }
    auto count = static_cast<unsigned>(elements());
    SquashCodes codes = shape_.is_half ? kHalves : kFloats;
    void* arguments[] = {&next, &product, &count, &codes};
    const auto blocks = std::clamp(count / 256, 1u, 64u);
    CU(cuLaunchKernel(kernels.function(shape_.is_half ? "squash_halves" : "squash_floats"), blocks, 1, 1, 128, 1, 1, 0, stream.handle, arguments,
                      nullptr));
    from = next;
    work.keep_pace(stream);
  }
  Sum words = bytes_of(elements()) / sizeof(Word);
  void* arguments[] = {&product, &words, &sum};
  CU(cuLaunchKernel(kernels.function("digest"), 4, 1, 1, 128, 1, 1, 0, stream.handle, arguments, nullptr));
}

Sum Model::compute(std::size_t layers) const {
  const std::size_t depth = shape_.depth;
  std::vector<int> weights(depth * depth), from(elements()), product(elements());
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = weight(i);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = input(i);
  for (std::size_t layer = 0; layer < layers; ++layer) {
    std::fill(product.begin(), product.end(), 0);
    for (std::size_t column = 0; column < shape_.columns; ++column) {
      for (std::size_t k = 0; k < depth; ++k) {
        const int factor = from[column * depth + k];
        for (std::size_t row = 0; row < depth; ++row) product[column * depth + row] += weights[k * depth + row] * factor;
      }
    }
    for (std::size_t i = 0; i < from.size(); ++i) from[i] = kIntegers[squash_choice(bits_of(product[i], shape_.is_half), static_cast<unsigned>(i))];
  }
  std::vector<Word> words(bytes_of(elements()) / sizeof(Word));
  for (std::size_t i = 0; i < product.size(); ++i) {
    const Word bits = bits_of(product[i], shape_.is_half);
    if (shape_.is_half)
      words[i / 2] |= bits << (i % 2 * 16);
    else
      words[i] = bits;
  }
  Sum sum = 0;
  for (std::size_t i = 0; i < words.size(); ++i) sum += mix(words[i], static_cast<Word>(i));
  return sum;
}

Sum Model::expected(std::size_t layers) {
  std::atomic<std::uint64_t>& known = tools_.work.process.tally.digests[number_ * kMostLayers + layers - 1];
  Sum value = known.load(std::memory_order_relaxed);
  if (value == 0) known.store(value = compute(layers), std::memory_order_relaxed);
  return value;
}

class Gemms final : public Exercise {
 public:
  explicit Gemms(const Tools& tools) : tools_(tools), blas_(*load_blas(tools.work.process.options.cublas.c_str())), sums_(kMostRuns * sizeof(Sum)) {
    require_blas(blas_.create(&handle_), "cublasCreate");  // goes with the process
    models_.resize(std::size(kShapes));
  }
  void run() override;

 private:
  static constexpr std::size_t kMostRuns = 8;
  Tools tools_;
  const Blas& blas_;
  cublasHandle_t handle_ = nullptr;
  DeviceMemory sums_;
  std::vector<std::unique_ptr<Model>> models_;
};

void Gemms::run() {
  Workplace& work = tools_.work;
  const std::size_t number = work.random.below(models_.size());
  if (!models_[number]) models_[number] = std::make_unique<Model>(tools_, number);
  const Stream& stream = work.any_stream();
  std::vector<std::size_t> layers(1 + work.random.below(kMostRuns));
  CU(cuMemsetD32Async(sums_.address(), 0, sums_.bytes() / sizeof(Word), stream.handle));
  for (std::size_t i = 0; i < layers.size(); ++i) {
    layers[i] = 1 + work.random.below(kMostLayers);
    models_[number]->run(blas_, handle_, stream, layers[i], sums_.address() + i * sizeof(Sum));
  }
  const std::vector<Word> sums = tools_.transfers.download(stream, sums_.address(), layers.size() * 2);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const std::string what = "the digest of " + std::to_string(layers[i]) + " products of shape " + std::to_string(number);
    work.expect(what.c_str(), Sum{sums[2 * i]} | Sum{sums[2 * i + 1]} << 32, models_[number]->expected(layers[i]));
    work.verified(Kind::gemms);
  }
}

}  // namespace

std::unique_ptr<Exercise> make_gemms(const Tools& tools) {
  return tools.work.process.options.cublas.empty() ? nullptr : std::make_unique<Gemms>(tools);
}

}  // namespace mpsshim::soak

#else

namespace mpsshim::soak {
std::unique_ptr<Exercise> make_gemms(const Tools&) { return nullptr; }
}  // namespace mpsshim::soak

#endif
