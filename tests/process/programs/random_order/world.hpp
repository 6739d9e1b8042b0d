// SPDX-License-Identifier: Apache-2.0
// Streams, events and memory on which random operations are made, and what the memory must hold: every operation is applied to a model on
// the host at once, in program order. Before an operation is given to the driver, whatever it must follow and is not yet known to follow
// (happens_before.hpp) is ordered by an event or a wait, chosen at random; so the model's outcome is the only right one.
//
// One thread, its context current. Every function throws Failure, for a driver's error as for a wrong word; the text names the region, the
// word, and the operations that last wrote there.
#pragma once

#include <cuda.h>

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "tests/process/programs/random_order/happens_before.hpp"
#include "tests/process/programs/random_order/order_kernels.hpp"

namespace mpsshim::test {

struct Lane {
  CUstream stream = nullptr;
  std::string name;
  bool is_null = false;
  bool is_blocking = true;  // ordered with the NULL stream by the driver
  Clock clock;
  Clock at_last_work;  // what a stream that is ordered with this one by the driver follows
};

struct Region {
  enum class Kind : std::uint8_t { device, pinned, variable };
  Kind kind = Kind::device;
  std::string name;
  CUdeviceptr address = 0;
  std::uint32_t* host = nullptr;  // of pinned memory
  Words32 expected;
  Accesses accesses;
  std::deque<std::string> history;  // its last writers

  [[nodiscard]] std::uint32_t count() const { return static_cast<std::uint32_t>(expected.size()); }
};

struct Mark {
  CUevent event = nullptr;
  bool is_recorded = false;
  Clock clock;  // what it stands for
};

// A part of a region, in words.
struct Part {
  Region* region = nullptr;
  std::uint32_t first = 0;
  std::uint32_t count = 0;

  [[nodiscard]] std::span<std::uint32_t> words() const { return std::span(region->expected).subspan(first, count); }
  [[nodiscard]] CUdeviceptr address() const { return region->address + first * sizeof(std::uint32_t); }
};

class World {
 public:
  // `is_alone`: no other thread of this process uses the NULL stream, so what a query of it must say is known.
  World(std::uint64_t seed, bool is_alone);
  World(const World&) = delete;
  ~World();

  void run(unsigned operations);
  // Waits for everything and compares all memory.
  void finish();

 private:
  // world.cpp: lanes, order
  [[nodiscard]] std::uint32_t below(std::uint32_t limit) { return static_cast<std::uint32_t>(random_() % limit); }
  [[nodiscard]] bool chance(std::uint32_t percent) { return below(100) < percent; }
  void add_lane(CUstream stream, const std::string& name, bool is_blocking);
  void add_region(Region::Kind kind, std::uint32_t words);
  // Makes the lane's next operation come after all that conflicts with it, and notes it.
  void begin_work(std::size_t lane, std::initializer_list<Region*> reads, std::initializer_list<Region*> writes, const std::string& what);
  void begin_host(Region& region, bool writes, const std::string& what);
  void learn_implicit_order(Lane& lane);
  void follow(std::size_t lane, Access access);
  void host_follows(Access access);
  // Both are operations of the lane, which it has not done the moment they are called.
  void record(Mark& mark, std::size_t lane);
  void wait_for(std::size_t lane, const Mark& mark);
  void check(const Region& region, std::span<const std::uint32_t> found, std::uint32_t first, const char* where) const;

  // operations.cpp
  void burst(unsigned operations);
  void operate(std::size_t lane, bool mostly_launches);
  void copy_in(std::size_t lane);
  void copy_out(std::size_t lane);
  void copy_within(std::size_t lane);
  void fill(std::size_t lane);
  void copy_now();
  void use_event(std::size_t lane);
  void synchronize(std::size_t lane);
  void query(std::size_t lane);
  [[nodiscard]] bool ask(const char* what, bool is_over, const std::function<CUresult()>& query);
  void touch_pinned();
  void replace_stream();
  [[nodiscard]] Part part_for(std::size_t lane, std::uint32_t limit);
  [[nodiscard]] Region& pinned();
  [[nodiscard]] Mark& any_mark() { return marks_[below(static_cast<std::uint32_t>(marks_.size()))]; }
  [[nodiscard]] Words32 random_words(std::uint32_t count);

  // launches.cpp
  void launch(std::size_t lane);
  void launch_function(CUfunction function, std::size_t lane, std::uint32_t threads, std::uint32_t block, std::uint32_t shared_bytes,
                       void** arguments);
  void launch_affine(std::size_t lane, const OrderKernels& kernels);
  void launch_slow(std::size_t lane, const OrderKernels& kernels);
  void launch_combine(std::size_t lane, const OrderKernels& kernels);
  void launch_rotate(std::size_t lane, const OrderKernels& kernels);
  void launch_blob(std::size_t lane, const OrderKernels& kernels);
  void launch_bump(std::size_t lane, std::size_t module);

  const bool is_alone_;
  std::mt19937_64 random_;
  std::uint64_t operation_ = 0;  // number of the operation being made
  std::array<OrderKernels, kOrderModules> kernels_;
  std::vector<Lane> lanes_;  // [0] is the host
  std::vector<std::unique_ptr<Region>> regions_;
  std::vector<Mark> marks_;
};

}  // namespace mpsshim::test
