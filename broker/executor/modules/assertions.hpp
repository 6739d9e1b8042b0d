// SPDX-License-Identifier: Apache-2.0
// Failed assertions that end nothing but the thread that made them (docs/modules.md, "Assertions"). Each loaded copy of an image that may assert has
// an *entry*, which says whose the copy is: the session's word, which its client looks at, and its area, in which threads note where they were. On a
// GPU the copy calls one of the executor's functions, one an entry, loaded once at the start; on the CPU driver the function is in the text.
// What has been noted is read by a helper once the session has come to rest, or a moment later, and told the control process, which fails the
// session.
//
// Threads: open() before there are others; turn() by FaultWatch's; everything else by any. No call but open() and add() waits for the driver.
// Trust: a client's kernels can write the areas, as all of the GPU's memory: addresses in them are read by checked copies, numbers are printed.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "broker/driver/driver.hpp"
#include "broker/executor/base/progress.hpp"
#include "proto/image/assertion_record.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::broker {

class ControlLink;
class FaultReporter;
class HelperPool;
class IssueLock;

class Assertions {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::uint32_t kCpuEntries = 512;
  static constexpr std::uint32_t kStubBlocks = 8;                // of the functions on a GPU
  static constexpr std::chrono::milliseconds kLongestWork{100};  // of a session, after its first failed assertion, until what is noted is read

  Assertions(const Driver& driver, ControlLink& control, const FaultReporter& faults, HelperPool& helpers);
  Assertions(const Assertions&) = delete;
  ~Assertions();

  // Makes the entries, and loads the functions: `compute` is 90 for compute capability 9.0. False, which is logged: nothing else here is to be
  // called, and what asserts ends the context.
  [[nodiscard]] bool open(unsigned compute, IssueLock& issue_lock);

  // A copy's entry, given back with it.
  class Entry {
   public:
    Entry(Assertions& assertions, std::uint32_t index) : assertions_(assertions), index_(index) {}
    Entry(const Entry&) = delete;
    ~Entry() { assertions_.give_back(index_); }
    // What the copy's sites are filled with.
    [[nodiscard]] std::uint64_t address() const { return assertions_.address_of_[index_]; }
    // From now on the copy is that session's; 0: nobody's, no kernel of it runs.
    void assign(std::uint64_t session) const { assertions_.assign(index_, session); }

   private:
    Assertions& assertions_;
    const std::uint32_t index_;
  };
  // nullptr: there is none (any more).
  [[nodiscard]] std::shared_ptr<const Entry> take();

  // A session, before it has any module. `word`: as the GPU sees it. An error: it cannot be served.
  [[nodiscard]] CUresult add(std::uint64_t session, CUdeviceptr word);
  // Nothing of it runs, and it has no copy any more.
  void remove(std::uint64_t session);

  // Looks at all sessions' areas.
  void turn(const Progress& progress, Clock::time_point now);

 private:
  class Memory;
  struct Watched {
    image::AssertionArea* area = nullptr;
    std::uint64_t area_address = 0;
    std::uint64_t word = 0;
    Clock::time_point seen{};  // that it has asserted
    bool is_told = false;
  };

  void give_back(std::uint32_t index);
  void assign(std::uint32_t index, std::uint64_t session);
  [[nodiscard]] CUresult load_stubs(unsigned compute);
  [[nodiscard]] CUresult make_areas() REQUIRES(mutex_);
  void tell(std::uint64_t session, const image::AssertionArea& area);
  [[nodiscard]] std::string text_at(std::uint64_t address);

  const Driver& driver_;
  ControlLink& control_;
  const FaultReporter& faults_;
  HelperPool& helpers_;
  IssueLock* issue_lock_ = nullptr;
  CUstream stream_ = nullptr;              // of what is read
  std::vector<std::uint64_t> address_of_;  // by entry; empty: not open
  std::unique_ptr<Memory> table_;          // entries; then nobody's word and area
  std::uint64_t nobodys_word_ = 0;
  std::uint64_t nobodys_area_ = 0;
  Mutex reading_;  // one helper at a time
  Mutex mutex_;
  std::vector<std::uint32_t> free_entries_ GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Memory>> blocks_ GUARDED_BY(mutex_);
  std::vector<std::pair<image::AssertionArea*, std::uint64_t>> free_areas_ GUARDED_BY(mutex_);
  std::map<std::uint64_t, Watched> sessions_ GUARDED_BY(mutex_);
};

}  // namespace mpsshim::broker
