// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/memory/managed_blocks.hpp"

#include <utility>
#include <vector>

#include "interposer/forward/begin.hpp"
#include "interposer/forward/memory/managed_memory.hpp"
#include "interposer/forward/memory/pinned.hpp"
#include "interposer/local/acting_session.hpp"
#include "proto/managed_variables.hpp"

namespace mpsshim::interposer::forward {

namespace {

constexpr std::uint64_t kVariableAlignment = 256;  // no type needs more

// False: the table is damaged, or the sizes are absurd. Addresses count from 0.
bool lay_out(std::span<const std::byte> table, ManagedBlock& block) {
  std::uint64_t end = 0;
  bool fits = true;
  const bool is_whole = proto::read_managed_entries(table, [&](std::string_view name, const proto::ManagedEntry& entry) {
    fits = fits && entry.value <= UINT64_MAX / 4 - end;
    if (!fits) return;
    block.variables[std::string(name)] = {{end, entry.value}, entry.starts_as_zeroes != 0};
    end = (end + entry.value + kVariableAlignment - 1) / kVariableAlignment * kVariableAlignment;
  });
  block.memory.size_bytes = end;
  return is_whole && fits && !block.variables.empty() && end != 0;
}

std::vector<std::byte> placed_image(std::span<const std::byte> content, const ManagedBlock& block) {
  std::vector<std::byte> table;
  for (const auto& [name, variable] : block.variables) {
    proto::append_managed_entry(table, name, variable.range.address, variable.starts_as_zeroes);
  }
  const proto::PlacedImageHeader header{proto::PlacedImageHeader::kMagic, static_cast<std::uint32_t>(block.variables.size()),
                                        static_cast<std::uint32_t>(table.size())};
  const auto start = std::as_bytes(std::span(&header, 1));
  std::vector<std::byte> placed(start.begin(), start.end());
  placed.insert(placed.end(), table.begin(), table.end());
  placed.insert(placed.end(), content.begin(), content.end());
  return placed;
}

void release(void* memory) {
  if (ManagedMemory::instance().release(reinterpret_cast<std::uintptr_t>(memory)) == CUDA_SUCCESS) return;
  (void)PinnedMemory::instance().release(memory);
}

}  // namespace

ManagedBlocks& ManagedBlocks::instance() {
  return PerSession<ManagedBlocks>::get([] { return new ManagedBlocks(); });
}

std::unique_ptr<ManagedBlock> ManagedBlocks::take(std::uint64_t original) {
  const std::lock_guard lock(mutex_);
  const auto found = idle_.find(original);
  return found != idle_.end() ? std::move(idle_.extract(found).mapped()) : nullptr;
}

CUresult ManagedBlocks::make(std::uint64_t original, std::span<const std::byte> content, std::span<const std::byte> table,
                             std::unique_ptr<ManagedBlock>& block) {
  auto made = std::make_unique<ManagedBlock>();
  made->original = original;
  if (!lay_out(table, *made)) return CUDA_ERROR_INVALID_IMAGE;
  std::vector<AddressRange> ranges;
  for (const auto& [name, variable] : made->variables) ranges.push_back(variable.range);
  void* memory = nullptr;
  if (const CUresult error = ManagedMemory::instance().allocate_variables(made->memory.size_bytes, std::move(ranges), memory);
      error != CUDA_SUCCESS) {
    return error;
  }
  made->memory.address = reinterpret_cast<std::uintptr_t>(memory);
  for (auto& [name, variable] : made->variables) variable.range.address += made->memory.address;
  const CUresult error = session().upload_image(placed_image(content, *made), made->image);
  if (error != CUDA_SUCCESS) {
    release(memory);
    return error;
  }
  block = std::move(made);
  return CUDA_SUCCESS;
}

void ManagedBlocks::give_back(std::unique_ptr<ManagedBlock> block) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t original = block->original;
  idle_.emplace(original, std::move(block));
}

}  // namespace mpsshim::interposer::forward
