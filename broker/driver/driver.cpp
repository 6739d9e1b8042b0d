// SPDX-License-Identifier: Apache-2.0
#include "broker/driver/driver.hpp"

#include <cstring>

#include <dlfcn.h>

namespace mpsshim::broker {

namespace {

// Stands for every symbol that a driver does not have. The x86-64 calling convention leaves arguments to the caller, so it serves all signatures.
CUresult CUDAAPI missing_symbol() { return CUDA_ERROR_NOT_SUPPORTED; }

}  // namespace

std::unique_ptr<Driver> Driver::load(const std::string& path, std::string& error) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);  // never closed: a driver does not survive dlclose
  if (library == nullptr) {
    error = std::string("cannot load the driver: ") + dlerror();
    return nullptr;
  }
  auto driver = std::unique_ptr<Driver>(new Driver());
  for (const DriverSymbol& symbol : kDriverSymbols) {
    void* address = dlsym(library, symbol.name);
    if (address == nullptr) address = reinterpret_cast<void*>(&missing_symbol);
    std::memcpy(reinterpret_cast<char*>(&driver->table_) + symbol.offset, &address, sizeof address);
  }
  if (dlsym(library, "cuInit") == nullptr) {
    error = path + " is no CUDA driver: it has no cuInit";
    return nullptr;
  }
  return driver;
}

std::unique_ptr<Driver> Driver::from_table(const DriverTable& table) {
  auto driver = std::unique_ptr<Driver>(new Driver());
  driver->table_ = table;
  for (const DriverSymbol& symbol : kDriverSymbols) {
    void** member = reinterpret_cast<void**>(reinterpret_cast<char*>(&driver->table_) + symbol.offset);
    if (*member == nullptr) *member = reinterpret_cast<void*>(&missing_symbol);
  }
  return driver;
}

std::string Driver::describe(CUresult result) const {
  const char* name = nullptr;
  if (table_.cuGetErrorName(result, &name) != CUDA_SUCCESS || name == nullptr) name = "CUresult";
  return std::string(name) + " (" + std::to_string(static_cast<int>(result)) + ")";
}

}  // namespace mpsshim::broker
