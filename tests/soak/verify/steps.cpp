// SPDX-License-Identifier: Apache-2.0
#include "steps.hpp"

#include <algorithm>
#include <stdexcept>

#include "tests/process/programs/driver.hpp"

namespace mpsshim::soak {

namespace {

struct Row {
  const char* name;  // of its kernel
  std::uint32_t local_bytes;
  bool is_9_0;
  bool is_tiled;  // blocks of kTile threads
};
constexpr std::array<Row, kStepKinds> kRows = {{
    {"step_short", 0, false, false},
    {"step_few", 0, false, false},
    {"step_many", 0, false, false},
    {"step_more", 0, false, false},
    {"step_much", 0, false, false},
    {"step_most", 0, false, false},
    {"step_tile", 0, false, true},
    {"step_dynamic", 0, false, true},
    {"step_local_64", 64, false, true},
    {"step_local_512", 512, false, true},
    {"step_local_4096", 4096, false, true},
    {"step_local_32768", 32768, false, true},
    {"step_warp", 0, false, true},
    {"step_float", 0, false, true},
    {"step_sum", 0, false, false},
    {"step_cooperative", 0, false, false},
    {"step_dependent", 0, true, false},
    {"step_cluster", 0, true, true},
}};

const Row& row_of(StepKind kind) { return kRows[static_cast<std::size_t>(kind)]; }

template <unsigned kSalts>
void with_wide_arguments(const Step& step, const ChainMemory& memory, const std::function<void(void**)>& use) {
  WideArguments<kSalts> arguments{};
  static_assert(sizeof arguments.out == sizeof memory.to);
  arguments.out = reinterpret_cast<Word*>(memory.to);
  arguments.in = reinterpret_cast<const Word*>(memory.from);
  arguments.count = memory.count;
  arguments.stride = step.stride;
  for (unsigned j = 0; j < kSalts; ++j) arguments.salts[j] = pattern(step.salt, j);
  void* addresses[] = {&arguments};
  use(addresses);
}

template <unsigned kSalts>
void apply_wide(const Step& step, std::span<const Word> in, std::span<Word> out) {
  const std::size_t count = in.size();
  for (std::size_t i = 0; i < count; ++i) {
    const Word salt = pattern(step.salt, static_cast<Word>(i % kSalts));
    out[i] = mix(mix(in[i], in[(i + step.stride) % count]), salt + static_cast<Word>(i));
  }
}

void apply_brief(const Step& step, std::span<const Word> in, std::span<Word> out) {
  const std::size_t count = in.size();
  for (std::size_t i = 0; i < count; ++i) out[i] = mix(mix(in[i], in[(i + step.stride) % count]), step.salt + static_cast<Word>(i));
}

void apply_local(const Step& step, std::span<const Word> in, std::span<Word> out) {
  const unsigned words = row_of(step.kind).local_bytes / sizeof(Word);
  for (std::size_t i = 0; i < in.size(); ++i) {
    Word result = mix(in[i], 0);
    for (unsigned k = 0; k < kLocalSamples; ++k) result = mix(result, local_entry(in[i], step.salt, local_sample(in[i], step.salt, k, words)));
    out[i] = result;
  }
}

void apply_dynamic(const Step& step, std::span<const Word> in, std::span<Word> out) {
  for (std::size_t i = 0; i < in.size(); ++i) {
    const std::size_t base = i / kTile * kTile;
    Word result = in[i];
    for (unsigned k = 0; k < kSharedSamples; ++k) {
      const unsigned j = shared_sample(step.salt, static_cast<unsigned>(i - base), k, step.words);
      result = mix(result, mix(in[base + j % kTile], step.salt + j));
    }
    out[i] = result;
  }
}

// Each word with another of its tile, or of the next tile of its cluster.
void apply_tile(const Step& step, std::span<const Word> in, std::span<Word> out) {
  const std::size_t cluster = step.kind == StepKind::cluster ? step.words : 1;
  for (std::size_t i = 0; i < in.size(); ++i) {
    const std::size_t block = i / kTile;
    const std::size_t next = block / cluster * cluster + (block % cluster + (cluster > 1 ? 1 : 0)) % cluster;
    out[i] = mix(mix(in[i], step.salt), mix(in[next * kTile + kTile - 1 - i % kTile], step.salt));
  }
}

void apply_warp(const Step& step, std::span<const Word> in, std::span<Word> out) {
  constexpr std::size_t kWarp = 32;
  for (std::size_t base = 0; base < in.size(); base += kWarp) {
    std::array<Word, kWarp> values, before;
    for (std::size_t lane = 0; lane < kWarp; ++lane) values[lane] = mix(in[base + lane], step.salt);
    for (std::size_t distance = kWarp / 2; distance > 0; distance /= 2) {
      before = values;
      for (std::size_t lane = 0; lane < kWarp; ++lane) values[lane] = mix(before[lane], before[lane ^ distance]);
    }
    std::copy(values.begin(), values.end(), out.begin() + static_cast<std::ptrdiff_t>(base));
  }
}

void apply_floats(const Step& step, std::span<const Word> in, std::span<Word> out) {
  for (std::size_t base = 0; base < in.size(); base += kTile) {
    Word sum = 0;
    for (std::size_t i = 0; i < kTile; ++i) sum += in[base + i] & 0xfff;
    for (std::size_t i = base; i < base + kTile; ++i) out[i] = mix(mix(in[i], sum), step.salt);
  }
}

void apply_sum(const Step& step, std::span<const Word> in, std::span<Word> out) {
  Sum sum = 0;
  for (std::size_t i = 0; i < in.size(); ++i) sum += mix(in[i], step.salt + static_cast<Word>(i));
  for (std::size_t i = 0; i < in.size(); ++i) {
    out[i] = mix(mix(in[i], static_cast<Word>(sum)), static_cast<Word>(sum >> 32) + static_cast<Word>(i));
  }
}

void apply_cooperative(const Step& step, std::span<const Word> in, std::span<Word> out) {
  const std::size_t count = in.size();
  for (std::size_t i = 0; i < count; ++i) out[i] = mix(mix(in[i], step.salt), mix(in[(i + step.stride) % count], step.salt));
}

}  // namespace

const char* name_of(StepKind kind) { return row_of(kind).name; }

std::string describe(const Step& step) {
  return std::string(name_of(step.kind)) + " grid " + std::to_string(step.grid) + " block " + std::to_string(step.block) + " stride " +
         std::to_string(step.stride) + " salt " + std::to_string(step.salt) + " words " + std::to_string(step.words) + " ticks " +
         std::to_string(step.ticks) + (step.has_priority ? " priority" : "") + (step.tells_early ? " tells early" : "");
}

void apply(const Step& step, std::span<const Word> in, std::span<Word> out) {
  switch (step.kind) {
    case StepKind::brief:
    case StepKind::dependent: return apply_brief(step, in, out);
    case StepKind::few: return apply_wide<kFewSalts>(step, in, out);
    case StepKind::many: return apply_wide<kManySalts>(step, in, out);
    case StepKind::more: return apply_wide<kMoreSalts>(step, in, out);
    case StepKind::much: return apply_wide<kMuchSalts>(step, in, out);
    case StepKind::most: return apply_wide<kMostSalts>(step, in, out);
    case StepKind::tile:
    case StepKind::cluster: return apply_tile(step, in, out);
    case StepKind::dynamic: return apply_dynamic(step, in, out);
    case StepKind::local_64:
    case StepKind::local_512:
    case StepKind::local_4096:
    case StepKind::local_32768: return apply_local(step, in, out);
    case StepKind::warp: return apply_warp(step, in, out);
    case StepKind::floats: return apply_floats(step, in, out);
    case StepKind::sum: return apply_sum(step, in, out);
    case StepKind::cooperative: return apply_cooperative(step, in, out);
  }
}

StepKernels::StepKernels(CUdevice device, const std::string& folder, unsigned most_local_bytes, Random& random) {
  int major = 0, shared = 0;
  CU(cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device));
  CU(cuDeviceGetAttribute(&shared, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, device));
  most_shared_bytes_ = std::min(static_cast<unsigned>(shared), static_cast<unsigned>(random.between(48, 96)) << 10);
  CU(cuModuleLoad(&module_, (folder + "/kernels.fatbin").c_str()));
  if (major >= 9 && cuModuleLoad(&module_90_, (folder + "/kernels90.fatbin").c_str()) != CUDA_SUCCESS) module_90_ = nullptr;
  for (std::size_t i = 0; i < kStepKinds; ++i) {
    const Row& row = kRows[i];
    if ((row.is_9_0 && module_90_ == nullptr) || row.local_bytes > most_local_bytes) continue;
    CU(cuModuleGetFunction(&functions_[i], row.is_9_0 ? module_90_ : module_, row.name));
  }
  add_all_ = function("add_all");
  CU(cuFuncSetAttribute(function(StepKind::dynamic), CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, static_cast<int>(most_shared_bytes_)));
}

