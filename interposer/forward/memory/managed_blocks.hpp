// SPDX-License-Identifier: Apache-2.0
// Where the __managed__ variables of a module lie: in managed memory of this process, one block a module, to which its image refers
// (proto/managed_variables.hpp). A block that its module has left is kept for the next load of that image, since another address would be
// another image to upload. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "gen/cuda_api.hpp"
#include "interposer/forward/memory/address_range.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::interposer::forward {

struct ManagedBlock {
  struct Variable {
    AddressRange range;
    bool starts_as_zeroes = false;
  };
  using Variables = std::map<std::string, Variable, std::less<>>;
  std::uint64_t original = 0;  // the image as the program gave it
  std::uint64_t image = 0;     // the one to load
  AddressRange memory;         // whole pages
  Variables variables;
};

class ManagedBlocks {
 public:
  [[nodiscard]] static ManagedBlocks& instance();

  // Null: none is kept for that image.
  [[nodiscard]] std::unique_ptr<ManagedBlock> take(std::uint64_t original);
  // `table`: what ModuleLoad's reply says of the image whose bytes are `content`. The memory is zeroed.
  [[nodiscard]] CUresult make(std::uint64_t original, std::span<const std::byte> content, std::span<const std::byte> table,
                              std::unique_ptr<ManagedBlock>& block);
  // Nothing that may still run uses it.
  void give_back(std::unique_ptr<ManagedBlock> block);

 private:
  Mutex mutex_;
  std::multimap<std::uint64_t, std::unique_ptr<ManagedBlock>> idle_ GUARDED_BY(mutex_);  // by `original`
};

}  // namespace mpsshim::interposer::forward
