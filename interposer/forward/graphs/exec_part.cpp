// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/graphs/exec_part.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "interposer/local/acting_session.hpp"

namespace mpsshim::interposer::forward {

namespace {

constexpr std::size_t kDescriptionPieceBytes = 48 << 10;  // of a description in one record: well below the longest, so that several fit in the ring

// Ids of parts; the objects are GraphExec's.
struct Taken {};
proto::HandleTable<proto::HandleKind::graph_exec, Taken>& part_ids() {
  using Ids = proto::HandleTable<proto::HandleKind::graph_exec, Taken>;
  return PerSession<Ids>::get([] { return new Ids(ActingSession::index()); });
}

}  // namespace

std::uint32_t ExecPart::add(const NodeWork& work, std::span<const std::uint32_t> before) {
  const auto number = static_cast<std::uint32_t>(node_recipes_.size());
  encode(work, number, true, before, description_);
  node_recipes_.push_back(0);
  return number;
}

CUresult ExecPart::instantiate(std::uint64_t flags, std::uint32_t& failed_node) {
  failed_node = static_cast<std::uint32_t>(node_recipes_.size());
  id_ = part_ids().add(std::make_unique<Taken>());
  if (id_ == proto::GraphExecId{}) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult error = post_description();
  return error == CUDA_SUCCESS ? call_instantiate(flags, failed_node) : error;
}

CUresult ExecPart::post_description() {
  const std::vector<std::byte> bytes = std::exchange(description_, {});
  for (std::size_t at = 0; at < bytes.size(); at += kDescriptionPieceBytes) {
    const auto piece = std::span(bytes).subspan(at, std::min(kDescriptionPieceBytes, bytes.size() - at));
    const CUresult error =
        session().channel().post<proto::GraphNodesRecord>({}, piece.size(), [&](proto::GraphNodesRecord& record, std::byte* trailing, Place place) {
          record.exec = id_;
          std::memcpy(trailing, piece.data(), piece.size());
          recipes_.push_back(session().recipes().add(recipe_of({}, record, place.position, piece)));
        });
    if (error != CUDA_SUCCESS) return error;
  }
  return CUDA_SUCCESS;
}

CUresult ExecPart::call_instantiate(std::uint64_t flags, std::uint32_t& failed_node) {
  proto::GraphInstantiateRecord record{};
  record.exec = id_;
  record.flags = flags & CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
  record.node_count = failed_node;
  proto::GraphInstantiateReply reply{};
  Answer answer;
  RecipeBook::Key key = 0;
  if (const CUresult error = session().call_kept(record, {}, reply, answer, key); error != CUDA_SUCCESS) {
    if (answer.payload.size() >= sizeof reply) std::memcpy(&reply, answer.payload.data(), sizeof reply);
    failed_node = reply.failed_node;
    return error;
  }
  recipes_.push_back(key);
  return CUDA_SUCCESS;
}

// The recipe of the change before this one is needed by launches between the two, until the executor has read this one.
CUresult ExecPart::change(std::uint32_t node, const NodeWork& work, bool is_enabled) {
  std::vector<std::byte> bytes;
  encode(work, node, is_enabled, {}, bytes);
  return session().channel().post<proto::GraphSetNodesRecord>(
      {}, bytes.size(), [&](proto::GraphSetNodesRecord& record, std::byte* trailing, Place place) {
        record.exec = id_;
        std::memcpy(trailing, bytes.data(), bytes.size());
        session().end_recipe(node_recipes_[node], place);
        node_recipes_[node] = session().recipes().add(recipe_of({}, record, place.position, bytes));
      });
}

CUresult ExecPart::launch(Stream& stream) {
  return post_work<proto::GraphLaunchRecord>(stream, 0, [&](proto::GraphLaunchRecord& record, std::byte*) { record.exec = id_; });
}

CUresult ExecPart::destroy() {
  if (id_ == proto::GraphExecId{}) return CUDA_SUCCESS;
  const CUresult error =
      session().channel().post<proto::GraphExecDestroyRecord>({}, 0, [&](proto::GraphExecDestroyRecord& record, std::byte*, Place place) {
        record.exec = id_;
        for (const RecipeBook::Key key : recipes_) session().end_recipe(key, place);
        for (const RecipeBook::Key key : node_recipes_) session().end_recipe(key, place);
      });
  (void)part_ids().take(id_);
  return error;
}

}  // namespace mpsshim::interposer::forward
