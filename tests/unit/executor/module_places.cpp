// SPDX-License-Identifier: Apache-2.0
// A driver that puts a module's variables into the first block that is free, and takes blocks for memory too.
#include "broker/executor/module_places.hpp"

#include <memory>

#include "tests/support/catch.hpp"

namespace mpsshim::broker {
namespace {

constexpr CUdeviceptr kFirst = 0x768004200000;
constexpr std::size_t kBlockBytes = 2u << 20;

std::size_t taken_bytes = 0;
int loaded = 0, unloaded = 0;
bool has_memory = true;

CUresult CUDAAPI allocate(CUdeviceptr* address, std::size_t bytes) {
  if (!has_memory) return CUDA_ERROR_OUT_OF_MEMORY;
  taken_bytes += bytes;
  return *address = 16, CUDA_SUCCESS;
}
CUresult CUDAAPI unload(CUmodule) { return ++unloaded, CUDA_SUCCESS; }

struct Places {
  Places() {
    taken_bytes = 0;
    loaded = unloaded = 0;
    has_memory = true;
  }
  CUdeviceptr load_at(CUdeviceptr wanted, bool has_variables = true) {
    const auto load = [&] {
      ++loaded;
      image = std::make_shared<LoadedImage>();
      image->handle = reinterpret_cast<CUmodule>(16);
      if (has_variables) image->variables.push_back({kFirst + (taken_bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes, 4, {}});
      return CUDA_SUCCESS;
    };
    REQUIRE(places.load_at(wanted, load, image) == CUDA_SUCCESS);
    REQUIRE(image->handle != nullptr);
    CHECK(loaded == unloaded + 1);
    return ModulePlaces::place_of(*image);
  }

  std::unique_ptr<Driver> driver = [] {
    DriverTable table;
    table.cuMemAlloc_v2 = allocate;
    table.cuModuleUnload = unload;
    return Driver::from_table(table);
  }();
  ModulePlaces places{*driver};
  std::shared_ptr<LoadedImage> image;
};

}  // namespace

TEST_CASE("a module that comes back where it was is loaded once") {
  Places p;
  SECTION("with variables") { CHECK(p.load_at(kFirst) == kFirst); }
  SECTION("without") { CHECK(p.load_at(0, false) == 0); }
  CHECK(taken_bytes == 0);
}

TEST_CASE("a module that would come back lower gets its place") {
  Places p;
  CHECK(p.load_at(kFirst + kBlockBytes) == kFirst + kBlockBytes);
  CHECK(unloaded == 1);
}

TEST_CASE("several blocks may lie in between") {
  Places p;
  CHECK(p.load_at(kFirst + 3 * kBlockBytes) == kFirst + 3 * kBlockBytes);
}

TEST_CASE("a place that is out of reach, above or below, is given up") {
  Places p;
  SECTION("far above") {
    CHECK(p.load_at(kFirst + 100 * kBlockBytes) < kFirst + 100 * kBlockBytes);
    CHECK(unloaded == ModulePlaces::kMostPieces);
  }
  SECTION("below") {
    CHECK(p.load_at(kFirst - kBlockBytes) == kFirst);
    CHECK(unloaded == 0);
  }
  SECTION("no memory") {
    has_memory = false;
    CHECK(p.load_at(kFirst + kBlockBytes) == kFirst);
    CHECK(unloaded == 0);
  }
}

}  // namespace mpsshim::broker
