// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/shared_events.hpp"

#include <time.h>

#include <algorithm>
#include <cstring>

#include "interposer/forward/graphs/capture.hpp"
#include "interposer/forward/memory/memory_pools.hpp"
#include "interposer/forward/memory/pinned.hpp"
#include "interposer/forward/memory/shared_memory.hpp"
#include "interposer/local/acting_session.hpp"

namespace mpsshim::interposer::forward {

namespace {

using Slot = proto::SharedEventSlot;

constexpr std::uint64_t kEventMagic = 0x6d50'5368'4576'6e74;
constexpr std::uint64_t kShortestSleepUs = 5;
constexpr std::uint64_t kLongestSleepUs = 1000;

bool is_complete(const Slot& slot, std::uint32_t number) {
  return number == 0 || proto::is_reached(slot.completed[number % Slot::kRecords].load(std::memory_order_acquire), number);
}

bool is_idle(const Slot& slot) {
  const std::uint32_t last = slot.recorded.load(std::memory_order_acquire);
  for (std::uint32_t back = 0; back < std::min(last, Slot::kRecords); ++back) {
    if (!is_complete(slot, last - back)) return false;
  }
  return true;
}

CUresult check(const SharedEvent& event) {
  return event.slot->generation.load(std::memory_order_acquire) == event.generation ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

// Nobody wakes a waiter: the word is written by another client's work. It sleeps ever longer, up to a millisecond.
CUresult wait_for(const Slot& slot, std::uint32_t number, WaitStyle style) {
  while (!is_complete(slot, number)) {
    const std::shared_ptr<Link> link = session().channel().link();
    std::uint64_t sleep_us = kShortestSleepUs;
    const auto sleep = [&](std::uint64_t limit_us) {
      const timespec pause{0, static_cast<long>(std::min(sleep_us, limit_us) * 1000)};
      nanosleep(&pause, nullptr);
      sleep_us = std::min(sleep_us * 5 / 4 + 1, kLongestSleepUs);
    };
    Wait wait("another process's event", link->header(), session().channel().peer(), style);
    const WaitEnd end = wait.until([&] { return is_complete(slot, number) || session().has_other_moved(); }, sleep);
    if (const CUresult error = session().channel().settle(end, *link); error != CUDA_SUCCESS) return error;
    if (!is_complete(slot, number)) session().follow_others();
  }
  return CUDA_SUCCESS;
}

bool was_abandoned(const Slot& slot, std::uint32_t number) {
  return number != 0 && slot.abandoned[number % Slot::kRecords].load(std::memory_order_relaxed) == number;
}

CUresult end_of(const Slot& slot, std::uint32_t number) {
  return was_abandoned(slot, number) ? CUDA_ERROR_MPS_CLIENT_TERMINATED : session().take_error();
}

std::uint64_t word_of(const Slot& slot, std::uint32_t number) { return reinterpret_cast<std::uintptr_t>(&slot.completed[number % Slot::kRecords]); }

}  // namespace

SharedEvents& SharedEvents::instance() {
  return PerSession<SharedEvents>::get([] { return new SharedEvents(); });
}

CUresult SharedEvents::add_page(const proto::MemoryName* opens, Page*& page) {
  void* memory = nullptr;
  Page made;
  if (const CUresult error = PinnedMemory::instance().allocate_events(opens, memory, made.segment); error != CUDA_SUCCESS) return error;
  made.slots = static_cast<Slot*>(memory);
  made.is_own = opens == nullptr;
  made.is_named = opens != nullptr;
  if (opens != nullptr) made.name = *opens;
  if (made.is_own) {
    for (std::uint32_t i = proto::kSharedEventSlots; i-- > 0;) made.free.push_back(i);
  }
  page = &pages_.emplace_back(std::move(made));
  return CUDA_SUCCESS;
}

SharedEvents::Page* SharedEvents::page_of(const Slot* slot) {
  const auto found =
      std::ranges::find_if(pages_, [&](const Page& page) { return slot >= page.slots && slot < page.slots + proto::kSharedEventSlots; });
  return found != pages_.end() ? &*found : nullptr;
}

CUresult SharedEvents::create(SharedEvent& event) {
  const std::lock_guard lock(mutex_);
  for (int attempt = 0; attempt < 2; ++attempt) {
    for (Page& page : pages_) {
      const auto found = std::find_if(page.free.rbegin(), page.free.rend(), [&](std::uint32_t index) { return is_idle(page.slots[index]); });
      if (found == page.free.rend()) continue;
      Slot& slot = page.slots[*found];
      page.free.erase(std::next(found).base());
      ++page.users;
      // Numbers go on: a stream may yet have to look at those of the slot's last event, which are complete.
      for (std::uint32_t i = 0; i < Slot::kRecords; ++i) {
        slot.abandoned[i].store(0, std::memory_order_relaxed);
        slot.recorder[i].store(0, std::memory_order_relaxed);
      }
      event = {&slot, slot.generation.load(std::memory_order_relaxed), true};
      return CUDA_SUCCESS;
    }
    Page* added = nullptr;
    if (const CUresult error = add_page(nullptr, added); error != CUDA_SUCCESS) return error;
  }
  return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult SharedEvents::name(const SharedEvent& event, CUipcEventHandle& handle) {
  const std::lock_guard lock(mutex_);
  Page* page = page_of(event.slot);
  if (page == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (!page->is_named) {
    if (const CUresult error = share_memory(page->segment, page->name); error != CUDA_SUCCESS) return error;
    page->is_named = true;
  }
  Content content;
  content.magic = kEventMagic;
  content.page = page->name;
  content.slot = static_cast<std::uint32_t>(event.slot - page->slots);
  content.generation = event.generation;
  std::memcpy(&handle, &content, sizeof content);
  return CUDA_SUCCESS;
}

CUresult SharedEvents::open(const CUipcEventHandle& handle, SharedEvent& event) {
  Content content;
  std::memcpy(static_cast<void*>(&content), &handle, sizeof content);
  if (content.magic != kEventMagic || content.slot >= proto::kSharedEventSlots) return CUDA_ERROR_INVALID_HANDLE;
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find_if(pages_, [&](const Page& page) { return page.is_named && page.name == content.page; });
  Page* page = found != pages_.end() ? &*found : nullptr;
  if (page != nullptr && page->is_own) return CUDA_ERROR_INVALID_CONTEXT;
  if (page == nullptr) {
    if (const CUresult error = add_page(&content.page, page); error != CUDA_SUCCESS) return error;
  }
  ++page->users;
  event = {&page->slots[content.slot], content.generation, false};
  return check(event);
}

void SharedEvents::destroy(const SharedEvent& event) {
  const std::lock_guard lock(mutex_);
  Page* page = page_of(event.slot);
  if (page == nullptr) return;
  --page->users;
  if (page->is_own) {
    event.slot->generation.fetch_add(1, std::memory_order_acq_rel);
    page->free.push_back(static_cast<std::uint32_t>(event.slot - page->slots));
    return;
  }
  if (page->users != 0) return;
  (void)PinnedMemory::instance().release(page->slots);
  pages_.remove_if([&](const Page& one) { return &one == page; });
}

CUresult SharedEvents::record(const SharedEvent& event, Stream& stream) {
  if (stream.is_captured.load(std::memory_order_relaxed)) return Captures::instance().refuse(stream);
  if (const CUresult error = check(event); error != CUDA_SUCCESS) return error;
  Slot& slot = *event.slot;
  const std::uint32_t next = slot.recorded.load(std::memory_order_acquire) + 1;
  if (next > Slot::kRecords) {
    if (const CUresult error = wait_for(slot, next - Slot::kRecords, Wait::style_of_thread()); error != CUDA_SUCCESS) return error;
  }
  const std::uint64_t own = session().channel().link()->header().session;
  return post_work<proto::StreamWriteValueRecord>(stream, 0, [&](proto::StreamWriteValueRecord& record, std::byte*) {
    std::uint32_t number = slot.recorded.load(std::memory_order_relaxed);
    std::uint32_t taken = 0;
    do {
      taken = number + 1 != 0 ? number + 1 : 1;  // 0 means that it was never recorded
      slot.recorder[taken % Slot::kRecords].store(own, std::memory_order_relaxed);
    } while (!slot.recorded.compare_exchange_weak(number, taken, std::memory_order_acq_rel));
    record.address = word_of(slot, taken);
    record.value = taken;
    record.operation = proto::StreamWrite::value_32;
    record.flags = CU_STREAM_WRITE_VALUE_DEFAULT;
  });
}

bool SharedEvents::has_room(const SharedEvent& event) {
  const std::uint32_t next = event.slot->recorded.load(std::memory_order_acquire) + 1;
  return next <= Slot::kRecords || is_complete(*event.slot, next - Slot::kRecords);
}

bool SharedEvents::has_reached_last(const SharedEvent& event) {
  const std::uint32_t last = event.slot->recorded.load(std::memory_order_acquire);
  return is_complete(*event.slot, last) && !was_abandoned(*event.slot, last);
}

CUresult SharedEvents::wait_on_stream(const SharedEvent& event, Stream& stream, Abandoned abandoned) {
  if (stream.is_captured.load(std::memory_order_relaxed)) return Captures::instance().refuse(stream);
  if (const CUresult error = check(event); error != CUDA_SUCCESS) return error;
  const Slot& slot = *event.slot;
  const std::uint32_t number = slot.recorded.load(std::memory_order_acquire);
  const bool holds = abandoned == Abandoned::holds;
  if (is_complete(slot, number) && !(holds && was_abandoned(slot, number))) return CUDA_SUCCESS;
  return post_work<proto::StreamWaitSharedEventRecord>(stream, 0, [&](proto::StreamWaitSharedEventRecord& record, std::byte*) {
    record.slot = reinterpret_cast<std::uintptr_t>(&slot);
    record.number = number;
    record.needs_work = holds ? 1 : 0;
  });
}

CUresult SharedEvents::synchronize(const SharedEvent& event, bool sleeps) {
  if (const CUresult error = check(event); error != CUDA_SUCCESS) return error;
  const std::uint32_t number = event.slot->recorded.load(std::memory_order_acquire);
  if (const CUresult error = wait_for(*event.slot, number, sleeps ? WaitStyle::sleep : Wait::style_of_thread()); error != CUDA_SUCCESS) return error;
  MemoryPools::instance().after_synchronize();
  return end_of(*event.slot, number);
}

CUresult SharedEvents::query(const SharedEvent& event) {
  if (const CUresult error = check(event); error != CUDA_SUCCESS) return error;
  const std::uint32_t number = event.slot->recorded.load(std::memory_order_acquire);
  if (is_complete(*event.slot, number)) return end_of(*event.slot, number);
  if (const CUresult error = session().look(); error != CUDA_SUCCESS) return error;
  session().follow_others();
  return CUDA_ERROR_NOT_READY;
}

}  // namespace mpsshim::interposer::forward
