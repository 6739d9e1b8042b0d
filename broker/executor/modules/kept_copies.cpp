// SPDX-License-Identifier: Apache-2.0
// What of a session's variables is out of date, and what comes of its copies.
#include <algorithm>
#include <cstring>

#include "broker/executor/modules/session_variables.hpp"

namespace mpsshim::broker {

namespace {
constexpr std::size_t kMostPieces = 64;  // each is a call of the driver, and whoever makes them has something else to look at
}

// What may have changed it, so far. Whoever has its address counts only once somebody may.
std::uint64_t SessionVariables::count(const Module& module, std::size_t variable) const {
  const VariableChanges& changes = *module.image->changes;
  return changes.count(variable) + (changes.is_out(variable) ? anythings_.load(std::memory_order_acquire) : 0);
}

// Counts of single variables are raised before `changes`: what is counted in `at` is seen in them. A count that is ahead of it is of work that was
// issued before it was counted, so whoever looks at the streams now finds it under way, and nothing is copied.
SessionVariables::Copies SessionVariables::copies(std::size_t most_bytes) {
  const std::lock_guard lock(mutex_);
  Copies copies;
  KeptVariablesFile* const file = file_.load(std::memory_order_relaxed);
  if (file == nullptr || is_broken_ || file->is_exact()) return copies;
  if (modules_.empty() && !table_of(*file).empty()) return copies;  // an earlier executor's, not asked for yet
  copies.at = file->changes.load(std::memory_order_acquire);
  copies.layout = layout_;
  for (std::size_t m = 0; m < modules_.size() && copies.is_last; ++m) {
    const Module& module = modules_[m];
    std::size_t offset = module.is_refused ? kMaxKeptBytes : 0;
    const std::span<const KeptVariable> table = table_of(*file);
    auto entry = std::ranges::find(table, module.id.value, &KeptVariable::module);
    for (std::size_t v = 0; offset == 0 && v < module.kept.size() && entry != table.end(); ++v, ++entry) {
      const std::uint64_t now = count(module, v);
      if (module.kept[v] == now) continue;
      const std::size_t begun = module.begun == v && module.begun_count == now ? module.begun_bytes : 0;
      const std::size_t rest = std::min<std::size_t>(entry->size_bytes - begun, most_bytes - copies.bytes);
      if (rest == 0 || copies.pieces.size() == kMostPieces) {
        copies.is_last = false;
        break;
      }
      copies.pieces.push_back({entry->address + begun, rest, copies.bytes, entry->offset + begun, m, v, now, begun + rest});
      copies.bytes = std::min(most_bytes, copies.bytes + (rest + 15) / 16 * 16);
      if (begun + rest < entry->size_bytes) copies.is_last = false;
    }
    copies.images.push_back(module.image);
  }
  if (copies.pieces.empty()) file->kept_at.store(copies.at, std::memory_order_release);  // of none of these: a module has gone, or a count
  return copies;
}

std::size_t SessionVariables::stale_bytes() const {
  const std::lock_guard lock(mutex_);
  std::size_t bytes = 0;
  for (const Module& module : modules_) {
    for (std::size_t v = 0; !module.is_refused && v < module.kept.size(); ++v) {
      if (module.kept[v] != count(module, v)) bytes += module.image->variables[v].size_bytes;
    }
  }
  return bytes;
}

bool SessionVariables::keep(const Copies& copies, std::span<const std::byte> contents) {
  const std::lock_guard lock(mutex_);
  KeptVariablesFile& file = *file_.load(std::memory_order_relaxed);
  if (layout_ != copies.layout || file.changes.load(std::memory_order_acquire) != copies.at) return false;
  file.kept_at.store(kNeverKept, std::memory_order_release);
  for (const Piece& piece : copies.pieces) {
    std::memcpy(file.contents + piece.offset, contents.data() + piece.at, piece.size_bytes);
    Module& module = modules_[piece.module];
    if (piece.end == module.image->variables[piece.variable].size_bytes) {
      module.kept[piece.variable] = piece.count;
      const auto entry = std::ranges::find(file.variable, module.id.value, &KeptVariable::module) + static_cast<std::ptrdiff_t>(piece.variable);
      entry->loaded_hash = module.image->variables[piece.variable].loaded_hash;
    } else {
      module.begun = piece.variable;
      module.begun_bytes = piece.end;
      module.begun_count = piece.count;
    }
  }
  if (copies.is_last) file.kept_at.store(copies.at, std::memory_order_release);
  return true;
}

}  // namespace mpsshim::broker
