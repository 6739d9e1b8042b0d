// SPDX-License-Identifier: Apache-2.0
// What work means to managed memory: blocks that are open are closed before it is posted, and what the program has written goes up first.
#include <algorithm>
#include <cstring>
#include <utility>

#include "interposer/forward/begin.hpp"
#include "interposer/forward/host_functions.hpp"
#include "interposer/forward/memory/managed_memory.hpp"
#include "interposer/forward/streams.hpp"
#include "interposer/log.hpp"

namespace mpsshim::interposer::forward {

namespace {

using Clock = std::chrono::steady_clock;

// A host function may touch what work behind it uses, and may wait for anything but that. Its touch waits for all that was posted, so nothing is
// posted while one is under way; but not for ever, since the function may wait for the very thread that posts.
constexpr std::chrono::seconds kMostForHostFunctions{2};

constexpr std::size_t kTellingBytes = 8;    // a flag, a counter, a pointer
constexpr std::size_t kClosedAtOnce = 128;  // 8 MiB of all but the largest allocations

BlockRun intersection(BlockRun a, BlockRun b) {
  const std::size_t first = std::max(a.first, b.first);
  return {first, std::min(a.end(), b.end()) - first};
}

}  // namespace

void ManagedMemory::count_post(const Stream* stream) {
  ++posted_;
  if (stream != nullptr) ++posted_by_word_[stream->word];
}

std::uint64_t ManagedMemory::posted(const Allocation& allocation) const {
  switch (allocation.attached) {
    case Attached::everybody: return posted_;
    case Attached::stream: return posted_by_word_[allocation.stream.index()];
    case Attached::host: return 0;
  }
  return posted_;
}

bool ManagedMemory::concerns(const Allocation& allocation, const Stream& stream) const {
  if (allocation.lives_on_host) return false;
  return allocation.attached == Attached::everybody || (allocation.attached == Attached::stream && allocation.stream == stream.id);
}

CUresult ManagedMemory::post_copy(Stream& stream, std::uint64_t to, bool to_device, std::uint64_t from, std::uint64_t bytes) {
  return session().channel().post<proto::CopyRecord>(stream.id, 0, [&](proto::CopyRecord& record, std::byte*, Place) {
    record.destination = to;
    record.source = from;
    record.size_bytes = bytes;
    record.destination_space = to_device ? proto::MemorySpace::device : proto::MemorySpace::registered_host;
    record.source_space = to_device ? proto::MemorySpace::registered_host : proto::MemorySpace::device;
    if (to_device) record.flags = proto::CopyFlag::before_all_later;
    stream.has_work.store(true, std::memory_order_relaxed);
    stream.has_visible_work.store(true, std::memory_order_relaxed);
    stream.has_managed_work.store(true, std::memory_order_relaxed);
  });
}

// On a stream of the library's own, which nothing of the program's can hold up: what is posted later waits for it, in whatever stream. Closing takes
// longer than the copy of the same pages: so a piece is on its way while the next one is closed.
CUresult ManagedMemory::close(Allocation& allocation, const Coherence::Closing& closing) {
  auto upload = closing.uploads.begin();
  for (const BlockRun& run : closing.mapped) {
    for (std::size_t first = run.first; first < run.end(); first += kClosedAtOnce) {
      const BlockRun piece{first, std::min(run.end() - first, kClosedAtOnce)};
      if (!watch_->close(allocation.range_of(piece)) && !watch_->close(allocation.pages)) return CUDA_ERROR_UNKNOWN;
      for (; upload != closing.uploads.end() && upload->first < piece.end(); ++upload) {
        if (const CUresult error = post_upload(allocation, intersection(*upload, piece)); error != CUDA_SUCCESS) return error;
        if (upload->end() > piece.end()) break;  // the rest comes with the next piece
      }
    }
  }
  return CUDA_SUCCESS;
}

CUresult ManagedMemory::post_upload(const Allocation& allocation, BlockRun blocks) {
  const AddressRange range = allocation.range_of(blocks);
  return post_copy(*copies_, range.address, true, allocation.shadow + (range.address - allocation.pages.address), range.size_bytes);
}

// By words: what a kernel has written to other words meanwhile stays.
void ManagedMemory::note_changes(const Allocation& allocation, const Beside& beside, std::vector<Change>& changes) {
  const AddressRange range = allocation.range_of({beside.block, 1});
  const std::uint64_t shadow = allocation.shadow + (range.address - allocation.pages.address);
  const std::span<const std::byte> now = allocation.contents({beside.block, 1});
  const auto differs = [&](std::size_t at) { return std::memcmp(now.data() + at, beside.before.data() + at, kMergedBytes) != 0; };
  for (std::size_t at = 0; at < beside.before.size(); at += kMergedBytes) {
    const std::size_t first = at;
    while (at < beside.before.size() && differs(at)) at += kMergedBytes;
    if (at != first) changes.push_back({range.address + first, shadow + first, at - first, beside.until});
  }
}

// All of it at once. What a thread has written before a word whose change is found here is then found as well: had its block been closed by then, the
// thread would still be waiting. A kernel may look for a word that says that others have been written. So words that changed alone, or in pairs, go
// last, those first whose block was opened first.
CUresult ManagedMemory::end_beside() {
  CUresult result = CUDA_SUCCESS;  // what has been changed goes up all the same
  std::vector<Change> changes;
  for (auto& [address, allocation] : allocations_) {
    if (allocation->beside.empty()) continue;
    const std::vector<Beside> ended = std::exchange(allocation->beside, {});
    for (const Beside& beside : ended) {
      allocation->coherence.closed_beside(beside.block);
      if (!watch_->close(allocation->range_of({beside.block, 1})) && !watch_->close(allocation->pages)) result = CUDA_ERROR_UNKNOWN;
      note_changes(*allocation, beside, changes);
    }
  }
  std::ranges::stable_sort(changes, {}, [](const Change& change) {
    const bool may_tell = change.bytes <= kTellingBytes;
    return std::pair(may_tell, may_tell ? change.until : Clock::time_point{});
  });
  for (const Change& change : changes) {
    if (const CUresult error = post_copy(*copies_, change.device, true, change.host, change.bytes); error != CUDA_SUCCESS) return error;
  }
  return result;
}

// Before it is opened again. What was open for reading has no changes.
CUresult ManagedMemory::end_reading_beside(Allocation& allocation, std::size_t block) {
  const auto found = std::ranges::find(allocation.beside, block, &Beside::block);
  if (found == allocation.beside.end()) return CUDA_SUCCESS;
  if (!found->before.empty()) return end_beside();
  allocation.beside.erase(found);
  allocation.coherence.closed_beside(block);
  return watch_->close(allocation.range_of({block, 1})) || watch_->close(allocation.pages) ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

CUresult ManagedMemory::close_for(const Stream& stream) {
  if (watch_ != nullptr) watch_->refresh();
  if (const CUresult error = end_beside(); error != CUDA_SUCCESS) return error;
  for (auto& [address, allocation] : allocations_) {
    if (!concerns(*allocation, stream)) continue;
    allocation->prefetches.clear();
    if (!allocation->coherence.has_open_blocks()) continue;
    if (const CUresult error = close(*allocation, allocation->coherence.close()); error != CUDA_SUCCESS) return error;
  }
  return CUDA_SUCCESS;
}

void ManagedMemory::Work::enter(ManagedMemory& memory) NO_THREAD_SAFETY_ANALYSIS {
  memory.order_.lock();
  std::unique_lock lock(memory.order_, std::adopt_lock);
  const auto began = Clock::now();
  while (memory.held_until_ || HostFunctions::any_under_way()) {
    memory.order_.assume_held();
    const auto now = Clock::now();
    const bool is_held = memory.held_until_ && now < *memory.held_until_;
    const bool waits_for_function = HostFunctions::any_under_way() && now - began < kMostForHostFunctions;
    if (!is_held && !waits_for_function) break;
    memory.goes_on_.wait_for(lock, std::chrono::milliseconds(1));
  }
  (void)lock.release();
}

void ManagedMemory::Work::close_own(ManagedMemory& memory, const Stream& stream) {
  error_ = memory.close_for(stream);
  memory.count_post(&stream);
}

CUresult ManagedMemory::attach(std::uint64_t address, unsigned flags, const Stream* stream) {
  std::vector<FenceTarget> earlier;
  if (const CUresult error = Streams::instance().fence_managed({}, earlier); error != CUDA_SUCCESS) return error;
  const std::lock_guard lock(order_);
  Allocation* allocation = find(address);
  if (allocation == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const bool is_streams = flags == CU_MEM_ATTACH_SINGLE && stream != nullptr;
  allocation->attached = is_streams ? Attached::stream : flags == CU_MEM_ATTACH_HOST ? Attached::host : Attached::everybody;
  allocation->stream = is_streams ? stream->id : proto::StreamId{};
  allocation->earlier.insert(allocation->earlier.end(), earlier.begin(), earlier.end());
  allocation->prefetches.clear();
  count_post(stream);  // touches under way look again
  return CUDA_SUCCESS;
}

CUresult ManagedMemory::prefetch_to_device(AddressRange pages) {
  const std::lock_guard lock(order_);
  Allocation* allocation = find(pages.address);
  if (allocation == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (allocation->lives_on_host) return CUDA_SUCCESS;
  CUresult error = end_beside();
  if (error == CUDA_SUCCESS) error = close(*allocation, allocation->coherence.clean(allocation->blocks_of(pages)));
  count_post(nullptr);
  return error;
}

// Kernels of other streams may still write: then nothing can be said of what is copied now.
CUresult ManagedMemory::prefetch_to_host(AddressRange pages, Stream& stream) {
  std::uint64_t before = 0;
  {
    const std::lock_guard lock(order_);
    before = posted_;
  }
  std::vector<FenceTarget> pending;
  if (const CUresult error = Streams::instance().fence_managed({}, pending); error != CUDA_SUCCESS) return error;
  const bool streams_work = std::ranges::any_of(pending, [&](const FenceTarget& target) { return target.word != stream.word; });
  const bool others_work = streams_work || devices_work();
  const std::lock_guard lock(order_);
  Allocation* allocation = find(pages.address);
  if (allocation == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (others_work || posted_ != before || allocation->attached != Attached::everybody || allocation->is_served) return CUDA_SUCCESS;
  for (const BlockRun& run : allocation->coherence.stale_on_host(allocation->blocks_of(pages))) {
    const AddressRange range = allocation->range_of(run);
    const std::uint64_t to = allocation->shadow + (range.address - allocation->pages.address);
    if (const CUresult error = post_copy(stream, to, false, range.address, range.size_bytes); error != CUDA_SUCCESS) return error;
    allocation->prefetches.push_back({run, posted_});
  }
  return CUDA_SUCCESS;
}

}  // namespace mpsshim::interposer::forward
