// SPDX-License-Identifier: Apache-2.0
#include "tests/process/programs/random_order/world.hpp"

#include "tests/process/programs/driver.hpp"

namespace mpsshim::test {

namespace {

constexpr unsigned kSmallRegions = 20;
constexpr std::uint32_t kLargeWords = 300'000;
constexpr std::uint32_t kPinnedWords = 4096;
constexpr unsigned kMarks = 12;
constexpr std::size_t kHistory = 6;

}  // namespace

World::World(std::uint64_t seed, bool is_alone) : is_alone_(is_alone), random_(seed) {
  lanes_.push_back({nullptr, "the host", false, false, {}, {}});
  add_lane(nullptr, "the NULL stream", true);
  lanes_.back().is_null = true;
  add_lane(CU_STREAM_PER_THREAD, "the per-thread stream", true);
  for (unsigned i = 0; i < 5; ++i) {
    CUstream stream = nullptr;
    const unsigned flags = i < 2 ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING;
    CU(cuStreamCreateWithPriority(&stream, flags, i == 3 ? -1 : 0));
    add_lane(stream, (i < 2 ? "blocking stream " : "non-blocking stream ") + std::to_string(i), i < 2);
  }
  for (std::size_t i = 0; i < kernels_.size(); ++i) {
    kernels_[i].load(i);
    add_region(Region::Kind::variable, 1);
    regions_.back()->address = kernels_[i].state;
  }
  for (unsigned i = 0; i < kSmallRegions; ++i) add_region(Region::Kind::device, 32u << below(8));
  for (unsigned i = 0; i < 2; ++i) add_region(Region::Kind::device, kLargeWords + below(1000));
  for (unsigned i = 0; i < 4; ++i) add_region(Region::Kind::pinned, kPinnedWords);
  for (unsigned i = 0; i < kMarks; ++i) {
    Mark mark;
    const unsigned flags = (i % 3 == 0 ? 0u : unsigned{CU_EVENT_DISABLE_TIMING}) | (i % 4 == 0 ? unsigned{CU_EVENT_BLOCKING_SYNC} : 0u);
    CU(cuEventCreate(&mark.event, flags));
    marks_.push_back(mark);
  }
}

World::~World() {
  for (const std::unique_ptr<Region>& region : regions_) {
    if (region->kind == Region::Kind::device) cuMemFree(region->address);
    if (region->kind == Region::Kind::pinned) cuMemFreeHost(region->host);
  }
  for (const Mark& mark : marks_) cuEventDestroy(mark.event);
  for (const Lane& lane : lanes_) {
    if (lane.stream != nullptr && lane.stream != CU_STREAM_PER_THREAD) cuStreamDestroy(lane.stream);
  }
  for (const OrderKernels& kernels : kernels_) cuModuleUnload(kernels.module);
}

void World::add_lane(CUstream stream, const std::string& name, bool is_blocking) { lanes_.push_back({stream, name, false, is_blocking, {}, {}}); }

void World::add_region(Region::Kind kind, std::uint32_t words) {
  auto region = std::make_unique<Region>();
  region->kind = kind;
  region->name = std::string(kind == Region::Kind::device   ? "device"
                             : kind == Region::Kind::pinned ? "pinned"
                                                            : "module variable") +
                 " region " + std::to_string(regions_.size());
  region->expected.assign(words, 0);
  const std::size_t bytes = words * sizeof(std::uint32_t);
  if (kind == Region::Kind::device) {
    region->expected = random_words(words);
    CU(cuMemAlloc(&region->address, bytes));
    CU(cuMemcpyHtoD(region->address, region->expected.data(), bytes));
    CU(cuCtxSynchronize());
  } else if (kind == Region::Kind::pinned) {
    CU(cuMemHostAlloc(reinterpret_cast<void**>(&region->host), bytes, 0));
    std::fill_n(region->host, words, 0u);
  }
  regions_.push_back(std::move(region));
}

// Legacy order: the NULL stream's work follows the work before it of all blocking streams, and theirs follows its.
void World::learn_implicit_order(Lane& lane) {
  lane.clock.join(lanes_[kHostLane].clock);
  for (const Lane& other : lanes_) {
    if (lane.is_blocking && other.is_blocking && (lane.is_null || other.is_null)) lane.clock.join(other.at_last_work);
  }
}

void World::begin_work(std::size_t lane, std::initializer_list<Region*> reads, std::initializer_list<Region*> writes, const std::string& what) {
  Lane& own = lanes_[lane];
  learn_implicit_order(own);
  for (const Region* region : reads) region->accesses.for_each_conflict(own.clock, false, [&](const Access& access) { follow(lane, access); });
  for (const Region* region : writes) {
    const Accesses before = region->accesses;
    before.for_each_conflict(own.clock, true, [&](const Access& access) { follow(lane, access); });
  }
  const Access access{lane, own.clock.advance(lane)};
  own.at_last_work = own.clock;
  for (Region* region : reads) region->accesses.note(access, false);
  for (Region* region : writes) {
    region->accesses.note(access, true);
    region->history.push_back("operation " + std::to_string(operation_) + ", " + what + " in " + own.name);
    if (region->history.size() > kHistory) region->history.pop_front();
  }
}

// What the host itself does to pinned memory.
void World::begin_host(Region& region, bool writes, const std::string& what) {
  Clock& clock = lanes_[kHostLane].clock;
  const Accesses before = region.accesses;
  before.for_each_conflict(clock, writes, [&](const Access& access) { host_follows(access); });
  region.accesses.note({kHostLane, clock.advance(kHostLane)}, writes);
  if (writes) region.history.push_back("operation " + std::to_string(operation_) + ", " + what + " by the host");
}

// Orders the lane's next operation behind another lane's: by an event recorded earlier that will do, by one recorded now, or by the host.
void World::follow(std::size_t lane, Access access) {
  Lane& own = lanes_[lane];
  if (own.clock.covers(access.lane, access.index)) return;  // an edge made a moment ago brought it along
  if (chance(10)) {
    host_follows(access);
    own.clock.join(lanes_[kHostLane].clock);
    return;
  }
  Mark* mark = nullptr;
  for (Mark& candidate : marks_) {
    if (candidate.is_recorded && candidate.clock.covers(access.lane, access.index)) mark = &candidate;
  }
  if (mark == nullptr || chance(50)) {
    mark = &any_mark();
    record(*mark, access.lane);
  }
  wait_for(lane, *mark);
}

void World::record(Mark& mark, std::size_t lane) {
  CU(cuEventRecord(mark.event, lanes_[lane].stream));
  lanes_[lane].clock.advance(lane);
  mark.is_recorded = true;
  mark.clock = lanes_[lane].clock;
}

void World::wait_for(std::size_t lane, const Mark& mark) {
  CU(cuStreamWaitEvent(lanes_[lane].stream, mark.event, 0));
  lanes_[lane].clock.join(mark.clock);
  lanes_[lane].clock.advance(lane);
}

void World::host_follows(Access access) {
  Clock& host = lanes_[kHostLane].clock;
  if (host.covers(access.lane, access.index)) return;
  Lane& other = lanes_[access.lane];
  const std::uint32_t way = below(10);
  if (way < 5) {
    CU(cuStreamSynchronize(other.stream));
  } else if (way < 8) {
    Mark& mark = any_mark();
    record(mark, access.lane);
    CU(cuEventSynchronize(mark.event));
  } else if (way < 9) {
    CUresult result = CUDA_SUCCESS;
    while ((result = cuStreamQuery(other.stream)) == CUDA_ERROR_NOT_READY) {
    }
    CU(result);
  } else {
    CU(cuCtxSynchronize());
    for (const Lane& each : lanes_) host.join(each.clock);
  }
  host.join(other.clock);
}

void World::check(const Region& region, std::span<const std::uint32_t> found, std::uint32_t first, const char* where) const {
  for (std::uint32_t i = 0; i < found.size(); ++i) {
    const std::uint32_t at = first + i;
    if (found[i] == region.expected[at]) continue;
    std::string text = "wrong: word " + std::to_string(at) + " of " + std::to_string(region.count()) + " in " + region.name + " " + where + " is " +
                       std::to_string(found[i]) + " and not " + std::to_string(region.expected[at]) + " after operation " +
                       std::to_string(operation_) + "; last written by";
    for (const std::string& writer : region.history) text += "\n  " + writer;
    throw Failure(text);
  }
}

void World::run(unsigned operations) {
  const std::uint64_t end = operation_ + operations;
  while (operation_ < end) burst(static_cast<unsigned>(end - operation_));
}

void World::finish() {
  CU(cuCtxSynchronize());
  for (const Lane& lane : lanes_) lanes_[kHostLane].clock.join(lane.clock);
  Words32 found;
  for (const std::unique_ptr<Region>& region : regions_) {
    if (region->kind == Region::Kind::pinned) {
      check(*region, {region->host, region->expected.size()}, 0, "at the end");
      continue;
    }
    found.resize(region->expected.size());
    CU(cuMemcpyDtoH(found.data(), region->address, found.size() * sizeof(std::uint32_t)));
    check(*region, found, 0, "at the end");
  }
}

}  // namespace mpsshim::test
