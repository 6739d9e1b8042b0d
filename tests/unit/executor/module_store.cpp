// SPDX-License-Identifier: Apache-2.0
// Which loaded copy of an image a client gets, what its variables hold then, and which copies go.
#include "broker/executor/modules/module_store.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gen/records.hpp"
#include "proto/module_functions.hpp"
#include "tests/support/catch.hpp"
#include "tests/unit/executor/support/module_scene.hpp"

namespace mpsshim::broker::module_scene {

TEST_CASE("an image without variables is one for all, and tells of its functions") {
  Store s;
  s.add(7, kPlain);
  const ImageUse first = s.store.find(7);
  const ImageUse second = s.store.find(7);
  REQUIRE((first && second));
  CHECK(*first == *second);
  CHECK(s.store.find(8) == nullptr);
  CHECK(modules.size() == 1);
  const LoadedImage& image = **first;
  REQUIRE(image.described.size() == 1);
  proto::ModuleFunction entry;
  REQUIRE(image.description.size() == proto::module_function_bytes(1, 6));
  std::memcpy(&entry, image.description.data(), sizeof entry);
  CHECK(entry.entry_bytes == image.description.size());
  CHECK(entry.parameter_bytes == 8);
  CHECK(entry.attribute[3] == 103);
  CHECK(image.described[0]->cluster.suits({}));  // a cluster is in its image, so no chain gives it one
  CHECK(image.described[0]->cluster.suits({2, 1, 1, 0}));
  CHECK(std::memcmp(image.description.data() + sizeof entry + 8, "kernel", 6) == 0);
  CHECK(ModuleStore::find_function(**first, "kernel") == image.described[0]);
  CHECK(ModuleStore::find_function(**first, "another") == nullptr);
}

TEST_CASE("a copy with variables is one client's, and begins anew with the next") {
  Store s;
  s.add(7, kCounter);
  ImageUse first = s.store.find(7);
  REQUIRE(first);
  CHECK(s.store.find(7) == nullptr);
  CHECK((*first)->globals.at("counter").second == 4);
  Store::counter(first) = 99;
  first.reset();
  CHECK(s.store.find(7) == nullptr);  // not before it is restored
  const ImageUse second = s.load(7);
  CHECK(Store::counter(second) == 5);
  CHECK(modules.size() == 1);
  CHECK(unloaded == 0);
}

TEST_CASE("variables of one section are found with two questions, and read and brought back one by one") {
  const std::unique_ptr<Driver> driver = make_driver();
  PreparedImage prepared;
  prepared.has_writable_globals = true;
  prepared.variables.emplace();
  const auto add = [&](unsigned place, bool is_zero, unsigned section, std::uint64_t offset_bytes, std::uint64_t size_bytes = 1) {
    prepared.variables->push_back({std::to_string(place), is_zero, section, offset_bytes, size_bytes});
  };
  for (const unsigned place : {9u, 0u, 1u, 2u, 3u}) add(place, false, 4, place);
  add(1'500, false, 4, 1'500);
  add(41, false, 5, 0);         // another section
  add(42, false, 0, 0);         // not known which
  add(50, true, 6, 100);
  add(53, true, 6, 103);
  LoadedImage image;
  std::string log;
  copies = 0;
  questions = 0;
  const auto load = [&] { REQUIRE(load_image(*driver, prepared, image, log) == CUDA_SUCCESS); };
  const auto places = [&] { return reinterpret_cast<Module*>(image.handle)->table; };
  SECTION("as they are") {
    load();
    CHECK(questions == 2 + 1 + 1 + 2);
    REQUIRE(image.variables.size() == 10);
    CHECK(std::ranges::all_of(image.variables, [](const LoadedImage::Variable& variable) { return variable.size_bytes == 1; }));
    CHECK(std::ranges::count_if(image.variables, [](const LoadedImage::Variable& variable) { return variable.content.empty(); }) == 2);
    CHECK(image.can_be_restored);
    CHECK(image.globals.size() == 10);
    CHECK(image.globals.at("2").first == reinterpret_cast<CUdeviceptr>(places() + 2));
    CHECK(copies == 8);
    std::fill_n(places(), kPlaces, std::uint8_t{7});
    copies = 0;
    REQUIRE(restore_variables(*driver, image.variables, nullptr) == CUDA_SUCCESS);
    CHECK(copies == 10);
    CHECK(std::count(places(), places() + kPlaces, 0) == 10);
  }
  SECTION("more than are read in a window serve one client, of which the places are noted") {
    for (unsigned place = 100; place < 160; ++place) add(place, false, 4, place);
    load();
    CHECK(image.variables.size() == 70);
    CHECK(copies == 0);
    CHECK(std::ranges::count_if(image.variables, [](const LoadedImage::Variable& variable) { return variable.is_content_known; }) == 2);
    CHECK_FALSE(image.can_be_restored);
    CHECK(image.globals.at("159").first == reinterpret_cast<CUdeviceptr>(places() + 159));
  }
  SECTION("where the file and the driver say otherwise each is asked for") {
    const bool is_size = GENERATE(true, false);
    if (is_size)
      prepared.variables->at(5).size_bytes = 2;
    else
      prepared.variables->at(5).offset_bytes = 1'501;
    load();
    CHECK(questions == 2 + 6 + 1 + 1 + 2);
    CHECK(image.globals.at("1500").first == reinterpret_cast<CUdeviceptr>(places() + 1'500));
  }
  SECTION("where memory elsewhere stands for some, each by itself") {
    prepared.placed.push_back({"shared", true});
    load();
    CHECK(image.variables.size() == 10);
  }
}

TEST_CASE("a copy tells whether its code has atomic operations that exclude the host's") {
  const std::unique_ptr<Driver> driver = make_driver();
  PreparedImage prepared;
  prepared.adds_for_system = GENERATE(false, true);
  LoadedImage image;
  std::string log;
  REQUIRE(load_image(*driver, prepared, image, log) == CUDA_SUCCESS);
  CHECK(image.adds_for_system == prepared.adds_for_system);
}

TEST_CASE("several copies serve as many clients") {
  Store s;
  s.add(7, kCounter);
  s.add(7, kCounter);
  const ImageUse first = s.load(7);
  const ImageUse second = s.load(7);
  CHECK(*first != *second);
  Store::counter(first) = 1;
  CHECK(Store::counter(second) == 5);
}

TEST_CASE("a copy whose variables are not all known serves one client") {
  Store s;
  global_result = CUDA_ERROR_NOT_FOUND;
  s.add(7, kCounter);
  ImageUse only = s.store.find(7);
  REQUIRE(only);
  only.reset();
  CHECK(s.has_unloaded(1));
  CHECK(s.store.find(7) == nullptr);
}

TEST_CASE("the least recently used images go, and none that is in use") {
  Store s(3 * 64 * 1024);  // small images count 64 KiB each
  for (std::uint64_t image = 1; image <= 3; ++image) s.add(image, kPlain);
  ImageUse used = s.store.find(1);
  (void)s.store.find(2);
  (void)s.store.find(3);
  (void)s.store.find(2);
  s.add(4, kPlain);
  (void)s.store.find(4);  // giving it back finds the cache too full
  CHECK(s.has_unloaded(1));
  CHECK(s.store.find(3) == nullptr);
  CHECK((s.store.find(1) && s.store.find(2) && s.store.find(4)));
}

TEST_CASE("what an image's variables take of the device counts for how long it stays") {
  constexpr std::size_t kSmall = 64 * 1024;
  Store s(2 * kSmall + sizeof(Module));
  const auto fill = [&s] {
    for (const std::uint64_t image : {1u, 2u}) s.add(image, kCounter);
    (void)s.store.find(1);
    (void)s.store.find(2);
  };
  SECTION("small ones fit") {
    fill();
    for (const std::uint64_t image : {1u, 2u}) CHECK(s.load(image));
    CHECK(unloaded == 0);
  }
  SECTION("with larger variables one of them goes") {
    counter_bytes = sizeof(Module);
    fill();
    CHECK(s.has_unloaded(1));
  }
}

TEST_CASE("a logged unload takes the copy of its number") {
  Store s;
  s.add(7, kCounter);  // 1
  s.add(7, kCounter);  // 2
  const CUmodule second = reinterpret_cast<CUmodule>(modules[1].get());
  s.store.replay_unload(7, 1);
  CHECK(unloaded == 1);
  s.store.replay_unload(7, 5);
  CHECK(unloaded == 1);
  const ImageUse left = s.store.find(7);
  REQUIRE(left);
  CHECK((*left)->handle == second);
}

namespace {
std::uint64_t loaded_hash_of_counter(std::uint32_t value) { return loaded_hash_of(std::as_bytes(std::span(&value, 1))); }
}  // namespace

TEST_CASE("a copy with kept variables is its owner's, with what they held") {
  Store s;
  s.add(7, kCounter, 42);
  s.add(7, kCounter, 43);
  s.add(8, kCounter);
  const auto variables_of = [](std::size_t module) {
    const std::uint32_t value = 77;
    std::vector<std::byte> content(sizeof value);
    std::memcpy(content.data(), &value, sizeof value);
    return std::vector<LoadedImage::Variable>{
        {reinterpret_cast<CUdeviceptr>(&modules[module]->counter), sizeof value, std::move(content), true, loaded_hash_of_counter(5)}};
  };
  CHECK(s.store.find(7) == nullptr);  // nobody else's
  ImageUse use;
  SECTION("it comes back") {
    REQUIRE(s.store.take_kept(43, 7, 2, variables_of(1), use) == CUDA_SUCCESS);
    CHECK((*use)->copy == 2);
    CHECK(Store::counter(use) == 77);
    CHECK(modules[0]->counter == 5);
    use.reset();
    const ImageUse next = s.load(7);  // anybody's now, from the beginning
    CHECK(Store::counter(next) == 5);
  }
  SECTION("the variables lie elsewhere") {
    CHECK(s.store.take_kept(43, 7, 2, variables_of(0), use) == CUDA_ERROR_MPS_SERVER_NOT_READY);
    CHECK(use == nullptr);
    CHECK(modules[1]->counter == 5);
  }
  SECTION("whether they are where they were can be asked") {
    const auto table = [](std::uint64_t copy, std::size_t module, std::uint64_t size_bytes = 4, std::uint32_t loaded = 5) {
      const auto address = reinterpret_cast<CUdeviceptr>(&modules[module]->counter);
      return KeptVariable{1, 7, copy, address, size_bytes, 0, 0, loaded_hash_of_counter(loaded)};
    };
    CHECK(s.store.has_kept({}));
    CHECK(s.store.has_kept(std::vector{table(1, 0), table(2, 1)}));
    CHECK_FALSE(s.store.has_kept(std::vector{table(1, 0), table(2, 0)}));
    CHECK_FALSE(s.store.has_kept(std::vector{table(1, 0, 8)}));
    CHECK_FALSE(s.store.has_kept(std::vector{table(3, 0)}));
    CHECK_FALSE(s.store.has_kept(std::vector{table(1, 0), table(1, 0)}));
    CHECK(s.store.has_kept(std::vector{table(1, 0, 4, 6)}));  // it has no functions' addresses
  }
  SECTION("its functions may lie elsewhere") {
    s.add(9, kLinked, 43);
    loaded_counter = 6;
    s.add(9, kLinked, 43);
    const auto is_here = [&](std::uint64_t copy, std::size_t module) {
      const auto address = reinterpret_cast<CUdeviceptr>(&modules[module]->counter);
      return s.store.has_kept(std::vector{KeptVariable{1, 9, copy, address, 4, 0, 0, loaded_hash_of_counter(5)}});
    };
    CHECK(is_here(4, 3));
    CHECK_FALSE(is_here(5, 4));
    CHECK(s.store.take_kept(43, 9, 5, variables_of(4), use) == CUDA_ERROR_MPS_SERVER_NOT_READY);
    CHECK(use == nullptr);
    CHECK(modules[4]->counter == 6);
    CHECK(s.store.take_kept(43, 9, 4, variables_of(3), use) == CUDA_SUCCESS);
    CHECK(Store::counter(use) == 77);
  }
  SECTION("its functions may lie elsewhere, and its variables alone have their addresses") {
    s.add(9, kTable, 43);
    loaded_counter = 6;
    s.add(9, kTable, 43);
    std::uint32_t held = 5;
    bool is_looked_up = false;
    const auto is_here = [&](std::uint64_t copy, std::size_t module) {
      const auto address = reinterpret_cast<CUdeviceptr>(&modules[module]->counter);
      const KeptVariable kept{1, 9, copy, address, 4, 0, 0, loaded_hash_of_counter(5), is_looked_up ? 1u : 0u};
      return s.store.has_kept(std::vector{kept}, std::as_bytes(std::span(&held, 1)));
    };
    const auto take = [&](std::uint64_t copy, std::size_t module) {
      std::vector<LoadedImage::Variable> kept = variables_of(module);
      std::memcpy(kept[0].content.data(), &held, sizeof held);
      kept[0].is_looked_up = is_looked_up;
      return s.store.take_kept(43, 9, copy, kept, use);
    };
    CHECK(is_here(4, 3));
    CHECK(is_here(5, 4));
    SECTION("one that was never changed stands as it is loaded") {
      REQUIRE(take(5, 4) == CUDA_SUCCESS);
      CHECK(Store::counter(use) == 6);
    }
    SECTION("one that was changed has what it held, where the load is alike") {
      held = 77;
      CHECK(is_here(4, 3));
      CHECK_FALSE(is_here(5, 4));
      CHECK(take(5, 4) == CUDA_ERROR_MPS_SERVER_NOT_READY);
      REQUIRE(take(4, 3) == CUDA_SUCCESS);
      CHECK(Store::counter(use) == 77);
    }
    SECTION("of one that its client may have read the client knows the addresses") {
      is_looked_up = true;
      CHECK(is_here(4, 3));
      CHECK_FALSE(is_here(5, 4));
      CHECK(take(5, 4) == CUDA_ERROR_MPS_SERVER_NOT_READY);
    }
  }
  SECTION("at other addresses, for a trial") {
    const ImageUse own = s.load(8);
    CHECK(s.store.put_elsewhere(43, **own, variables_of(1)) == CUDA_SUCCESS);
    CHECK(Store::counter(own) == 77);
    loaded_counter = 6;
    s.add(9, kCounter);
    const ImageUse another = s.load(9);
    CHECK(s.store.put_elsewhere(43, **another, variables_of(1)) == CUDA_ERROR_MPS_SERVER_NOT_READY);
    CHECK(Store::counter(another) == 6);
  }
  SECTION("no copy has that number, or it is another's") {
    CHECK(s.store.take_kept(43, 7, 3, variables_of(1), use) == CUDA_ERROR_MPS_SERVER_NOT_READY);
    CHECK(s.store.take_kept(43, 7, 1, variables_of(0), use) == CUDA_ERROR_MPS_SERVER_NOT_READY);
    CHECK(use == nullptr);
  }
  SECTION("there are two of its number") {
    s.next_copy = 2;
    s.add(7, kCounter, 43);
    REQUIRE(s.store.take_kept(43, 7, 2, variables_of(3), use) == CUDA_SUCCESS);
    CHECK(Store::counter(use) == 77);
    CHECK(modules[3]->counter == 77);
    CHECK(modules[1]->counter == 5);
  }
  SECTION("it has come to be another's, or nobody's, since it was loaded again") {
    s.store.reserve(7, 2, 44);
    s.store.reserve(7, 1, 0);
    s.store.reserve(7, 4, 44);  // there is none
    CHECK(s.store.take_kept(43, 7, 2, variables_of(1), use) == CUDA_ERROR_MPS_SERVER_NOT_READY);
    const ImageUse newcomer = s.store.find(7);
    REQUIRE(newcomer);
    CHECK((*newcomer)->copy == 1);
    CHECK(s.store.find(7) == nullptr);
    REQUIRE(s.store.take_kept(44, 7, 2, variables_of(1), use) == CUDA_SUCCESS);
    CHECK(Store::counter(use) == 77);
  }
  SECTION("it does not come back") {
    s.store.forget_owner(43);
    const ImageUse newcomer = s.store.find(7);
    REQUIRE(newcomer);
    CHECK((*newcomer)->copy == 2);
    CHECK(s.store.find(7) == nullptr);
  }
}

}  // namespace mpsshim::broker::module_scene
