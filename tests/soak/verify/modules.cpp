// SPDX-License-Identifier: Apache-2.0
// Modules with variables, loaded and unloaded again: each is to begin with what its image says, to keep what is written to it, and to be nobody
// else's.
#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <optional>
#include <vector>

#include "exercise.hpp"
#include "tests/process/programs/driver.hpp"

namespace mpsshim::soak {

namespace {

constexpr std::size_t kVariants = 4;  // variables.cu, as CMakeLists.txt compiles it
constexpr unsigned kFirstCount = 1000;
constexpr unsigned kWords = 512;

using Image = std::vector<char>;

const Image& image_of(std::size_t variant) {
  static const std::array<Image, kVariants> images = [] {
    std::array<Image, kVariants> read;
    for (std::size_t i = 0; i < kVariants; ++i) {
      std::ifstream file(std::string(MPSSHIM_SOAK_IMAGES).append("/variables").append(std::to_string(i)).append(".fatbin"), std::ios::binary);
      read[i].assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
      test::require(!read[i].empty(), "an image of variables.cu is missing");
    }
    return read;
  }();
  return images[variant];
}

// One loaded copy, and what it must hold.
class LoadedVariables {
 public:
  LoadedVariables(const Tools& tools, std::size_t variant);
  LoadedVariables(const LoadedVariables&) = delete;
  ~LoadedVariables() {
    if (!tools_.work.process.options.leaves_at_once) cuModuleUnload(module_);
  }
  void write(const Stream& stream);
  void use(const Stream& stream);

 private:
  [[nodiscard]] CUdeviceptr variable(const char* name, std::size_t bytes) const;

  Tools tools_;
  const std::size_t variant_;
  CUmodule module_ = nullptr;
  CUfunction step_ = nullptr;
  DeviceMemory from_, to_, seen_;
  std::vector<Word> words_, table_, constants_;
  unsigned count_;
};

LoadedVariables::LoadedVariables(const Tools& tools, std::size_t variant)
    : tools_(tools),
      variant_(variant),
      from_(kWords * sizeof(Word)),
      to_(kWords * sizeof(Word)),
      seen_(sizeof(Word)),
      words_(kWords),
      table_(256, 0),
      constants_(64, 0),
      count_(kFirstCount + static_cast<unsigned>(variant)) {
  Workplace& work = tools.work;
  work.history.note("cuModuleLoadData", {{"variant", variant}});
  work.did();
  CU(cuModuleLoadData(&module_, image_of(variant).data()));
  CU(cuModuleGetFunction(&step_, module_, "step_variables"));
  for (Word& word : words_) word = work.random.word();
  const Stream& stream = work.any_stream();
  tools.transfers.upload(stream, from_.address(), words_);
  work.wait_for(stream);
}

CUdeviceptr LoadedVariables::variable(const char* name, std::size_t bytes) const {
  CUdeviceptr address = 0;
  std::size_t size = 0;
  CU(cuModuleGetGlobal(&address, &size, module_, name));
  test::require(size == bytes, std::string(name) + " has " + std::to_string(size) + " bytes");
  return address;
}

void LoadedVariables::write(const Stream& stream) {
  Random& random = tools_.work.random;
  const auto renew = [&](std::vector<Word>& words, const char* name) {
    for (Word& word : words) word = random.word();
    tools_.transfers.upload(stream, variable(name, words.size() * sizeof(Word)), words);
  };
  if (random.below(2) == 0) renew(table_, "table");
  if (random.below(2) == 0) renew(constants_, "constants");
  if (random.one_in(3)) {
    std::vector<Word> count{random.word() % 1'000'000};
    tools_.transfers.upload(stream, variable("counter", sizeof(Word)), count);
    count_ = count[0];
  }
}

void LoadedVariables::use(const Stream& stream) {
  Workplace& work = tools_.work;
  for (std::size_t left = 1 + work.random.below(6); left > 0; --left) {
    CUdeviceptr to = to_.address(), from = from_.address(), seen = seen_.address();
    unsigned count = kWords;
    void* arguments[] = {&to, &from, &count, &seen};
    work.history.note("step_variables", {{"variant", variant_}, {"count", count_}});
    work.did(2);
    CU(cuLaunchKernel(step_, 1 + static_cast<unsigned>(work.random.below(4)), 1, 1, 64, 1, 1, 0, stream.handle, arguments, nullptr));
    CU(cuMemcpyDtoDAsync(from, to, kWords * sizeof(Word), stream.handle));
    for (std::size_t i = 0; i < kWords; ++i) words_[i] = mix(mix(words_[i], table_[i % 256]), constants_[i % 64] + static_cast<Word>(variant_));
    ++count_;
    work.keep_pace(stream);
  }
  const std::vector<Word> seen = tools_.transfers.download(stream, seen_.address(), 1);
  work.expect("a module's counter", Sum{seen[0]}, Sum{count_});
  const std::vector<Word> found = tools_.transfers.download(stream, from_.address(), kWords);
  work.expect("what a module's variables have made", found, words_);
}

class Modules final : public Exercise {
 public:
  explicit Modules(const Tools& tools) : tools_(tools) {}
  void run() override;

 private:
  Tools tools_;
  std::vector<std::unique_ptr<LoadedVariables>> loaded_;
};

void Modules::run() {
  Workplace& work = tools_.work;
  if (loaded_.size() > 2 || (!loaded_.empty() && work.random.one_in(3))) {
    work.history.note("cuModuleUnload");
    loaded_.erase(loaded_.begin());
  }
  if (loaded_.empty() || work.random.one_in(3)) loaded_.push_back(std::make_unique<LoadedVariables>(tools_, work.random.below(kVariants)));
  LoadedVariables& variables = *loaded_[work.random.below(loaded_.size())];
  const Stream& stream = work.any_stream();
  if (work.random.below(2) == 0) variables.write(stream);
  variables.use(stream);
  work.verified(Kind::modules);
}

}  // namespace

std::unique_ptr<Exercise> make_modules(const Tools& tools) { return std::make_unique<Modules>(tools); }

}  // namespace mpsshim::soak
