// SPDX-License-Identifier: Apache-2.0
// What the exercises of one thread share: its random numbers, its history, its streams, its pace; and, of the whole process, the kernels and the
// tally. Every result goes through expect(), which throws with everything that is known of it.
#pragma once

#include <cuda.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <shared_mutex>
#include <span>
#include <string>
#include <vector>

#include "history.hpp"
#include "pace.hpp"
#include "random.hpp"
#include "steps.hpp"
#include "tally.hpp"

namespace mpsshim::soak {

// How large things get. Those of the CPU driver, which interprets kernels, are small.
struct Sizes {
  unsigned words = 4096;  // of a chain
  unsigned steps = 300;
  std::size_t copy_bytes = std::size_t{64} << 20;
  unsigned local_bytes = 32768;  // of a thread
  unsigned ticks = 40'000;       // of a kernel that takes its time
  static Sizes small() { return {512, 48, std::size_t{1} << 20, 4096, 2'000}; }
};

struct ProcessOptions {
  std::uint64_t seed = 1;
  double seconds = 5;
  std::uint64_t most_sequences = ~0ull;  // it ends after so many
  unsigned threads = 1;
  Sizes sizes;
  std::string only;             // exercises, by commas; empty: all
  std::string without;          // but these
  std::string tally;            // file; empty: none
  std::string cublas;           // path of the library; empty: no gemms
  bool leaves_at_once = false;  // without giving anything back
  bool has_narrow_nodes = false;  // kernels in nodes of graphs have few parameters
};

struct Process {
  const ProcessOptions& options;
  CUdevice device = 0;
  CUcontext context = nullptr;
  StepKernels kernels;
  Tally& tally;
  // Held while a stream captures, and shared by waits for the whole context, which spoil what any thread captures.
  std::shared_mutex capturing{};
};

// A stream of the thread's; the NULL stream among them.
struct Stream {
  CUstream handle = nullptr;
  bool is_blocking = true;
};

class Workplace {
 public:
  Workplace(Process& process, std::uint64_t seed);
  Workplace(const Workplace&) = delete;
  ~Workplace();

  Process& process;
  Random random;
  History history;
  Pace pace;

  [[nodiscard]] const Sizes& sizes() const { return process.options.sizes; }
  [[nodiscard]] const std::vector<Stream>& streams() const { return streams_; }
  [[nodiscard]] const Stream& any_stream() { return streams_[random.below(streams_.size())]; }
  // Now and then a stream goes and another one comes. Only while nobody holds one.
  void change_streams();

  void did(unsigned operations = 1) { operations_ += operations; }
  void verified(Kind kind);
  // The host waits for the stream, in one way or another.
  void wait_for(const Stream& stream);
  // Behind a launch, as the pace has it: the host waits, or sleeps.
  void keep_pace(const Stream& stream);

  // Memory as it is to be. `what` names it. Throws where it is not.
  void expect(const char* what, std::span<const Word> found, std::span<const Word> wanted);
  void expect(const char* what, Sum found, Sum wanted);

 private:
  void add_stream();

  std::vector<Stream> streams_;
  CUevent event_ = nullptr;
  std::uint64_t operations_ = 0;
};

// Device memory that goes with the object.
class DeviceMemory {
 public:
  explicit DeviceMemory(std::size_t bytes);
  DeviceMemory(const DeviceMemory&) = delete;
  ~DeviceMemory() {
    if (address_ != 0) cuMemFree(address_);
  }
  [[nodiscard]] CUdeviceptr address() const { return address_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  CUdeviceptr address_ = 0;
  std::size_t bytes_;
};

}  // namespace mpsshim::soak