CUfunction StepKernels::function(const char* name) const {
  CUfunction found = nullptr;
  CU(cuModuleGetFunction(&found, module_, name));
  return found;
}

// Cooperative grids and clusters are so small that they are on any device as a whole.
Step StepKernels::choose(StepKind kind, unsigned count, Random& random, unsigned most_ticks) const {
  const unsigned tiles = count / kTile;
  Step step;
  step.kind = kind;
  step.salt = random.word();
  step.stride = 1 + static_cast<unsigned>(random.below(count - 1));
  step.grid = static_cast<unsigned>(random.one_in(3) ? tiles : random.of_any_size(tiles));
  if (!row_of(kind).is_tiled) step.block = 32u << random.below(5);
  if (most_ticks != 0 && random.one_in(4)) step.ticks = static_cast<unsigned>(random.of_any_size(most_ticks));
  step.has_priority = random.one_in(64);
  if (kind == StepKind::dependent) step.tells_early = random.below(2) == 0;
  if (kind == StepKind::cooperative) step.grid = 1 + static_cast<unsigned>(random.below(4));
  if (kind == StepKind::dynamic) {
    const bool is_large = random.one_in(4);
    step.words = static_cast<unsigned>(random.of_any_size((is_large ? most_shared_bytes_ : 8u << 10) / sizeof(Word)));
  }
  if (kind == StepKind::cluster) {
    step.words = tiles % 4 == 0 && random.below(2) == 0 ? 4 : tiles % 2 == 0 ? 2 : 1;
    step.grid = tiles;
  }
  return step;
}

