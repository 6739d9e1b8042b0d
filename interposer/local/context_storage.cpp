// SPDX-License-Identifier: Apache-2.0
#include "interposer/local/context_storage.hpp"

#include <memory>

namespace mpsshim::interposer {

ContextStorage::~ContextStorage() {
  for (Block* block = first_.next.load(std::memory_order_relaxed); block != nullptr;) {
    const std::unique_ptr<Block> owned(block);
    block = block->next.load(std::memory_order_relaxed);
  }
}

ContextStorage::Slot* ContextStorage::find(const void* key) {
  for (Block* block = &first_; block != nullptr; block = block->next.load(std::memory_order_relaxed)) {
    for (Slot& slot : block->slots) {
      if (slot.key.load(std::memory_order_relaxed) == key) return &slot;
    }
  }
  return nullptr;
}

void ContextStorage::put(void* key, void* value, Destructor destructor) {
  const std::lock_guard lock(mutex_);
  Slot* slot = find(key);
  if (slot == nullptr) {
    slot = find(nullptr);
    if (slot == nullptr) {
      Block* last = &first_;
      while (Block* next = last->next.load(std::memory_order_relaxed)) last = next;
      auto* fresh = new Block();
      last->next.store(fresh, std::memory_order_release);
      slot = &fresh->slots[0];
    }
  }
  slot->destructor = destructor;
  slot->value.store(value, std::memory_order_release);
  slot->present.store(true, std::memory_order_release);
  slot->key.store(key, std::memory_order_release);  // last: `get` finds a slot by its key
}

bool ContextStorage::remove(const void* key) {
  const std::lock_guard lock(mutex_);
  Slot* slot = find(key);
  return slot != nullptr && slot->present.exchange(false, std::memory_order_acq_rel);
}

void ContextStorage::clear(CUcontext context) {
  struct Entry {
    void* key;
    void* value;
    Destructor destructor;
  };
  std::vector<Entry> ended;
  {
    const std::lock_guard lock(mutex_);
    for (Block* block = &first_; block != nullptr; block = block->next.load(std::memory_order_relaxed)) {
      for (Slot& slot : block->slots) {
        if (!slot.present.load(std::memory_order_relaxed)) continue;
        ended.push_back({slot.key.load(std::memory_order_relaxed), slot.value.load(std::memory_order_relaxed), slot.destructor});
        slot.present.store(false, std::memory_order_release);
      }
    }
  }
  for (const Entry& entry : ended) {
    if (entry.destructor != nullptr) entry.destructor(context, entry.key, entry.value);
  }
}

}  // namespace mpsshim::interposer
