// SPDX-License-Identifier: Apache-2.0
// The driver that the executor works through: a table of typed function pointers (generated from proto/spec) filled from a shared library.
// The real libcuda.so.1 and the CPU driver are the same to everything above. A symbol that the library lacks is bound to a function that
// returns CUDA_ERROR_NOT_SUPPORTED, so calling any member is safe.
#pragma once

#include <memory>
#include <string>

#include "gen/checked_driver.hpp"

namespace mpsshim::broker {

class Driver {
 public:
  // Loads `path` (a file, or a soname for the loader's search). nullptr with a sentence in `error` if it cannot be loaded or lacks cuInit.
  [[nodiscard]] static std::unique_ptr<Driver> load(const std::string& path, std::string& error);

  // A driver made of the given functions; null members are bound like missing symbols. For tests.
  [[nodiscard]] static std::unique_ptr<Driver> from_table(const DriverTable& table);

  // What takes addresses wants a key (address_call.hpp).
  const CheckedDriverTable* operator->() const { return &table_; }
  // The CPU driver, which says so by a symbol of its own.
  [[nodiscard]] bool is_cpu() const { return is_cpu_; }
  // "CUDA_ERROR_INVALID_VALUE (1)"
  [[nodiscard]] std::string describe(CUresult result) const;

 private:
  // Its missing members are bound here.
  explicit Driver(DriverTable table);
  CheckedDriverTable table_;
  bool is_cpu_ = false;
};

}  // namespace mpsshim::broker
