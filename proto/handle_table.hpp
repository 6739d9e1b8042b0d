// SPDX-License-Identifier: Apache-2.0
// A table from id to object, used by both sides. Reading takes no lock (the launch path reads it); inserting and erasing do.
// The table owns the objects; whoever takes an entry out receives its object and decides when it may die.
//
// Trust: `find` accepts any 64 bits. Kind, index range, generation and presence are checked; anything else gives an empty Known.
// A Known<T> is the only way from an id to an object, so code that forgets the check does not compile.
#pragma once

#include <atomic>
#include <cstddef>
#include <array>
#include <memory>
#include <mutex>
#include <utility>

#include "proto/ids.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::proto {

template <typename T>
class Known {
 public:
  Known() = default;
  [[nodiscard]] explicit operator bool() const { return object_ != nullptr; }
  T* operator->() const { return object_; }
  T& operator*() const { return *object_; }
  [[nodiscard]] T* get() const { return object_; }

 private:
  template <HandleKind, typename>
  friend class HandleTable;
  explicit Known(T* object) : object_(object) {}
  T* object_ = nullptr;
};

template <HandleKind Kind, typename T>
class HandleTable {
 public:
  static constexpr std::uint32_t kSegmentEntries = 256;
  static constexpr std::uint32_t kSegments = 1024;
  static constexpr std::uint32_t kMaxEntries = kSegmentEntries * kSegments;

  // `realm`, below kRealms, stands in every id that the table chooses: no two tables of different realms choose the same one.
  explicit HandleTable(std::uint32_t realm = 0) : realm_(realm) {}
  HandleTable(const HandleTable&) = delete;
  HandleTable& operator=(const HandleTable&) = delete;
  ~HandleTable() {
    for (auto& segment : segments_) {
      if (Segment* entries = segment.load(std::memory_order_acquire)) {
        for (Entry& entry : *entries) delete entry.object.load(std::memory_order_relaxed);
        delete entries;
      }
    }
  }

  // The object under `id`, or an empty Known. Any thread; the caller keeps the object from being erased meanwhile
  // (client: CUDA forbids using a handle while another thread destroys it; executor: a session is with one worker at a time).
  [[nodiscard]] Known<T> find(Id<Kind> id) const {
    if (!id.has_kind()) return {};
    const Entry* entry = entry_at(id.index());
    if (entry == nullptr || entry->generation.load(std::memory_order_acquire) != id.generation()) return {};
    return Known<T>(entry->object.load(std::memory_order_acquire));
  }

  // Puts an object under an id the peer has chosen. False if the id is malformed, out of range or its index in use.
  [[nodiscard]] bool insert(Id<Kind> id, std::unique_ptr<T> object) {
    std::lock_guard lock(mutex_);
    if (!id.has_kind() || id.index() >= kMaxEntries) return false;
    Entry& entry = ensure_entry(id.index());
    if (entry.object.load(std::memory_order_relaxed) != nullptr) return false;
    entry.object.store(object.release(), std::memory_order_release);
    entry.generation.store(id.generation(), std::memory_order_release);
    return true;
  }

  // Chooses a free index (lowest-numbered released one first) with a new generation. {0} if the table is full.
  [[nodiscard]] Id<Kind> add(std::unique_ptr<T> object) {
    std::lock_guard lock(mutex_);
    std::uint32_t index = free_head_;
    if (index != kNoIndex) {
      free_head_ = ensure_entry(index).next_free;
    } else if (used_ < kMaxEntries) {
      index = used_++;
    } else {
      return {};
    }
    Entry& entry = ensure_entry(index);
    const std::uint32_t generation = next_generation(entry.last_generation) | realm_ << kRealmShift;
    entry.last_generation = generation;
    entry.object.store(object.release(), std::memory_order_release);
    entry.generation.store(generation, std::memory_order_release);
    return Id<Kind>::make(index, generation);
  }

  // Takes the object out; empty if there is none. With `reuse_index` false the index stays unused until release_index().
  [[nodiscard]] std::unique_ptr<T> take(Id<Kind> id, bool reuse_index = true) {
    std::lock_guard lock(mutex_);
    if (!find(id)) return {};
    Entry& entry = ensure_entry(id.index());
    entry.generation.store(0, std::memory_order_release);
    std::unique_ptr<T> object(entry.object.exchange(nullptr, std::memory_order_acq_rel));
    if (reuse_index) push_free(id.index());
    return object;
  }
  void release_index(std::uint32_t index) {
    std::lock_guard lock(mutex_);
    push_free(index);
  }

  // Calls f(Id<Kind>, T&) for every object, in index order. No entry may be inserted or erased meanwhile.
  template <typename F>
  void for_each(F&& f) const {
    for (std::uint32_t s = 0; s < kSegments; ++s) {
      Segment* segment = segments_[s].load(std::memory_order_acquire);
      if (segment == nullptr) continue;
      for (std::uint32_t i = 0; i < kSegmentEntries; ++i) {
        Entry& entry = (*segment)[i];
        if (T* object = entry.object.load(std::memory_order_acquire)) {
          f(Id<Kind>::make(s * kSegmentEntries + i, entry.generation.load(std::memory_order_acquire)), *object);
        }
      }
    }
  }

 private:
  static constexpr std::uint32_t kNoIndex = ~0u;
  struct Entry {
    std::atomic<std::uint32_t> generation{0};  // 0: no object
    std::uint32_t last_generation = 0;
    std::uint32_t next_free = kNoIndex;
    std::atomic<T*> object{nullptr};
  };
  using Segment = std::array<Entry, kSegmentEntries>;

  // Below the realm, and never 0.
  static std::uint32_t next_generation(std::uint32_t last) {
    const std::uint32_t next = (last + 1) & ((1u << kRealmShift) - 1);
    return next == 0 ? 1 : next;
  }
  const Entry* entry_at(std::uint32_t index) const {
    if (index >= kMaxEntries) return nullptr;
    const Segment* segment = segments_[index / kSegmentEntries].load(std::memory_order_acquire);
    return segment == nullptr ? nullptr : &(*segment)[index % kSegmentEntries];
  }
  Entry& ensure_entry(std::uint32_t index) {
    auto& slot = segments_[index / kSegmentEntries];
    Segment* segment = slot.load(std::memory_order_acquire);
    if (segment == nullptr) {
      segment = new Segment();
      slot.store(segment, std::memory_order_release);
    }
    return (*segment)[index % kSegmentEntries];
  }
  void push_free(std::uint32_t index) REQUIRES(mutex_) {
    ensure_entry(index).next_free = free_head_;
    free_head_ = index;
  }

  const std::uint32_t realm_;
  mutable Mutex mutex_;
  std::array<std::atomic<Segment*>, kSegments> segments_{};
  std::uint32_t used_ GUARDED_BY(mutex_) = 0;
  std::uint32_t free_head_ GUARDED_BY(mutex_) = kNoIndex;
};

}  // namespace mpsshim::proto
