// SPDX-License-Identifier: Apache-2.0
#include "broker/driver/driver.hpp"

#include <bit>
#include <cstring>

#include <dlfcn.h>

#include "proto/own_library.hpp"

namespace mpsshim::broker {

namespace {

// Stands for every symbol that a driver does not have. The x86-64 calling convention leaves arguments to the caller, so it serves all signatures.
CUresult CUDAAPI missing_symbol() { return CUDA_ERROR_NOT_SUPPORTED; }

// Our own client library has the driver's name. As a driver it would be a client of this very broker.
bool is_own_library(void* library) {
  const auto get_export_table = reinterpret_cast<decltype(DriverTable::cuGetExportTable)>(dlsym(library, "cuGetExportTable"));
  const auto id = std::bit_cast<CUuuid>(proto::kOwnTableId);
  const void* table = nullptr;
  return get_export_table != nullptr && get_export_table(&table, &id) == CUDA_SUCCESS;
}

}  // namespace

std::unique_ptr<Driver> Driver::load(const std::string& path, std::string& error) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);  // never closed: a driver does not survive dlclose
  if (library == nullptr) {
    error = std::string("cannot load the driver: ") + dlerror();
    return nullptr;
  }
  if (is_own_library(library)) {
    error = path + " is libmpsshim.so, which is for clients: name NVIDIA's libcuda.so.1 with --driver, or take our folder out of LD_LIBRARY_PATH";
    return nullptr;
  }
  auto driver = std::unique_ptr<Driver>(new Driver());
  for (const DriverSymbol& symbol : kDriverSymbols) {
    void* address = dlsym(library, symbol.name);
    if (address == nullptr) address = reinterpret_cast<void*>(&missing_symbol);
    std::memcpy(reinterpret_cast<char*>(&driver->table_) + symbol.offset, &address, sizeof address);
  }
  driver->is_cpu_ = dlsym(library, "mpsshim_cpu_driver") != nullptr;
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
