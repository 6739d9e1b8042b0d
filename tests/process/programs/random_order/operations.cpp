// SPDX-License-Identifier: Apache-2.0
// The random operations of a World, but for its launches (launches.cpp).
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "tests/process/programs/driver.hpp"
#include "tests/process/programs/random_order/world.hpp"

namespace mpsshim::test {

namespace {

constexpr unsigned kLongestBurst = 48;
constexpr std::uint32_t kMostCopiedWords = 2048;

std::size_t bytes(std::uint32_t words) { return words * sizeof(std::uint32_t); }
CUdeviceptr device_address(const void* host) { return reinterpret_cast<CUdeviceptr>(host); }

}  // namespace

Words32 World::random_words(std::uint32_t count) {
  Words32 words(count);
  std::uint64_t state = random_();
  for (std::uint32_t& word : words) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    word = static_cast<std::uint32_t>(state >> 32);
  }
  return words;
}

Region& World::pinned() { return *regions_[regions_.size() - 1 - below(4)]; }

// Part of a device region, mostly of one that this lane was the last to write: otherwise every launch would need an event.
Part World::part_for(std::size_t lane, std::uint32_t limit) {
  Region* region = nullptr;
  for (int attempt = 0; attempt < 12; ++attempt) {
    Region* candidate = regions_[kOrderModules + below(static_cast<std::uint32_t>(regions_.size() - kOrderModules - 4))].get();
    if (region == nullptr || candidate->accesses.last_write().lane == lane) region = candidate;
    if (region->accesses.last_write().lane == lane || chance(4)) break;
  }
  const std::uint32_t most = std::min(limit, region->count());
  const std::uint32_t count = chance(30) ? most : 1 + below(most);
  return {region, below(region->count() - count + 1), count};
}

// A run of operations on one stream.
void World::burst(unsigned operations) {
  const std::size_t lane = 1 + below(static_cast<std::uint32_t>(lanes_.size() - 1));
  const bool mostly_launches = chance(60);
  unsigned length = 1 + (chance(50) ? below(kLongestBurst) : below(5));
  length = std::min(length, operations);
  for (unsigned i = 0; i < length; ++i) {
    ++operation_;
    operate(lane, mostly_launches);
  }
  if (chance(3)) usleep(below(500));  // queues run dry
  if (chance(1)) replace_stream();
}

void World::operate(std::size_t lane, bool mostly_launches) {
  if (chance(mostly_launches ? 92 : 40)) return launch(lane);
  const std::uint32_t kind = below(100);
  if (kind < 14)
    fill(lane);
  else if (kind < 28)
    copy_in(lane);
  else if (kind < 42)
    copy_out(lane);
  else if (kind < 56)
    copy_within(lane);
  else if (kind < 64)
    copy_now();
  else if (kind < 80)
    use_event(lane);
  else if (kind < 86)
    synchronize(lane);
  else if (kind < 92)
    query(lane);
  else
    touch_pinned();
}

void World::fill(std::size_t lane) {
  const Part part = part_for(lane, kMostCopiedWords);
  auto value = static_cast<std::uint32_t>(random_());
  begin_work(lane, {}, {part.region}, "memset");
  const CUstream stream = lanes_[lane].stream;
  const std::uint32_t width = below(3);
  if (width == 0) {
    CU(cuMemsetD8Async(part.address(), static_cast<unsigned char>(value), bytes(part.count), stream));
    value = (value & 0xff) * 0x01010101u;
  } else if (width == 1) {
    CU(cuMemsetD16Async(part.address(), static_cast<unsigned short>(value), part.count * 2, stream));
    value = (value & 0xffff) * 0x00010001u;
  } else {
    CU(cuMemsetD32Async(part.address(), value, part.count, stream));
  }
  std::ranges::fill(part.words(), value);
}

// From pageable memory, which is the caller's again at once, or from pinned memory.
void World::copy_in(std::size_t lane) {
  const Part part = part_for(lane, chance(3) ? ~0u : kMostCopiedWords);
  const CUstream stream = lanes_[lane].stream;
  if (chance(50)) {
    Words32 words = random_words(part.count);
    begin_work(lane, {}, {part.region}, "copy from pageable memory");
    CU(cuMemcpyHtoDAsync(part.address(), words.data(), bytes(part.count), stream));
    std::ranges::copy(words, part.words().begin());
    std::ranges::fill(words, 0xdeadbeefu);
    return;
  }
  Region& source = pinned();
  const std::uint32_t count = std::min(part.count, source.count());
  begin_work(lane, {&source}, {part.region}, "copy from pinned memory");
  CU(cuMemcpyHtoDAsync(part.address(), source.host, bytes(count), stream));
  std::copy_n(source.expected.begin(), count, part.words().begin());
}

// To pageable memory, where it has arrived when the call returns, or to pinned memory.
void World::copy_out(std::size_t lane) {
  const Part part = part_for(lane, chance(3) ? ~0u : kMostCopiedWords);
  const CUstream stream = lanes_[lane].stream;
  if (chance(40)) {
    Words32 found(part.count);
    begin_work(lane, {part.region}, {}, "");
    CU(cuMemcpyDtoHAsync(found.data(), part.address(), bytes(part.count), stream));
    lanes_[kHostLane].clock.join(lanes_[lane].clock);
    return check(*part.region, found, part.first, "copied to pageable memory");
  }
  Region& target = pinned();
  const std::uint32_t count = std::min(part.count, target.count());
  begin_work(lane, {part.region}, {&target}, "copy to pinned memory");
  CU(cuMemcpyDtoHAsync(target.host, part.address(), bytes(count), stream));
  std::copy_n(part.words().begin(), count, target.expected.begin());
}

