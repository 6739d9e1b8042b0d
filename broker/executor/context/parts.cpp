// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/context/parts.hpp"
#include "broker/executor/base/empty_kernel.hpp"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "broker/executor/chains/chain.hpp"
#include "broker/executor/chains/cluster_trial.hpp"
#include "broker/executor/chains/flight_limit.hpp"
#include "broker/executor/link/control_link.hpp"
#include "broker/log.hpp"

namespace mpsshim::broker {

namespace {

// Any GPU since Maxwell. The writer (word_writes.hpp): what ran before it in its stream is seen by whoever sees its words. The variable is
// nobody's: the block of device memory in which the driver puts it is where clients' variables go later, so that block is at the same place
// in every life, whatever else the driver has taken memory for by the time they come.
constexpr char kTarget[] = R"(
.version 6.0
.target sm_50
)";
static_assert(kMostNodeParameterBytes == 4'096, "as in the text");
constexpr char kOwnPtx[] = R"(
.address_size 64
.visible .global .align 4 .u32 mpsshim_first_variable;
.visible .entry mpsshim_nop(.param .align 8 .b8 unread[4096])
{
  ret;
}
.visible .entry mpsshim_write_words(.param .u64 fence, .param .u64 progress, .param .u32 fence_value, .param .u32 progress_value)
{
  .reg .u64 %rd<3>;
  .reg .u32 %r<3>;
  .reg .pred %p;
  ld.param.u64 %rd1, [fence];
  ld.param.u64 %rd2, [progress];
  ld.param.u32 %r1, [fence_value];
  ld.param.u32 %r2, [progress_value];
  membar.sys;
  setp.eq.u64 %p, %rd1, 0;
  @%p bra PROGRESS;
  st.volatile.global.u32 [%rd1], %r1;
  membar.sys;
PROGRESS:
  st.volatile.global.u32 [%rd2], %r2;
  ret;
}
)";
// On devices with clusters: for cluster_trial.hpp.
constexpr char kTargetWithClusters[] = R"(
.version 7.8
.target sm_90
)";
constexpr char kClusterPtx[] = R"(
.visible .entry mpsshim_cluster_width(.param .u64 word)
{
  .reg .u64 %rd<2>;
  .reg .u32 %r<2>;
  ld.param.u64 %rd1, [word];
  mov.u32 %r1, %cluster_nctaid.x;
  st.volatile.global.u32 [%rd1], %r1;
  ret;
}
.visible .entry mpsshim_reset(.param .align 8 .b8 unread[4096])
{
  ret;
}
)";

}  // namespace

ExecutorParts::ExecutorParts(const ExecutorInput& input)
    : ExecutorCore(input),
      function_names(input.names),
      streams(input.driver, progress,
              [this](int priority) { return control.note(LogKind::stream, static_cast<std::uint64_t>(static_cast<std::int64_t>(priority))); }),
      events(input.driver),
      completion(pressure),
      interrupts(input.driver, input.context, [this](std::uint64_t session) { completion.look(session); }),
      chain_pool(*this),
      sides(*this),
      output(input.control),
      shares(*this, descriptors),
      persisting_cache(input.driver, input.device),
      host_clock(input.driver, events, issue_lock),
      variables(input.driver, input.faults, progress, issue_lock),
      first_in_flight(FlightLimit::kFirst) {}

class OwnKernels {
 public:
  [[nodiscard]] static CUresult load(const Driver& driver, CUmodule& module, bool has_clusters) {
    const std::string text = fmt::format("{}{}{}", has_clusters ? kTargetWithClusters : kTarget, kOwnPtx, has_clusters ? kClusterPtx : "");
    return driver->cuModuleLoadData(AddressKey(), &module, text.c_str());
  }
};