void with_node_arguments(const Step& step, const ChainMemory& memory, const std::function<void(void**)>& use) {
  ChainMemory m = memory;
  Step s = step;
  switch (step.kind) {
    case StepKind::brief: {
      void* arguments[] = {&m.to, &m.from, &m.count, &s.stride, &s.salt, &s.ticks};
      return use(arguments);
    }
    case StepKind::few: return with_wide_arguments<kFewSalts>(step, memory, use);
    case StepKind::many: return with_wide_arguments<kManySalts>(step, memory, use);
    case StepKind::more: return with_wide_arguments<kMoreSalts>(step, memory, use);
    case StepKind::much: return with_wide_arguments<kMuchSalts>(step, memory, use);
    case StepKind::most: return with_wide_arguments<kMostSalts>(step, memory, use);
    default: throw std::logic_error("no step of nodes");
  }
}

void StepKernels::launch_kernel(const Step& step, unsigned shared_bytes, CUstream stream, void** arguments) const {
  const CUfunction kernel = function(step.kind);
  std::array<CUlaunchAttribute, 3> attributes{};
  unsigned used = 0;
  if (step.has_priority) attributes[used++].id = CU_LAUNCH_ATTRIBUTE_PRIORITY;
  if (step.kind == StepKind::dependent) {
    attributes[used].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    attributes[used++].value.programmaticStreamSerializationAllowed = 1;
  }
  if (step.kind == StepKind::cluster) {
    attributes[used].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    attributes[used].value.clusterDim.x = step.words;
    attributes[used].value.clusterDim.y = attributes[used].value.clusterDim.z = 1;
    ++used;
  }
  if (step.kind == StepKind::cooperative) {
    if (used == 0) {
      CU(cuLaunchCooperativeKernel(kernel, step.grid, 1, 1, step.block, 1, 1, shared_bytes, stream, arguments));
      return;
    }
    attributes[used].id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
    attributes[used++].value.cooperative = 1;
  }
  if (used == 0) {
    CU(cuLaunchKernel(kernel, step.grid, 1, 1, step.block, 1, 1, shared_bytes, stream, arguments, nullptr));
    return;
  }
  CUlaunchConfig config{};
  config.gridDimX = step.grid;
  config.blockDimX = step.block;
  config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1;
  config.sharedMemBytes = shared_bytes;
  config.hStream = stream;
  config.attrs = attributes.data();
  config.numAttrs = used;
  CU(cuLaunchKernelEx(&config, kernel, arguments, nullptr));
}

