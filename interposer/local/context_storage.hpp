// SPDX-License-Identifier: Apache-2.0
// Pointers that libraries keep with a context, by key (the table CONTEXT_LOCAL_STORAGE, docs/undocumented-tables.md). Every copy of the
// runtime in a process looks its own up once in each of its API calls, so `get` takes no lock: a few loads.
//
// Owned by its context. A key is an address inside one copy of the runtime; its slot stays its slot for ever, so a reader never sees a
// value under another key. Writers hold a lock. Slots are never freed while the context lives.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <vector>

#include "gen/cuda_api.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::interposer {

class ContextStorage {
 public:
  using Destructor = void (*)(CUcontext context, void* key, void* value);

  ContextStorage() = default;
  ContextStorage(const ContextStorage&) = delete;
  ContextStorage& operator=(const ContextStorage&) = delete;
  ~ContextStorage();

  // False if there is no value under that key.
  [[nodiscard]] bool get(const void* key, void*& value) const {
    for (const Block* block = &first_; block != nullptr; block = block->next.load(std::memory_order_acquire)) {
      for (const Slot& slot : block->slots) {
        const void* used = slot.key.load(std::memory_order_acquire);
        if (used == key) {
          value = slot.value.load(std::memory_order_acquire);
          return slot.present.load(std::memory_order_acquire);
        }
        if (used == nullptr) return false;  // slots are taken in order
      }
    }
    return false;
  }

  // A value already there is replaced; its destructor is not called.
  void put(void* key, void* value, Destructor destructor);
  // Removes without calling the destructor. False if there was none.
  bool remove(const void* key);
  // Removes all, calling their destructors without the lock: they may come back here.
  void clear(CUcontext context);

 private:
  struct Slot {
    std::atomic<void*> key{nullptr};
    std::atomic<void*> value{nullptr};
    std::atomic<bool> present{false};
    Destructor destructor = nullptr;  // under the lock
  };
  struct Block {
    std::array<Slot, 8> slots;
    std::atomic<Block*> next{nullptr};
  };

  [[nodiscard]] Slot* find(const void* key);

  Mutex mutex_;
  Block first_;
};

}  // namespace mpsshim::interposer
