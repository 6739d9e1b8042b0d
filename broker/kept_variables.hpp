// SPDX-License-Identifier: Apache-2.0
// What the variables of a session's modules held when nothing that may write to them was under way: a memory file that the executor makes and
// writes and the control process keeps, so that it outlives the executor. No client maps it.
//
// `changes` counts what may have changed a variable; it is raised, behind the progress table's `issued`, before the driver gets the work.
// `kept_at` is the count that the contents belong to. Contents are put back only where both are equal: what was issued after the copy was made,
// or a file that was being written when the executor died, makes them worthless, never stale.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace mpsshim::broker {

inline constexpr std::uint64_t kKeptLayout = 4;                       // of what follows: an executor takes over files of its own layout alone
inline constexpr std::uint32_t kMaxKeptVariables = 4096;              // of one session
inline constexpr std::size_t kMaxKeptBytes = std::size_t{256} << 20;  // of one session; what was never written takes no memory
inline constexpr std::uint64_t kNeverKept = ~std::uint64_t{0};

struct KeptVariable {
  std::uint64_t module = 0;  // proto::ModuleId
  std::uint64_t image = 0;
  std::uint64_t copy = 0;  // of the image, by the load log's numbers
  std::uint64_t address = 0;
  std::uint64_t size_bytes = 0;  // 0: the module's variables are not kept (too many, too large, or not all known)
  std::uint64_t offset = 0;      // of the contents
  std::uint64_t is_out = 0;      // 1: any kernel may have its address (VariableChanges)
  std::uint64_t loaded_hash = 0;   // LoadedImage::Variable's
  std::uint64_t is_looked_up = 0;  // 1: the same
};

struct KeptVariablesFile {
  std::uint64_t layout;
  std::atomic<std::uint64_t> changes;
  std::atomic<std::uint64_t> kept_at;
  std::atomic<std::uint32_t> count;  // written with kept_at == kNeverKept
  KeptVariable variable[kMaxKeptVariables];
  std::byte contents[kMaxKeptBytes];

  [[nodiscard]] bool is_exact() const { return kept_at.load(std::memory_order_acquire) == changes.load(std::memory_order_acquire); }
};
// Empty where it does not lie within `contents`.
[[nodiscard]] inline std::span<const std::byte> contents_of(const KeptVariable& variable, std::span<const std::byte> contents) {
  if (variable.offset > contents.size() || variable.size_bytes > contents.size() - variable.offset) return {};
  return contents.subspan(variable.offset, variable.size_bytes);
}
[[nodiscard]] inline std::span<const KeptVariable> table_of(const KeptVariablesFile& file) {
  return std::span(file.variable).first(std::min(file.count.load(std::memory_order_acquire), kMaxKeptVariables));
}
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free);

}  // namespace mpsshim::broker
