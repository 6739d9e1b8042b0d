// SPDX-License-Identifier: Apache-2.0
// Where the contents of one managed allocation are, by blocks: on the host (in memory that the program sees), on the device, or on both; and what
// the program may do with a block without being noticed. Pure bookkeeping: it copies and maps nothing, it says what is to be copied and mapped.
//
// Three rules make it coherent. What the program may write, the device's copy of is stale. Before work that may use the allocation is posted,
// close() takes all access away and says what is to be uploaded; from then on the host's copy counts as stale, for nobody knows what kernels write.
// The program is let in again (opening(), opened()) only when that work has ended and what was stale has been downloaded; or beside that work, with
// a copy of the device's contents that the owner makes and takes back (opened_beside(), closed_beside()).
// No lock: the owner has one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace mpsshim::interposer::forward {

enum class HostAccess : std::uint8_t { none, read, write };

// Blocks side by side.
struct BlockRun {
  std::size_t first = 0;
  std::size_t count = 0;
  [[nodiscard]] std::size_t end() const { return first + count; }
  bool operator==(const BlockRun&) const = default;
};

class Coherence {
 public:
  // `most_blocks`: how many are opened at once, where the program goes through them in order.
  Coherence(std::size_t blocks, std::size_t most_blocks);

  // What letting the program at `block` takes: these blocks, which have one state, become accessible so; first they are downloaded where `downloads`.
  // A run of 0 blocks: the program has that access already.
  struct Opening {
    BlockRun blocks;
    HostAccess access = HostAccess::none;
    bool downloads = false;
  };
  // `can_read`: reading and writing can be told apart; else whoever looks may write.
  [[nodiscard]] Opening opening(std::size_t block, bool is_write, bool can_read) const;
  void opened(const Opening& opening);

  // The block's contents were downloaded while work that may use it runs: they belong to the device all the time.
  void opened_beside(std::size_t block, HostAccess access);
  void closed_beside(std::size_t block);

  // Work that may use everything is about to be posted.
  struct Closing {
    std::vector<BlockRun> mapped;   // the program could touch these: it no longer may
    std::vector<BlockRun> uploads;  // behind that, block by block: their contents are on the host alone; all of them are in `mapped`
  };
  [[nodiscard]] Closing close();
  // True while close() would change something.
  [[nodiscard]] bool has_open_blocks() const { return begin_ < end_; }

  // Both copies are made equal, in one direction or the other, without work that uses them: prefetches.
  [[nodiscard]] std::vector<BlockRun> stale_on_host(BlockRun blocks) const;
  void downloaded(BlockRun blocks);
  // Of these blocks alone; the host's copy stays good. What the program could write it may touch no more until it is let in again.
  [[nodiscard]] Closing clean(BlockRun blocks);

  [[nodiscard]] std::size_t size() const { return states_.size(); }
  [[nodiscard]] HostAccess access(std::size_t block) const { return states_[block].access; }
  [[nodiscard]] bool is_current_on_host(std::size_t block) const { return states_[block].on_host; }
  [[nodiscard]] bool is_current_on_device(std::size_t block) const { return states_[block].on_device; }

 private:
  struct State {
    HostAccess access = HostAccess::none;
    bool on_host = true;  // a new allocation is zeroes on both sides
    bool on_device = true;
    bool operator==(const State&) const = default;
  };

  void note_open(BlockRun blocks);

  std::vector<State> states_;
  std::size_t most_blocks_;
  // Every block that is current on the host or accessible lies within.
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  // The run that was opened last, for reading and for writing: the next in order is twice as long. A program that adds to each word does both in
  // turn.
  struct Last {
    std::size_t end = SIZE_MAX;
    std::size_t count = 0;
  };
  Last last_read_, last_write_;
};

}  // namespace mpsshim::interposer::forward