CUresult ExecutorParts::start() {
  CUmodule module = nullptr;
  int has_clusters = 0;
  if (driver->cuDeviceGetAttribute(&has_clusters, CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, device) != CUDA_SUCCESS) has_clusters = 0;
  CUresult result = OwnKernels::load(driver, module, has_clusters != 0);
  if (result != CUDA_SUCCESS && std::exchange(has_clusters, 0) != 0) result = OwnKernels::load(driver, module, false);
  if (result == CUDA_SUCCESS) result = driver->cuModuleGetFunction(&nop_function, module, "mpsshim_nop");
  if (result == CUDA_SUCCESS) result = driver->cuModuleGetFunction(&writer_function, module, "mpsshim_write_words");
  if (result != CUDA_SUCCESS) {
    nop_function = nullptr;
    log_warning("Launches are issued one by one, not in chains: the driver does not load the executor's own kernels: {}", driver.describe(result));
  } else {
    chain_pool.stock();
    ClusterTrialKernels kernels;
    if (has_clusters != 0 && driver->cuModuleGetFunction(&kernels.width, module, "mpsshim_cluster_width") == CUDA_SUCCESS &&
        driver->cuModuleGetFunction(&kernels.reset, module, "mpsshim_reset") == CUDA_SUCCESS) {
      try_clusters(*this, kernels);
    }
  }
  int least = 0;
  int greatest = 0;
  if (driver->cuCtxGetStreamPriorityRange(&least, &greatest) == CUDA_SUCCESS) ranks.set_range(least, greatest);
  host_clock.open();
  (void)variables.open();
  return modules.open();
}

void ExecutorParts::open_warm_stream() {
  const std::optional<std::uint32_t> word = progress.take();
  if (!word) return;
  warm_word = *word;
  if (driver->cuStreamCreate(&warm_stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS) return;
  warm_stream = nullptr;
  progress.give_back(*word);
}

void ExecutorParts::warm_launch(ChainCache& chains) {
  if (warm_stream == nullptr || writer_function == nullptr || engine_stalled.load(std::memory_order_relaxed)) return;
  std::uint32_t last = warm_launches.load(std::memory_order_relaxed);
  if (progress[warm_word].completed.load(std::memory_order_relaxed) != last) return;
  if (!warm_launches.compare_exchange_strong(last, last + 1, std::memory_order_relaxed)) return;  // another worker's is as good
  const ScopedMark mark(0, "cuGraphLaunch");
  const WordWrites words{.fence = {}, .progress = progress.completed(warm_word), .progress_value = last + 1};
  if (!chains.launch(warm_stream, {}, &words)) warm_launches.store(last, std::memory_order_relaxed);
}

void ExecutorParts::make_graph_again(std::uint64_t logged) {
  const auto [pool, shape_index] = ChainPool::LogEntry::unpacked(logged);
  if (pool == 0) return chain_pool.make_again(shape_index);
  if (pool <= sides.count()) sides[pool - 1].chains().make_again(shape_index);
}

// A graph, a kernel and words behind them in a stream of its own, which then goes: what is left in the pool or in the device's memory would not
// be there in a life that begins without having been a standby.
void ExecutorParts::warm_up() {
  const std::optional<std::uint32_t> word = progress.take();
  CUstream stream = nullptr;
  if (!word || writer_function == nullptr) return;
  const ScopedMark mark(0, "cuGraphLaunch", Patience::patient);
  if (driver->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS) {
    ChainCache chains(*this, chain_pool);
    const WordWrites words{.fence = {}, .progress = progress.completed(*word)};
    if (chains.launch(stream, {}, &words)) {
      driver->cuLaunchKernel(nop_function, 1, 1, 1, 1, 1, 1, 0, stream, EmptyKernelParameters().addresses, nullptr);
      driver->cuStreamSynchronize(stream);
    }
    // The sleepers have to fall asleep for once: their events stand behind a wait for a word that is written after that.
    std::atomic<std::uint32_t>& gate = progress[*word].completed;
    gate = 0;
    if (progress.completed(*word).await(driver, stream, 1) == CUDA_SUCCESS) interrupts.warm_up(stream, [&] { gate = 1; });
    driver->cuStreamSynchronize(stream);
    gate = 0;
    driver->cuStreamDestroy_v2(stream);
  }
  progress.give_back(*word);
}

}  // namespace mpsshim::broker
