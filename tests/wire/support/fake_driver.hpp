// SPDX-License-Identifier: Apache-2.0
// A driver for wire tests: records what it is asked to do and has streams whose work ends when the test says so. Kernels do nothing; memory
// operations write to the addresses they name, in stream order. Device memory is addresses only.
// Every address that it is given is asked about (address_oracle.hpp).
// One instance at a time, since the driver's functions have no context argument. Thread safe.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "broker/driver/driver.hpp"
#include "tests/wire/support/address_oracle.hpp"

namespace mpsshim::test {

// Width, height and depth.
using FakeCluster = std::array<unsigned, 3>;
inline constexpr FakeCluster kNoCluster{};
inline constexpr FakeCluster kOneBlock{1, 1, 1};

struct FakeFunction {
  std::string name;
  std::vector<std::size_t> parameter_sizes;                                       // each aligned to its size
  [[nodiscard]] std::vector<std::pair<std::size_t, std::size_t>> layout() const;  // offset, size
  FakeCluster cluster{};                                                          // as cuFuncSetAttribute has set it
};

// What a stream was given, one entry for each operation; the nodes of a graph count singly.
struct FakeCall {
  enum Kind { launch, copy, fill, record, wait, write, bind };  // bind: of a texture or surface reference, in no stream
  explicit FakeCall(Kind what) : kind(what) {}
  Kind kind;
  CUstream stream = nullptr;
  const FakeFunction* function = nullptr;
  unsigned grid_x = 0;
  FakeCluster cluster{};
  unsigned attributes = 0;  // of a launch by itself
  std::vector<std::byte> parameters;
  CUevent event = nullptr;
  std::uint64_t destination = 0;
  std::uint64_t source = 0;
  std::uint64_t bytes_or_value = 0;
  unsigned chain = 0;  // number of the graph launch, 0: issued by itself
  std::size_t chain_length = 0;
  int priority = 0;                    // of the stream
  int own_priority = 0;                // that its launch names
  CUcontext stream_context = nullptr;  // whose multiprocessors the stream has; null: the whole device's
  CUcontext graph_context = nullptr;   // of a graph's node: what was current when it was added
};

class FakeDriver {
 public:
  FakeDriver();
  ~FakeDriver();
  FakeDriver(const FakeDriver&) = delete;

  [[nodiscard]] std::unique_ptr<broker::Driver> driver() const;

  [[nodiscard]] std::vector<FakeCall> calls() const;
  [[nodiscard]] std::vector<FakeCall> calls(FakeCall::Kind kind) const;
  void forget_calls();
  // From now on work is queued and ends only by complete(); before, it ends at once.
  void hold_work();
  // Ends the oldest `submissions` of every stream; with `keeps_event_order`, of those whose waits have been met.
  void complete(std::size_t submissions = ~std::size_t{0});
  void resume_work();
  [[nodiscard]] CUarray make_array(const CUDA_ARRAY3D_DESCRIPTOR& descriptor);

  [[nodiscard]] static FakeDriver& current();
  [[nodiscard]] static CUcontext pushed_context();  // of the calling thread, above the executor's own; null: none

  AddressOracle oracle;  // asked of every address first

  bool has_graphs = true;
  std::atomic<bool> refuses_changes{false};  // of graphs' copies and fills
  bool has_batches = true;
  bool keeps_event_order = false;
  std::atomic<unsigned> graphs_made{0};
  std::atomic<unsigned> other_functions{0};     // nodes of executable graphs that were given another one
  std::atomic<unsigned> conditioned_graphs{0};  // graphs there are with conditional handles
  std::atomic<std::uint64_t> last_condition{0x100};
  std::atomic<unsigned> access_changes{0};  // cuMemSetAccess
  std::atomic<unsigned> externals{0};  // external memory there is, and buffers mapped of it
  std::atomic<unsigned> buffers{0};
  std::atomic<unsigned> greens{0};  // green contexts there are
  std::atomic<unsigned> green_streams{0};
  std::atomic<unsigned> green_conflicts{0};  // calls that named a green context while another thread had it current or was in such a call
  CUresult launch_result = CUDA_SUCCESS;     // of the next plain launches

  // Clusters, as an H200 was seen to have them: a graph's node takes that of its function when it is set to it from another one, and keeps it.
  bool keeps_clusters = false;                     // in nodes, for good
  bool ignores_clusters = false;                   // of functions, in graphs
  bool refuses_clustered_nodes = false;            // to be given the cluster that their function has
  std::atomic<CUresult> cluster_result{};          // of setting one
  std::atomic<CUresult> cluster_removal_result{};  // of taking it away

  // Arrays and textures that there are; levels go with their arrays.
  std::atomic<unsigned> arrays{0};
  std::atomic<unsigned> most_arrays{~0u};
  std::atomic<unsigned> textures{0};
  std::atomic<unsigned> dead_uses{0};  // calls that named an array or a texture that was gone, or ended an array that a texture reads

  // Functions that are launched or put into nodes while another thread changes one or asks about one, which NVIDIA's driver does not keep apart.
  std::atomic<unsigned> function_conflicts{0};
  std::atomic<int> function_users{0};
  std::atomic<int> function_changes{0};

 private:
  friend struct FakeMemoryEntry;
  friend struct FakeStreamsEntry;
  friend struct FakeLaunchesEntry;
  friend struct FakeGraphs;
  friend struct FakeArrayEntry;
  struct Submission {
    std::function<void()> effect;
    std::vector<FakeCall> calls;
    std::uint64_t count = 0;  // of the event's records: of the one made here, or waited for
  };
  struct Stream {
    std::deque<Submission> pending;
    CUcontext context = nullptr;
    int priority = 0;
  };
  // A handle that nothing had before.
  template <typename Handle>
  CUresult make(Handle* handle) {
    const std::lock_guard lock(mutex_);
    *handle = reinterpret_cast<Handle>(next_handle_ += 16);
    return CUDA_SUCCESS;
  }
  [[nodiscard]] bool may_end(const Submission& submission) const;
  void end_first(Stream& stream);
  // Of memory that ends, or arrays: work that is held must not name it.
  void look_for_users(const char* where, std::uint64_t begin, std::uint64_t size_bytes);
  void begin_green_use(CUcontext context);
  void end_green_use(CUcontext context);
  void submit(CUstream stream, FakeCall call, std::function<void()> effect = {});
  void submit_all(CUstream stream, std::vector<FakeCall> calls, std::function<void()> effect);

  mutable std::mutex mutex_;
  std::vector<FakeCall> calls_;
  std::map<CUstream, Stream> streams_;
  struct Records {
    std::uint64_t made = 0;
    std::uint64_t ended = 0;
  };
  std::map<CUevent, Records> records_;
  std::map<CUcontext, std::multiset<std::thread::id>> green_users_;
  struct Array {
    CUDA_ARRAY3D_DESCRIPTOR shape{};
    std::uint64_t parent = 0;  // of a level
  };
  std::map<std::uint64_t, Array> arrays_;                  // live ones, mipmapped ones too
  std::map<std::uint64_t, std::uint64_t> texture_arrays_;  // live textures; 0: it reads linear memory
  bool holding_ = false;
  std::atomic<unsigned> graph_launches_{0};
  std::uintptr_t next_handle_ = 0x1000;
};

}  // namespace mpsshim::test
