// SPDX-License-Identifier: Apache-2.0
#include "broker/driver/driver.hpp"

#include <bit>

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

void** member(DriverTable& table, const DriverSymbol& symbol) { return reinterpret_cast<void**>(reinterpret_cast<char*>(&table) + symbol.offset); }

DriverTable with_all_bound(DriverTable table) {
  for (const DriverSymbol& symbol : kDriverSymbols) {
    if (*member(table, symbol) == nullptr) *member(table, symbol) = reinterpret_cast<void*>(&missing_symbol);
  }
  return table;
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
  DriverTable table;
  for (const DriverSymbol& symbol : kDriverSymbols) *member(table, symbol) = dlsym(library, symbol.name);
  auto driver = std::unique_ptr<Driver>(new Driver(table));
  driver->is_cpu_ = dlsym(library, "mpsshim_cpu_driver") != nullptr;
  if (dlsym(library, "cuInit") == nullptr) {
    error = path + " is no CUDA driver: it has no cuInit";
    return nullptr;
  }
  return driver;
}

std::unique_ptr<Driver> Driver::from_table(const DriverTable& table) { return std::unique_ptr<Driver>(new Driver(table)); }

Driver::Driver(DriverTable table) : table_(std::bit_cast<CheckedDriverTable>(with_all_bound(table))) {}

std::string Driver::describe(CUresult result) const {
  const char* name = nullptr;
  if (table_.cuGetErrorName(result, &name) != CUDA_SUCCESS || name == nullptr) name = "CUresult";
  return std::string(name) + " (" + std::to_string(static_cast<int>(result)) + ")";
}

}  // namespace mpsshim::broker
