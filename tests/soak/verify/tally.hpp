// SPDX-License-Identifier: Apache-2.0
// What all clients of a verifying soak have done, in a file that they and the program that starts them map: a client that is killed has counted as
// well. Counts only grow.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace mpsshim::soak {

enum class Kind : std::uint8_t { chains, uploads, downloads, words, boxes, allocations, branches, graphs, modules, texts, printing, gemms };
constexpr std::size_t kKinds = 12;
constexpr std::array<const char*, kKinds> kKindNames = {"chains",   "uploads", "downloads", "words", "boxes",    "allocations",
                                                        "branches", "graphs",  "modules",   "texts", "printing", "gemms"};

struct Tally {
  std::array<std::atomic<std::uint64_t>, kKinds> sequences;  // verified, of each kind
  std::atomic<std::uint64_t> operations;                     // calls that give the device something to do, or wait for it
  std::atomic<std::uint64_t> failures;
  // Results that are the same in every process, by a number of the computation; 0: nobody has one yet.
  static constexpr std::size_t kDigests = 256;
  std::array<std::atomic<std::uint64_t>, kDigests> digests;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "the file is mapped by several processes");

}  // namespace mpsshim::soak
