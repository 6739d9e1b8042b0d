// SPDX-License-Identifier: Apache-2.0
// How a stream's launches are issued: in chains, singly with their attributes, as graphs, or by a quiet window.
#include "broker/executor/streams/stream_queue.hpp"

#include <algorithm>
#include <array>
#include <mutex>
#include <utility>

#include "broker/executor/graphs/session_graph.hpp"
#include "broker/executor/operations/launch_attributes.hpp"
#include "broker/executor/window/quiet_window.hpp"

namespace mpsshim::broker {

std::uint32_t local_bytes_of(const StreamOp& op) {
  if (const auto* launch = std::get_if<LaunchOp>(&op)) return launch->function->local_bytes;
  const auto* graph = std::get_if<GraphOp>(&op);
  return graph != nullptr ? graph->graph->local_bytes() : 0;
}

bool may_print(const StreamOp& op) {
  if (const auto* launch = std::get_if<LaunchOp>(&op)) return launch->function->prints;
  const auto* graph = std::get_if<GraphOp>(&op);
  return graph != nullptr && graph->graph->may_print();
}

std::atomic<std::uint32_t>& StreamQueue::local_bytes_high_water() const {
  return stream_->green != nullptr ? stream_->green->local_bytes_high_water() : context_.parts.local_bytes_high_water;
}

std::size_t StreamQueue::chained_launches_at_head() const {
  // Aside it ends in front of what has to leave first: has_left_for().
  const std::uint32_t most_local_bytes = aside_ ? 0 : local_bytes_high_water().load(std::memory_order_relaxed);
  const std::size_t most = account_.longest_chain();
  // Whether a cluster has room on so few multiprocessors the driver says where it is launched by itself.
  const std::uint32_t most_attributes = stream_->green ? 0 : kMaxLaunchAttributes;
  if (context_.parts.window.is_very_long(std::get<LaunchOp>(ops_.front()).function->handle)) return 0;  // one at a time
  std::size_t count = 0;
  for (const StreamOp& op : ops_) {
    const auto* launch = std::get_if<LaunchOp>(&op);
    if (launch == nullptr || !launch->may_be_in_chain() || launch->attribute_count > most_attributes) break;
    if (launch->function->local_bytes > most_local_bytes || ++count == most) break;
  }
  return count;
}

// How many launches go into the next chain; 0: the first may be in none.
std::size_t StreamQueue::chain_at_head() const {
  const std::size_t run = chained_launches_at_head();
  if (!is_short_of_time_) return chain_length(run);
  std::array<const void*, kPieceLook> functions;
  const std::size_t looked_at = std::min(run, functions.size());
  for (std::size_t i = 0; i < looked_at; ++i) functions[i] = std::get<LaunchOp>(ops_[i]).function;
  return piece_length(run, std::span(functions.data(), looked_at));
}

// Launches that may be in a chain try to; one that may not, or whose chain the driver has refused, is issued by itself.
void StreamQueue::issue_launches() {
  if (issue_singly_ == 0) {
    const std::size_t length = chain_at_head();
    if (length > 0 && issue_chain(length)) return;
    issue_singly_ = std::max<std::size_t>(length, 1);
  }
  --issue_singly_;
  context_.parts.window.note_launch(stream_->progress_index, std::get<LaunchOp>(ops_.front()).function->handle);
  note_kernel(account_.issued() + 1, *std::get<LaunchOp>(ops_.front()).function);
  begin_kernel(*std::get<LaunchOp>(ops_.front()).function);
  if (std::get<LaunchOp>(ops_.front()).function->prints) note_output();
  context_.check(launch(std::get<LaunchOp>(ops_.front())), "cuLaunchKernel");
  account_.submitted(1);
  count_launches(1, false);
  pop_head();
}

// What the words behind so many launches may tell: a fence, or that of a record whose event takes no time, which comes behind them.
std::optional<std::uint32_t> StreamQueue::fence_behind(std::size_t launches) {
  if (launches >= ops_.size()) return std::nullopt;
  const auto* fence = std::get_if<FenceOp>(&ops_[launches]);
  const auto* record = std::get_if<RecordOp>(&ops_[launches]);
  const bool is_told = fence != nullptr || (record != nullptr && record->has_fence && !record->takes_time() && !may_owe(*record));
  if (!is_told || prefers_memory_operations()) return std::nullopt;
  return fence != nullptr ? fence->value : record->fence_value;
}

// The fence behind the run goes with its last chain, unless memory operations bring it sooner; progress that is due goes with any. So does
// that of a chain behind which nothing is queued, unless a fence will follow soon, or words are under way: written later, by a graph of its own,
// it would hold up the streams on the same connection until the chain has ended. And where there is no graph without words at the moment, one with
// them will do.
bool StreamQueue::issue_chain(std::size_t length) {
  const std::optional<std::uint32_t> fence = fence_behind(length);
  std::array<const LaunchOp*, kMaxChain> launches;
  for (std::size_t i = 0; i < length; ++i) launches[i] = &std::get<LaunchOp>(ops_[i]);
  const auto operations = static_cast<std::uint32_t>(length + (fence ? 1 : 0));
  const std::uint32_t before = account_.issued();
  context_.parts.window.note_launch(stream_->progress_index, launches[length - 1]->function->handle);
  note_kernel(before + static_cast<std::uint32_t>(length), *launches[length - 1]->function);
  begin(operations);
  note_launches(std::span(launches.data(), length));
  const bool is_last = length == ops_.size() && !rhythm_.is_short() && !may_owe_progress();
  const bool has_words = fence || account_.is_progress_due() || is_last || always_has_words(length) || !chains_.ensure({length, false});
  if (has_words && !fence) note_rhythm();
  const WordWrites writes = words(fence);
  const auto is_refused = [&] {
    account_.take_back(before);  // the table may stay ahead for the moment: the launches follow at once
    return false;
  };
  if (!chains_.ensure({length, has_words})) return is_refused();  // no call of the driver's
  const ScopedCall call(context_.session, "cuGraphLaunch", {"launches", length});
  if (!chains_.launch(handle(), std::span(launches.data(), length), has_words ? &writes : nullptr,
                      is_short_of_time_ ? Graphs::several : Graphs::one)) {
    return is_refused();
  }
  const DrawnArrows drawn = drawn_arrows();
  account_.submitted(1);
  count_launches(static_cast<std::uint32_t>(length), true);
  if (has_words) note_words();
  if (fence && std::holds_alternative<FenceOp>(ops_[length])) account_.end_run();
  for (std::size_t i = 0; i < length; ++i) pop_head();
  if (!fence) return true;
  if (auto* record = std::get_if<RecordOp>(&ops_.front())) {
    record->has_fence = false;
    issue_record(*record);
  }
  pop_head();
  return true;
}

void StreamQueue::count_launches(std::uint32_t launches, bool are_chained) {
  StreamProgress& counts = word();  // written by nobody else
  counts.launches.store(counts.launches.load(std::memory_order_relaxed) + launches, std::memory_order_relaxed);
  if (are_chained) counts.chained.store(counts.chained.load(std::memory_order_relaxed) + launches, std::memory_order_relaxed);
  count_for_session(launches);
}

void StreamQueue::count_for_session(std::uint32_t launches) {
  std::atomic<std::uint64_t>& count = context_.parts.counts[context_.counts].launches;  // written by nobody else
  count.store(count.load(std::memory_order_relaxed) + launches, std::memory_order_relaxed);
}

CUresult StreamQueue::launch(const LaunchOp& launch) {
  const ScopedCall call(context_.session, "cuLaunchKernel");
  const DrawnArrows drawn = drawn_arrows();
  const std::lock_guard lock(issue_lock());
  if (launch.references != nullptr) [[unlikely]] {
    const CUresult result = launch.references->references->apply(driver(), *launch.references->bindings);
    if (result != CUDA_SUCCESS) return result;
  }
  if (launch.attribute_count > 0 && !launch.has_cluster_of_function()) return launch_with_attributes(launch);
  void** parameters = parameter_addresses(launch, addresses_);
  const CUfunction function = launch.function->handle;
  const auto& [grid_x, grid_y, grid_z] = launch.grid;
  const auto& [block_x, block_y, block_z] = launch.block;
  if (launch.is_multi_device) {
    CUDA_LAUNCH_PARAMS only{function, grid_x, grid_y, grid_z, block_x, block_y, block_z, launch.shared_bytes, handle(), parameters};
    return driver()->cuLaunchCooperativeKernelMultiDevice(&only, 1, 0);
  }
  if (launch.is_cooperative) {
    return driver()->cuLaunchCooperativeKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, launch.shared_bytes, handle(),
                                               parameters);
  }
  return driver()->cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, launch.shared_bytes, handle(), parameters, nullptr);
}

