// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/memory/pool_heap.hpp"

#include <map>
#include <random>
#include <vector>

#include "tests/support/catch.hpp"

using mpsshim::interposer::forward::AddressRange;
using mpsshim::interposer::forward::PoolHeap;

namespace {

constexpr std::uint64_t kBase = 0x2000'0000'0000;
constexpr std::uint64_t kMiB = 1 << 20;
constexpr std::uint32_t kStreams = 4;

struct Live {
  std::uint64_t bytes = 0;
};

// Who used a 512-byte granule last, and up to which position of his stream: what a later user has to be behind.
struct LastUse {
  std::uint32_t stream = 0;
  std::uint32_t position = 0;
};

}  // namespace

TEST_CASE("pool heap: a block is given only behind its last use") {
  PoolHeap heap;
  std::mt19937 random(815);
  std::uint64_t next_segment = kBase;
  std::uint32_t position[kStreams] = {};   // work posted
  std::uint32_t completed[kStreams] = {};  // work done
  std::map<std::uint64_t, Live> live;
  std::map<std::uint64_t, LastUse> last_use;  // by granule
  std::uint64_t used_bytes = 0;
  const auto granules = [](std::uint64_t address, std::uint64_t bytes, auto&& f) {
    for (std::uint64_t at = address; at < address + bytes; at += PoolHeap::kAlignment) f(at);
  };
  for (int step = 0; step < 30'000; ++step) {
    const std::uint32_t stream = random() % kStreams;
    switch (random() % 5) {
      case 0:
      case 1: {
        const std::uint64_t bytes = 1 + random() % (random() % 16 == 0 ? kMiB : 8192);
        auto address = heap.allocate(bytes, stream, {});
        bool is_behind_all = false;
        if (!address && random() % 4 == 0) {
          if (const auto taken = heap.allocate_behind_another(bytes, {})) {
            address = taken->address;
            is_behind_all = true;
            granules(*address, bytes, [&](std::uint64_t at) {
              const auto use = last_use.find(at);
              REQUIRE((use == last_use.end() || use->second.stream == taken->word || completed[use->second.stream] >= use->second.position));
            });
          }
        }
        if (!address) {
          heap.add_segment({next_segment, 4 * kMiB});
          next_segment += 4 * kMiB + (random() % 2) * kMiB;
          address = heap.allocate(bytes, stream, {});
        }
        REQUIRE(address);
        const auto after = live.lower_bound(*address);
        REQUIRE((after == live.end() || *address + bytes <= after->first));
        REQUIRE((after == live.begin() || std::prev(after)->first + std::prev(after)->second.bytes <= *address));
        if (!is_behind_all) {
          granules(*address, bytes, [&](std::uint64_t at) {
            const auto use = last_use.find(at);
            REQUIRE((use == last_use.end() || use->second.stream == stream || completed[use->second.stream] >= use->second.position));
          });
        }
        live[*address] = {bytes};
        used_bytes += (bytes + 511) / 512 * 512;
        break;
      }
      case 2: {
        if (live.empty()) break;
        auto victim = live.lower_bound(kBase + random() % (next_segment - kBase));
        if (victim == live.end()) victim = live.begin();
        REQUIRE(heap.find(victim->first + victim->second.bytes - 1)->range == AddressRange{victim->first, victim->second.bytes});
        ++position[stream];
        granules(victim->first, victim->second.bytes, [&](std::uint64_t at) { last_use[at] = {stream, position[stream]}; });
        REQUIRE_FALSE(heap.free(victim->first + 1, PoolHeap::Mark{stream, position[stream]}));
        REQUIRE(heap.free(victim->first, PoolHeap::Mark{stream, position[stream]}));
        REQUIRE_FALSE(heap.find(victim->first));
        used_bytes -= (victim->second.bytes + 511) / 512 * 512;
        live.erase(victim);
        break;
      }
      case 3: completed[stream] += position[stream] != completed[stream] ? 1 : 0; break;
      case 4: heap.reclaim([&](std::uint32_t word, std::uint32_t value) { return completed[word] >= value; }); break;
    }
    REQUIRE(heap.usage().used_bytes == used_bytes);
  }
  for (const auto& [address, allocation] : live) REQUIRE(heap.free(address, std::nullopt));
  heap.reclaim([](std::uint32_t, std::uint32_t) { return true; });
  std::uint64_t released = 0;
  for (const AddressRange& segment : heap.release(0)) released += segment.size_bytes;
  CHECK(heap.usage().reserved_bytes == 0);
  CHECK(released == heap.usage().reserved_high_bytes);
}

TEST_CASE("pool heap: neighbours freed in one stream are one block again, those of two streams when both are done") {
  PoolHeap heap;
  heap.add_segment({kBase, 2 * kMiB});
  const auto lower = heap.allocate(kMiB, 1, {});
  const auto upper = heap.allocate(kMiB, 1, {});
  REQUIRE((lower && upper));
  REQUIRE(heap.free(*lower, PoolHeap::Mark{1, 10}));
  REQUIRE(heap.free(*upper, PoolHeap::Mark{2, 5}));
  CHECK_FALSE(heap.allocate(2 * kMiB, 1, {}));
  CHECK(heap.pending_words() == std::vector<std::uint32_t>{1, 2});
  heap.reclaim([](std::uint32_t word, std::uint32_t) { return word == 1; });
  CHECK_FALSE(heap.allocate(2 * kMiB, 3, {}));
  CHECK(heap.release(0).empty());
  heap.reclaim([](std::uint32_t, std::uint32_t) { return true; });
  CHECK(heap.allocate(2 * kMiB, 3, {}) == kBase);
}

TEST_CASE("pool heap: sizes that no memory has are refused") {
  PoolHeap heap;
  heap.add_segment({kBase, 2 * kMiB});
  CHECK_FALSE(heap.allocate(UINT64_MAX, 0, {}));
  CHECK_FALSE(heap.allocate(UINT64_MAX - 600, 0, {}));
  CHECK_FALSE(heap.free(kBase, std::nullopt));
  CHECK_FALSE(heap.find(kBase));
}
