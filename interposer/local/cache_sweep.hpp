// SPDX-License-Identifier: Apache-2.0
// Keeps the compile cache within its size. A file `total` says how much the entries take, so that the folder is looked through only when that is
// too much, once a day, or where the file says nothing: a miscount (of processes that write at once, of files that somebody else has removed)
// lasts a day at most. Functions of a folder that is open; any thread and process. Nothing fails: at worst the folder is looked through again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace mpsshim::interposer {

// Files that are being written begin with this; an hour later their writer is dead.
inline constexpr char kUnfinishedPrefix[] = "unfinished-";

// What a file of that size takes on a disk of 4 KiB blocks.
[[nodiscard]] constexpr std::uint64_t occupied_bytes(std::uint64_t file_bytes) { return (file_bytes + 4095) / 4096 * 4096; }

// The new total in bytes. Nullopt: it is not known (no file, a damaged one, one of yesterday, or one that another process keeps locked).
[[nodiscard]] std::optional<std::uint64_t> add_to_total(int folder, std::int64_t bytes);
void set_total(int folder, std::uint64_t bytes);

struct Swept {
  std::uint64_t kept_bytes = 0;
  std::size_t removed = 0;  // entries
};

// Looks through the folder. Where the entries take more than `max_bytes`, those that were not used for longest are removed until they take
// `goal_bytes` or less; unfinished files of the dead always are. Other files are left alone.
[[nodiscard]] Swept sweep(int folder, std::uint64_t max_bytes, std::uint64_t goal_bytes);

}  // namespace mpsshim::interposer