CUresult StreamQueue::launch_with_attributes(const LaunchOp& launch) {
  std::vector<CUlaunchAttribute> attributes(launch.attribute_count);
  std::memcpy(attributes.data(), launch.data + launch.parameter_bytes, attributes.size() * sizeof(CUlaunchAttribute));
  for (CUlaunchAttribute& attribute : attributes) {
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_PRIORITY) attribute.value.priority = context_.priority(attribute.value.priority);
  }
  if (launch.is_cooperative) {
    CUlaunchAttribute cooperative{};
    cooperative.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
    cooperative.value.cooperative = 1;
    attributes.push_back(cooperative);
  }
  CUlaunchConfig config{};
  config.gridDimX = launch.grid[0];
  config.gridDimY = launch.grid[1];
  config.gridDimZ = launch.grid[2];
  config.blockDimX = launch.block[0];
  config.blockDimY = launch.block[1];
  config.blockDimZ = launch.block[2];
  config.sharedMemBytes = launch.shared_bytes;
  config.hStream = handle();
  config.attrs = attributes.data();
  config.numAttrs = static_cast<unsigned>(attributes.size());
  return driver()->cuLaunchKernelEx(&config, launch.function->handle, parameter_addresses(launch, addresses_), nullptr);
}

CUresult StreamQueue::launch_graph(const GraphOp& op) {
  const ScopedCall call(context_.session, "cuGraphLaunch");
  const DrawnArrows drawn = drawn_arrows();
  return op.graph->launch(op, handle(), issue_lock());
}

