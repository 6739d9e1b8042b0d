// SPDX-License-Identifier: Apache-2.0
// Asked of every address that the driver of wire tests and fuzzers is given, by parameter (gen/address_rows.hpp, from proto/spec/addresses.toml):
// whether it is the memory of one client, or what else must hold of it. It knows no part of the executor: what is mapped and registered it hears
// from the driver's own calls, and whose it is it tells by the lease; of external memory, by the file; of modules'
// variables, by what the test says.
//
// What is wrong is kept; a FakeDriver that ends with something wrong that no test has taken ends the program.
// Thread safe: a call is asked about under one lock.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "gen/address_rows.hpp"

namespace mpsshim::test {

// Session n has the n-th of these, from 1 on.
inline constexpr std::uint64_t kDeviceLease = 0x2000'0000'0000;
inline constexpr std::uint64_t kPinnedLease = 0x3800'0000'0000;
inline constexpr std::uint64_t kLeaseBytes = 1ull << 34;
inline constexpr std::uint64_t kExternalMemory = 0x1800'0000'0000;  // where it is mapped, at the lowest place with room

class AddressOracle {
 public:
  AddressOracle() = default;
  AddressOracle(const AddressOracle&) = delete;

  // --- what there is ---
  void note_mapped(std::uint64_t address, std::uint64_t size_bytes);
  void note_unmapped(std::uint64_t address);
  void note_registered(std::uint64_t address, std::uint64_t size_bytes);
  void note_unregistered(std::uint64_t address);
  void note_array(CUarray array, const CUDA_ARRAY3D_DESCRIPTOR& descriptor);
  void note_mipmapped(CUmipmappedArray array);
  void note_array_gone(std::uint64_t array);  // of either kind
  // Registered memory outside of all leases is the executor's own, but for this (staging segments).
  void give(std::uint64_t address, std::uint64_t session);
  // A variable of a module that one session has, and its end: the copy of the module is nobody's any more, and may become another client's.
  void give_variable(std::uint64_t address, std::uint64_t size_bytes, std::uint64_t session);
  void take_variable(std::uint64_t address);
  [[nodiscard]] bool has_variable(std::uint64_t address);
  // External memory: a file that one session imports, what of it is mapped where (0: there is no such memory), and both ends.
  void give_file(int file, std::uint64_t session);
  void note_imported(CUexternalMemory memory, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC& description);
  [[nodiscard]] std::uint64_t place_external(CUexternalMemory memory, std::uint64_t size_bytes);
  void note_freed(std::uint64_t address);
  void note_destroyed(CUexternalMemory memory);
  // Nothing in its leases is there any more.
  void forget(std::uint64_t session);
  // On whose behalf all calls are from now on; 0: one of them, all through a call.
  void act_as(std::uint64_t session);
  // From now on each call is on behalf of the session whose mark the calling thread has (broker/executor/base/scoped_call.hpp).
  void follow_marks();
  void report(const std::string& violation);
  // Where work begins to read or write that names memory by what was said earlier: a graph's node.
  void begin_at(const char* where, std::uint64_t address);
  // Of what is there, or 0.
  [[nodiscard]] std::uint64_t registered_bytes(std::uint64_t address);
  [[nodiscard]] std::uint64_t buffer_bytes(std::uint64_t address);
  // What is there of sessions, but for that one's: "" if nothing is.
  [[nodiscard]] std::string what_is_left(std::uint64_t but_of);

  [[nodiscard]] std::vector<std::string> take_violations();

  template <auto Member, typename... Parameters>
  void ask(Parameters... parameters) {
    const std::lock_guard lock(mutex_);
    owner_ = 0;
    if (follows_marks_) actor_ = marked_session();
    AddressRow<Member>::ask(*this, parameters...);
  }

