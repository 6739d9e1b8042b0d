// SPDX-License-Identifier: Apache-2.0
// Coherence against a model that keeps two copies of each block and does what it is told: whatever the order of touches, work and prefetches, who
// looks finds what was written last.
#include "interposer/forward/memory/coherence.hpp"

#include <random>
#include <vector>

#include "tests/support/catch.hpp"

using namespace mpsshim::interposer::forward;

namespace {

class Model {
 public:
  Model(std::size_t blocks, std::size_t most, bool can_read)
      : coherence_(blocks, most), host_(blocks), device_(blocks), truth_(blocks), can_read_(can_read) {}

  void host_reads(std::size_t block) {
    touch(block, false);
    CHECK(host_[block] == truth_[block]);
  }
  void host_writes(std::size_t block, int value) {
    touch(block, true);
    host_[block] = truth_[block] = value;
  }
  // Looks at one block and writes another one.
  void kernel(std::size_t reads, std::size_t writes, int value) {
    const Coherence::Closing closing = coherence_.close();
    upload(closing.uploads);
    CHECK_FALSE(coherence_.has_open_blocks());
    for (std::size_t block = 0; block < host_.size(); ++block) CHECK(coherence_.access(block) == HostAccess::none);
    CHECK(device_[reads] == truth_[reads]);
    device_[writes] = truth_[writes] = value;
  }
  void prefetch_to_host(BlockRun blocks) {
    for (const BlockRun& run : coherence_.stale_on_host(blocks)) {
      download(run);
      coherence_.downloaded(run);
    }
  }
  void prefetch_to_device(BlockRun blocks) { upload(coherence_.clean(blocks).uploads); }
  void check() const {
    for (std::size_t block = 0; block < host_.size(); ++block) {
      CHECK((coherence_.is_current_on_host(block) || coherence_.is_current_on_device(block)));
      if (coherence_.is_current_on_host(block)) CHECK(host_[block] == truth_[block]);
      if (coherence_.is_current_on_device(block)) CHECK(device_[block] == truth_[block]);
      if (coherence_.access(block) == HostAccess::write) CHECK_FALSE(coherence_.is_current_on_device(block));
      if (coherence_.access(block) != HostAccess::none) CHECK(coherence_.is_current_on_host(block));
    }
  }

 private:
  void touch(std::size_t block, bool is_write) {
    const HostAccess needed = is_write ? HostAccess::write : HostAccess::read;
    if (coherence_.access(block) >= needed) return;  // nobody notices
    const Coherence::Opening opening = coherence_.opening(block, is_write, can_read_);
    REQUIRE(opening.blocks.count != 0);
    if (opening.downloads) download(opening.blocks);
    coherence_.opened(opening);
    REQUIRE(coherence_.access(block) >= needed);
  }
  void upload(const std::vector<BlockRun>& runs) {
    for (const BlockRun& run : runs) {
      for (std::size_t block = run.first; block < run.end(); ++block) device_[block] = host_[block];
    }
  }
  void download(BlockRun run) {
    for (std::size_t block = run.first; block < run.end(); ++block) host_[block] = device_[block];
  }

  Coherence coherence_;
  std::vector<int> host_, device_, truth_;
  bool can_read_;
};

void random_rounds(std::size_t blocks, std::size_t most, bool can_read, unsigned seed) {
  std::mt19937 random(seed);
  const auto below = [&](std::size_t bound) { return std::uniform_int_distribution<std::size_t>(0, bound - 1)(random); };
  Model model(blocks, most, can_read);
  for (int round = 1; round <= 20'000; ++round) {
    const std::size_t first = below(blocks);
    const BlockRun run{first, 1 + below(blocks - first)};
    switch (below(6)) {
      case 0: model.host_writes(first, round); break;
      case 1: model.kernel(first, below(blocks), round); break;
      case 2: model.prefetch_to_host(run); break;
      case 3: model.prefetch_to_device(run); break;
      case 4:
        for (std::size_t block = run.first; block < run.end(); ++block) model.host_writes(block, round);
        break;
      default:
        for (std::size_t block = run.first; block < run.end(); ++block) model.host_reads(block);
        break;
    }
    model.check();
  }
}

}  // namespace

TEST_CASE("who looks at a block of managed memory finds what was written last") {
  random_rounds(1, 1, true, 1);
  random_rounds(7, 4, true, 2);
  random_rounds(7, 4, false, 3);
  random_rounds(40, 16, true, 4);
}

TEST_CASE("blocks that are touched in order are opened more at a time") {
  Coherence coherence(64, 8);
  (void)coherence.close();
  std::vector<std::size_t> counts;
  for (std::size_t block = 0; block < 31;) {
    const Coherence::Opening opening = coherence.opening(block, false, true);
    CHECK(opening.downloads);
    counts.push_back(opening.blocks.count);
    coherence.opened(opening);
    block = opening.blocks.end();
  }
  CHECK(counts == std::vector<std::size_t>{1, 2, 4, 8, 8, 8});
  CHECK(coherence.opening(40, false, true).blocks.count == 1);  // elsewhere
}

TEST_CASE("what the host has written is uploaded once, what it has read is not") {
  Coherence coherence(8, 1);
  CHECK(coherence.close().uploads.empty());  // zeroes on both sides
  coherence.opened(coherence.opening(2, true, true));
  coherence.opened(coherence.opening(3, true, true));
  coherence.opened(coherence.opening(5, false, true));
  const Coherence::Closing closing = coherence.close();
  CHECK(closing.uploads == std::vector<BlockRun>{{2, 2}});
  CHECK(closing.mapped == std::vector<BlockRun>{{2, 2}, {5, 1}});
  CHECK(coherence.close().uploads.empty());
}

TEST_CASE("a block that was opened beside work is the device's all the time") {
  Coherence coherence(4, 1);
  (void)coherence.close();
  coherence.opened_beside(2, HostAccess::write);
  CHECK(coherence.opening(2, true, true).blocks.count == 0);
  CHECK(coherence.has_open_blocks());
  SECTION("taken back by itself") { coherence.closed_beside(2); }
  SECTION("taken back for other work") {
    const Coherence::Closing closing = coherence.close();
    CHECK(closing.mapped == std::vector<BlockRun>{{2, 1}});
    CHECK(closing.uploads.empty());
  }
  CHECK(coherence.access(2) == HostAccess::none);
  CHECK(coherence.opening(2, false, true).downloads);
}

TEST_CASE("a block that was read is opened for writing without a download") {
  Coherence coherence(4, 1);
  (void)coherence.close();
  CHECK(coherence.opening(1, false, true).downloads);
  coherence.opened(coherence.opening(1, false, true));
  const Coherence::Opening upgrade = coherence.opening(1, true, true);
  CHECK(upgrade.access == HostAccess::write);
  CHECK_FALSE(upgrade.downloads);
  coherence.opened(upgrade);
  CHECK(coherence.opening(1, true, true).blocks.count == 0);
}