void StreamQueue::issue_graph(const GraphOp& op) {
  context_.parts.window.note_launch(stream_->progress_index, op.graph->identity());
  if (const LoadedFunction* kernel = op.graph->last_kernel()) {
    note_kernel(account_.issued() + 1, *kernel);
  } else {
    note_touch(account_.issued() + 1);
  }
  begin(1);
  if (op.graph->may_write(context_.variables)) {
    note_writer(account_.issued());
    op.graph->note_writes(context_.variables);
  }
  if (op.graph->may_print()) note_output();
  context_.check(launch_graph(op), "cuGraphLaunch");
  account_.submitted(1);
  count_for_session(1);
  op.graph->note_issued(op);
}

std::shared_ptr<StreamOp> StreamQueue::take_window_launch() {
  window_op_ = std::make_shared<StreamOp>(std::move(ops_.front()));  // what its cost is reckoned by stays behind
  if (auto* launch = std::get_if<LaunchOp>(window_op_.get())) launch->own();
  pop_head();
  notes.arrows.set_aside(account_.issued() + 1);
  ++total_.records;  // until window_launch_done()
  if (may_print(*window_op_)) note_output();
  const auto* graph = std::get_if<GraphOp>(window_op_.get());
  window_graph_writes_ = graph != nullptr && graph->graph->may_write(context_.variables);
  in_window_ = true;
  return window_op_;
}

// The queue stands still, so the worker changes nothing that is read here; its account is settled by window_launch_done().
void StreamQueue::launch_in_window(const StreamOp& op) {
  const auto* plain = std::get_if<LaunchOp>(&op);
  const LoadedFunction* kernel = plain != nullptr ? plain->function : std::get<GraphOp>(op).graph->last_kernel();
  note_kernel(account_.issued() + 1, *kernel);
  word().issued.store(account_.issued() + 1, std::memory_order_release);
  if (window_graph_writes_ || (plain != nullptr && context_.variables.may_write(*kernel))) note_writer(account_.issued() + 1);
  if (plain != nullptr) context_.variables.note_launch(*kernel);
  if (window_graph_writes_) context_.variables.note_anything();  // its nodes are the worker's to read
  const CUresult result =
      context_.parts.window.sharing([&] { return plain != nullptr ? launch(*plain) : launch_graph(std::get<GraphOp>(op)); });
  if (context_.check(result, plain != nullptr ? "cuLaunchKernel" : "cuGraphLaunch") != CUDA_SUCCESS) return;
  std::atomic<std::uint32_t>& high_water = local_bytes_high_water();
  std::uint32_t known = high_water.load(std::memory_order_relaxed);
  while (known < local_bytes_of(op) && !high_water.compare_exchange_weak(known, local_bytes_of(op))) {
  }
}

void StreamQueue::window_launch_done() {
  begin(1);
  account_.submitted(1);
  count_for_session(1);
  --total_.records;
  in_window_ = false;
  if (const auto* graph = std::get_if<GraphOp>(window_op_.get())) graph->graph->note_issued(*graph);
  window_op_ = nullptr;
}

}  // namespace mpsshim::broker