void World::copy_within(std::size_t lane) {
  Part target = part_for(lane, kMostCopiedWords);
  Part source = part_for(lane, kMostCopiedWords);
  if (source.region == target.region) return fill(lane);
  target.count = source.count = std::min(target.count, source.count);
  begin_work(lane, {source.region}, {target.region}, "copy from " + source.region->name);
  const CUstream stream = lanes_[lane].stream;
  if (chance(70))
    CU(cuMemcpyDtoDAsync(target.address(), source.address(), bytes(target.count), stream));
  else
    CU(cuMemcpyAsync(target.address(), source.address(), bytes(target.count), stream));
  std::ranges::copy(source.words(), target.words().begin());
}

// The calls without a stream: they work in the NULL stream. Only copies to the host, and those from pinned memory, are over when they return.
void World::copy_now() {
  constexpr std::size_t kNullLane = 1;
  const Part part = part_for(kNullLane, kMostCopiedWords);
  const std::uint32_t way = below(4);
  if (way == 0) {
    Words32 found(part.count);
    begin_work(kNullLane, {part.region}, {}, "");
    CU(cuMemcpyDtoH(found.data(), part.address(), bytes(part.count)));
    lanes_[kHostLane].clock.join(lanes_[kNullLane].clock);
    check(*part.region, found, part.first, "copied to the host");
  } else if (way == 1) {
    Words32 words = random_words(part.count);
    begin_work(kNullLane, {}, {part.region}, "synchronous copy from pageable memory");
    CU(cuMemcpyHtoD(part.address(), words.data(), bytes(part.count)));
    std::ranges::copy(words, part.words().begin());
  } else if (way == 2) {
    Region& source = pinned();
    begin_work(kNullLane, {&source}, {part.region}, "synchronous copy from pinned memory");
    CU(cuMemcpy(part.address(), device_address(source.host), bytes(part.count)));
    lanes_[kHostLane].clock.join(lanes_[kNullLane].clock);
    std::copy_n(source.expected.begin(), part.count, part.words().begin());
  } else {
    const auto value = static_cast<std::uint32_t>(random_());
    begin_work(kNullLane, {}, {part.region}, "synchronous memset");
    CU(cuMemsetD32(part.address(), value, part.count));
    std::ranges::fill(part.words(), value);
  }
}

void World::use_event(std::size_t lane) {
  Mark& mark = any_mark();
  Clock& host = lanes_[kHostLane].clock;
  const std::uint32_t way = below(10);
  if (way < 4) {
    record(mark, lane);
  } else if (way < 6) {
    wait_for(lane, mark);
  } else if (way < 7) {
    CU(cuEventSynchronize(mark.event));
    host.join(mark.clock);
  } else if (way < 9) {
    const bool is_over = host.covers(mark.clock);
    if (ask("an event", is_over, [&] { return cuEventQuery(mark.event); })) host.join(mark.clock);
  } else {  // a new one in its place, whatever waits for the old one
    CU(cuEventDestroy(mark.event));
    mark = {};
    CU(cuEventCreate(&mark.event, CU_EVENT_DISABLE_TIMING));
  }
}

void World::synchronize(std::size_t lane) {
  Clock& host = lanes_[kHostLane].clock;
  if (chance(80)) {
    CU(cuStreamSynchronize(lanes_[lane].stream));
    host.join(lanes_[lane].clock);
  } else {
    CU(cuCtxSynchronize());
    for (const Lane& each : lanes_) host.join(each.clock);
  }
}

// Asks once, or until it is ready where its work is known to be over: a driver may learn that a moment later than the host could infer it from
// other streams, but must learn it by itself.
bool World::ask(const char* what, bool is_over, const std::function<CUresult()>& query) {
  constexpr std::chrono::seconds kMoment{5};
  const auto end = std::chrono::steady_clock::now() + kMoment;
  for (;;) {
    const CUresult result = query();
    if (result != CUDA_ERROR_NOT_READY) {
      CU(result);
      return true;
    }
    if (!is_over) return false;
    require(std::chrono::steady_clock::now() < end, "wrong: " + std::string(what) + " is not ready for seconds after its work was over");
  }
}

void World::query(std::size_t lane) {
  Lane& own = lanes_[lane];
  Clock& host = lanes_[kHostLane].clock;
  bool is_over = host.covers(own.clock);
  for (const Lane& other : lanes_) is_over = is_over && (!own.is_null || !other.is_blocking || host.covers(other.clock));
  if (ask("a stream", is_over && (!own.is_null || is_alone_), [&] { return cuStreamQuery(own.stream); })) host.join(own.clock);
}

void World::touch_pinned() {
  Region& region = pinned();
  const bool writes = chance(60);
  begin_host(region, writes, "stores");
  if (!writes) return check(region, {region.host, region.expected.size()}, 0, "read by the host");
  region.expected = random_words(region.count());
  std::ranges::copy(region.expected, region.host);
}

// A stream is destroyed while its work may still run; the one in its place begins behind that work.
void World::replace_stream() {
  constexpr std::uint32_t kFirst = 3, kCount = 5;
  const std::size_t index = kFirst + below(kCount);
  Lane& lane = lanes_[index];
  Mark& mark = any_mark();
  record(mark, index);
  CU(cuStreamDestroy(lane.stream));
  CU(cuStreamCreate(&lane.stream, lane.is_blocking ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING));
  wait_for(index, mark);
  lane.at_last_work = {};  // the NULL stream is ordered with streams that are there
}

}  // namespace mpsshim::test