unsigned StepKernels::launch(const Step& step, const ChainMemory& memory, CUstream stream) const {
  ChainMemory m = memory;
  Step s = step;
  unsigned tells_early = step.tells_early ? 1 : 0;
  switch (step.kind) {
    case StepKind::brief:
    case StepKind::few:
    case StepKind::many:
    case StepKind::more:
    case StepKind::much:
    case StepKind::most: with_node_arguments(step, memory, [&](void** arguments) { launch_kernel(step, 0, stream, arguments); }); return 1;
    case StepKind::dynamic: {
      const auto bytes = static_cast<unsigned>(step.words * sizeof(Word));
      void* arguments[] = {&m.to, &m.from, &m.count, &s.salt, &s.words};
      launch_kernel(step, bytes, stream, arguments);
      return 1;
    }
    case StepKind::sum: {
      CU(cuMemsetD32Async(m.sum, 0, sizeof(Sum) / sizeof(Word), stream));
      void* sources[] = {&m.from, &m.count, &s.salt, &m.sum};
      CU(cuLaunchKernel(add_all_, step.grid, 1, 1, step.block, 1, 1, 0, stream, sources, nullptr));
      void* arguments[] = {&m.to, &m.from, &m.count, &m.sum};
      launch_kernel(step, 0, stream, arguments);
      return 3;
    }
    case StepKind::cooperative: {
      void* arguments[] = {&m.to, &m.from, &m.scratch, &m.count, &s.stride, &s.salt};
      launch_kernel(step, 0, stream, arguments);
      return 1;
    }
    case StepKind::dependent: {
      void* arguments[] = {&m.to, &m.from, &m.count, &s.stride, &s.salt, &s.ticks, &tells_early};
      launch_kernel(step, 0, stream, arguments);
      return 1;
    }
    case StepKind::cluster: {
      void* arguments[] = {&m.to, &m.from, &s.salt};
      launch_kernel(step, 0, stream, arguments);
      return 1;
    }
    case StepKind::tile:
    case StepKind::local_64:
    case StepKind::local_512:
    case StepKind::local_4096:
    case StepKind::local_32768:
    case StepKind::warp:
    case StepKind::floats: {
      void* arguments[] = {&m.to, &m.from, &m.count, &s.salt};
      launch_kernel(step, 0, stream, arguments);
      return 1;
    }
  }
  return 0;
}

}  // namespace mpsshim::soak
