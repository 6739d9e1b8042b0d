// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <thread>
#include <vector>

#include "interposer/local/context_storage.hpp"
#include "tests/support/catch.hpp"

using mpsshim::interposer::ContextStorage;

namespace {

struct Ended {
  CUcontext context;
  void* key;
  void* value;
  bool operator==(const Ended&) const = default;
};
std::vector<Ended> ended;
void note(CUcontext context, void* key, void* value) { ended.push_back({context, key, value}); }

void* pointer(std::uintptr_t number) { return reinterpret_cast<void*>(number); }

}  // namespace

TEST_CASE("a value is found under its key, and no other") {
  ContextStorage storage;
  void* value = nullptr;
  CHECK_FALSE(storage.get(pointer(1), value));
  storage.put(pointer(1), pointer(100), nullptr);
  REQUIRE(storage.get(pointer(1), value));
  CHECK(value == pointer(100));
  CHECK_FALSE(storage.get(pointer(2), value));
  storage.put(pointer(1), pointer(101), nullptr);
  REQUIRE(storage.get(pointer(1), value));
  CHECK(value == pointer(101));
}

TEST_CASE("more keys than one block holds") {
  ContextStorage storage;
  for (std::uintptr_t i = 1; i <= 50; ++i) storage.put(pointer(i), pointer(i + 1000), nullptr);
  for (std::uintptr_t i = 1; i <= 50; ++i) {
    void* value = nullptr;
    REQUIRE(storage.get(pointer(i), value));
    REQUIRE(value == pointer(i + 1000));
  }
  void* value = nullptr;
  CHECK_FALSE(storage.get(pointer(51), value));
}

TEST_CASE("removing says whether there was something, and calls nothing") {
  ended.clear();
  ContextStorage storage;
  storage.put(pointer(1), pointer(100), &note);
  CHECK(storage.remove(pointer(1)));
  CHECK_FALSE(storage.remove(pointer(1)));
  CHECK_FALSE(storage.remove(pointer(2)));
  void* value = nullptr;
  CHECK_FALSE(storage.get(pointer(1), value));
  CHECK(ended.empty());
}

TEST_CASE("clearing calls each destructor once with its context, key and value") {
  ended.clear();
  ContextStorage storage;
  const auto context = reinterpret_cast<CUcontext>(pointer(7));
  storage.put(pointer(1), pointer(100), &note);
  storage.put(pointer(2), pointer(200), nullptr);
  storage.put(pointer(3), pointer(300), &note);
  CHECK(storage.remove(pointer(3)));
  storage.clear(context);
  storage.clear(context);
  CHECK(ended == std::vector<Ended>{{context, pointer(1), pointer(100)}});
  void* value = nullptr;
  CHECK_FALSE(storage.get(pointer(2), value));
  storage.put(pointer(1), pointer(101), &note);
  REQUIRE(storage.get(pointer(1), value));
  CHECK(value == pointer(101));
}

TEST_CASE("readers never see a value under another key") {
  ContextStorage storage;
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0};
  std::vector<std::thread> readers;
  for (int reader = 0; reader < 3; ++reader) {
    readers.emplace_back([&] {
      while (!stop.load()) {
        for (std::uintptr_t i = 1; i <= 20; ++i) {
          void* value = nullptr;
          if (storage.get(pointer(i), value) && reinterpret_cast<std::uintptr_t>(value) % 100 != i) ++wrong;
        }
      }
    });
  }
  for (std::uintptr_t round = 1; round <= 2000; ++round) {
    const std::uintptr_t i = round % 20 + 1;
    storage.put(pointer(i), pointer(round * 100 + i), nullptr);
    if (round % 3 == 0) (void)storage.remove(pointer(i));
  }
  stop = true;
  for (auto& reader : readers) reader.join();
  CHECK(wrong == 0);
}
