// SPDX-License-Identifier: Apache-2.0
// Where module variables lie, as far as the application has asked. They lie where the driver puts them, outside the leased ranges, so a
// pointer is known to be one only by this table.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "interposer/forward/memory/address_range.hpp"
#include "proto/ids.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::interposer::forward {

class Globals {
 public:
  [[nodiscard]] static Globals& instance();

  void add(proto::ModuleId module, std::uint64_t address, std::uint64_t size_bytes);
  void remove(proto::ModuleId module);
  // The variable that holds `address`.
  [[nodiscard]] std::optional<AddressRange> find(std::uint64_t address) const;

 private:
  struct Variable {
    std::uint64_t size_bytes = 0;
    proto::ModuleId module;
  };
  mutable SharedMutex mutex_;
  std::multimap<std::uint64_t, Variable> variables_ GUARDED_BY(mutex_);  // by address; a cached image serves two modules at one address
};

}  // namespace mpsshim::interposer::forward
