// SPDX-License-Identifier: Apache-2.0
// Which stage a node of an executable graph is done in, and what the executor is told of each.
//
// A node that comes to have a kernel with many more parameters than it was made with may get parameters of other nodes from NVIDIA's driver (580;
// docs/experiments/2026-11-26-parameters-of-other-nodes.md). So such a stage's part is made anew, of what its nodes do now.
#include <algorithm>
#include <type_traits>
#include <utility>

#include "interposer/forward/graphs/graph_exec.hpp"

namespace mpsshim::interposer::forward {

namespace {

constexpr std::size_t kRoomOfAnyNode = 1024;  // bytes of parameters to which nodes were seen to grow rightly

std::size_t parameter_bytes(const NodeWork& work) {
  const auto* kernel = std::get_if<KernelWork>(&work);
  return kernel != nullptr ? kernel->parameters.size() : 0;
}

template <typename Work>
constexpr bool is_nothing_to_the_executor(const Work&) {
  return std::is_same_v<Work, EmptyWork> || std::is_same_v<Work, EventWaitWork> || std::is_same_v<Work, AllocationWork> ||
         std::is_same_v<Work, FreeWork>;
}

}  // namespace

GraphExec::Stage& GraphExec::stage(std::uint32_t number) {
  while (stages_.size() <= number) stages_.emplace_back();
  return stages_[number];
}

// Of a stage the executor's part is done first, then the host's.
void GraphExec::place(std::uint32_t index) {
  Entry& entry = nodes_[index];
  std::uint32_t part_stage = 0, host_stage = 0;
  for (const std::uint32_t number : entry.before) {
    const Entry& before = nodes_[number];
    // What is done last of it: a copy to pageable memory ends here, one from there ends in the executor.
    const bool ends_here = before.host_stage != kNone && (before.part_stage == kNone || before.host_stage >= before.part_stage);
    part_stage = std::max(part_stage, ends_here ? before.host_stage + 1 : before.part_stage);
    host_stage = std::max(host_stage, ends_here ? before.host_stage : before.part_stage);
  }
  const auto* copy = std::get_if<CopyWork>(entry.work.get());
  const bool is_upload = copy != nullptr && is_staged(*copy) && copy->is_from_pageable();
  const bool is_download = copy != nullptr && is_staged(*copy) && copy->is_to_pageable();
  const bool is_here = std::holds_alternative<HostWork>(*entry.work) || std::holds_alternative<MemoryOperationsWork>(*entry.work) ||
                       (copy != nullptr && is_on_host(*copy));
  if (is_download) host_stage = part_stage;
  if (is_upload) part_stage = host_stage + 1;
  if (is_here || is_upload || is_download) {
    entry.host_stage = host_stage;
    stage(host_stage).host_nodes.push_back(index);
  }
  if (!is_here) {
    entry.part_stage = part_stage;
    stage(part_stage).part_nodes.push_back(index);
  }
}

WorkRef GraphExec::part_work(const Entry& entry, const WorkRef& work) {
  return entry.staging != nullptr ? staged_copy(std::get<CopyWork>(*work), *entry.staging) : work;
}

// Stages follow each other in the stream, so only what is of one stage has to be named.
CUresult GraphExec::instantiate_parts(Failure& failure) {
  for (std::uint32_t number = 0; number < stages_.size(); ++number) {
    Stage& stage = stages_[number];
    const auto is_nothing = [&](std::uint32_t index) {
      return std::visit([](const auto& work) { return is_nothing_to_the_executor(work); }, *nodes_[index].work);
    };
    if (stages_.size() > 1 && std::all_of(stage.part_nodes.begin(), stage.part_nodes.end(), is_nothing)) continue;
    stage.part = std::make_unique<ExecPart>();
    for (const std::uint32_t index : stage.part_nodes) {
      if (const CUresult error = make_staging(nodes_[index], *nodes_[index].work); error != CUDA_SUCCESS) return error;
    }
    describe(number, *stage.part);
    std::uint32_t failed = 0;
    if (const CUresult error = stage.part->instantiate(flags_, failed); error != CUDA_SUCCESS) {
      if (failed < stage.part_nodes.size()) failure.node = nodes_[stage.part_nodes[failed]].source;
      return error;
    }
    note_room(stage);
  }
  return CUDA_SUCCESS;
}

void GraphExec::describe(std::uint32_t number, ExecPart& part) {
  for (const std::uint32_t index : stages_[number].part_nodes) {
    Entry& entry = nodes_[index];
    std::vector<std::uint32_t> before;
    for (const std::uint32_t other : entry.before) {
      if (nodes_[other].part_stage == number) before.push_back(nodes_[other].part_node);
    }
    entry.part_node = part.add(*part_work(entry, entry.work), before);
  }
}

void GraphExec::note_room(const Stage& stage) {
  for (const std::uint32_t index : stage.part_nodes) nodes_[index].room_bytes = std::max(kRoomOfAnyNode, parameter_bytes(*nodes_[index].work));
}

// Of a stage that is outgrown the executor learns when it is launched.
CUresult GraphExec::change(Entry& entry, const WorkRef& work, bool is_enabled) {
  Stage& stage = stages_[entry.part_stage];
  // The driver's graph of conditions stays the one that their handles were made for.
  stage.is_outgrown |= parameter_bytes(*work) > entry.room_bytes && conditions_ == nullptr;
  entry.is_behind = stage.is_outgrown;
  if (!entry.is_behind) {
    const CUresult error = stage.part->change(entry.part_node, *part_work(entry, work), is_enabled);
    if (error != CUDA_SUCCESS) return error;
  }
  entry.work = work;
  entry.is_enabled = is_enabled;
  return CUDA_SUCCESS;
}

CUresult GraphExec::renew_outgrown() {
  for (std::uint32_t number = 0; number < stages_.size(); ++number) {
    if (!std::exchange(stages_[number].is_outgrown, false)) continue;
    if (const CUresult error = renew(number); error != CUDA_SUCCESS) return error;
  }
  return CUDA_SUCCESS;
}

// Where there cannot be another part, the nodes of the one that is there change, as in CUDA.
CUresult GraphExec::renew(std::uint32_t number) {
  Stage& stage = stages_[number];
  auto part = std::make_unique<ExecPart>();
  describe(number, *part);
  std::uint32_t failed = 0;
  const bool is_made = part->instantiate(flags_, failed) == CUDA_SUCCESS;
  CUresult error = CUDA_SUCCESS;
  if (is_made) {
    std::swap(part, stage.part);
    note_room(stage);
    error = follow_last_launch();
  }
  (void)part->destroy();
  for (const std::uint32_t index : stage.part_nodes) {
    Entry& entry = nodes_[index];
    const bool differs = std::exchange(entry.is_behind, false) && !is_made;
    if (!differs && (!is_made || entry.is_enabled)) continue;  // nodes are made enabled
    const CUresult changed = stage.part->change(entry.part_node, *part_work(entry, entry.work), entry.is_enabled);
    if (error == CUDA_SUCCESS) error = changed;
  }
  return error;
}

// Launches of one graph follow each other: the driver sees to that for one part alone.
CUresult GraphExec::follow_last_launch() {
  if (last_launch_ != nullptr || last_stream_ == proto::StreamId{}) return CUDA_SUCCESS;
  if (const CUresult error = Events::instance().create(CU_EVENT_DISABLE_TIMING, nullptr, last_launch_); error != CUDA_SUCCESS) return error;
  return Streams::instance().with(last_stream_, [&](Stream* stream) {
    const bool is_there = stream != nullptr && !stream->is_captured.load(std::memory_order_relaxed);
    return is_there ? Events::post_record(*last_launch_, *stream) : CUDA_SUCCESS;
  });
}

// Room for the copy, new if what is there is too small.
CUresult GraphExec::make_staging(Entry& entry, const NodeWork& work) {
  const auto* copy = std::get_if<CopyWork>(&work);
  if (copy == nullptr || !is_staged(*copy)) return CUDA_SUCCESS;
  const std::size_t bytes = copy->copy.width_bytes * copy->copy.height * copy->copy.depth;
  if (entry.staging != nullptr && entry.staging->size_bytes() >= bytes) return CUDA_SUCCESS;
  auto staging = std::make_shared<GraphStaging>();
  if (const CUresult error = staging->allocate(bytes); error != CUDA_SUCCESS) return error;
  entry.staging = std::move(staging);
  return CUDA_SUCCESS;
}

}  // namespace mpsshim::interposer::forward