  // --- the rules of addresses.toml; `where`: function and parameter ---
  template <typename Address>
  void bytes(const char* where, Address address, std::uint64_t size_bytes) {
    check_bytes(where, number(address), size_bytes);
  }
  void bytes_or_row(const char* where, CUdeviceptr address, std::uint64_t size_bytes);
  void rows(const char* where, CUdeviceptr address, std::uint64_t pitch, std::uint64_t width, std::uint64_t height, std::uint64_t element_bytes);
  void texels(const char* where, CUdeviceptr address, const CUDA_ARRAY_DESCRIPTOR* descriptor, std::uint64_t pitch);
  void operations(const char* where, const CUstreamBatchMemOpParams* operations, unsigned count);
  void word(const char* where, CUdeviceptr address, std::uint64_t size_bytes);
  void leased(const char* where, CUdeviceptr address, std::uint64_t size_bytes);
  void reserved(const char* where, CUdeviceptr address, std::uint64_t size_bytes);
  template <typename Address>
  void host(const char* where, Address address, std::uint64_t size_bytes) {
    check_host(where, number(address), size_bytes);
  }
  void registrable(const char* where, const void* address, std::uint64_t size_bytes);
  void registered(const char* where, const void* address);
  void part(const char* where, const CUDA_EXTERNAL_MEMORY_BUFFER_DESC* buffer, CUexternalMemory memory);
  void part(const char* where, const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC* array, CUexternalMemory memory);
  void external(const char* where, CUdeviceptr address);
  template <typename Address>
  void value(const char*, Address) {}
  void structure(const char* where, const CUDA_MEMCPY2D* copy);
  void structure(const char* where, const CUDA_MEMCPY3D* copy);
  void structure(const char* where, const CUDA_MEMSET_NODE_PARAMS* fill);
  void structure(const char* where, const CUgraphNodeParams* node);
  void structure(const char* where, const CUDA_RESOURCE_DESC* resource);
  void structure(const char* where, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC* memory);

 private:
  struct Imported {
    std::uint64_t size_bytes = 0;
    std::uint64_t session = 0;
  };
  struct External {
    std::uint64_t size_bytes = 0;
    CUexternalMemory memory = nullptr;
  };
  struct Variable {
    std::uint64_t size_bytes = 0;
    std::uint64_t session = 0;
  };
  struct Box;
  struct End;
  static std::uint64_t number(CUdeviceptr address) { return address; }
  static std::uint64_t number(const void* address) { return reinterpret_cast<std::uint64_t>(address); }

  [[nodiscard]] static std::uint64_t marked_session();
  void wrong(const char* where, const std::string& what);
  // The session whose memory all of it is.
  [[nodiscard]] std::optional<std::uint64_t> owner_of(std::uint64_t address, std::uint64_t size_bytes) const;
  [[nodiscard]] const External* external_at(std::uint64_t address, std::uint64_t size_bytes) const;
  [[nodiscard]] const Variable* variable_at(std::uint64_t address, std::uint64_t size_bytes) const;
  void check_owner(const char* where, std::uint64_t owner);
  void check_bytes(const char* where, std::uint64_t address, std::uint64_t size_bytes);
  void check_host(const char* where, std::uint64_t address, std::uint64_t size_bytes);
  void check_end(const char* where, const End& end, const Box& box);
  void check_texels(const char* where, std::uint64_t address, std::uint64_t size_bytes);

  std::mutex mutex_;
  std::map<std::uint64_t, std::uint64_t> mapped_;
  std::map<std::uint64_t, std::uint64_t> registered_;
  std::map<std::uint64_t, std::uint64_t> given_;
  std::map<std::uint64_t, Variable> variables_;  // by address
  std::map<std::uint64_t, CUDA_ARRAY3D_DESCRIPTOR> arrays_;
  std::set<std::uint64_t> mipmapped_;
  std::map<std::uint64_t, std::uint64_t> files_;  // by inode: whose it is
  std::map<CUexternalMemory, Imported> imported_;
  std::map<std::uint64_t, External> external_;  // by address
  std::uint64_t actor_ = 0;
  bool follows_marks_ = false;
  std::uint64_t owner_ = 0;  // of what the call has named so far
  std::vector<std::string> violations_;
};

// Puts the oracle in front of every function of the table that takes addresses.
void guard_addresses(DriverTable& table);

}  // namespace mpsshim::test
