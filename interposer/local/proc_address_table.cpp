// SPDX-License-Identifier: Apache-2.0
#include "interposer/local/proc_address_table.hpp"

#include <algorithm>
#include <array>
#include <cstring>

// Defined in gen/exports.cpp with their own types; here only their addresses count.
#define MPSSHIM_PROC_ADDRESS(name, version, stream, symbol) extern "C" void symbol();
#include "gen/proc_address.inc"
#undef MPSSHIM_PROC_ADDRESS

namespace mpsshim::interposer {

namespace {

enum class DefaultStream : bool { default_stream, per_thread };

struct Row {
  const char* name;
  int version;
  DefaultStream stream;
  AnyFunction function;
};

// Sorted by name, then stream, then version: the generator's promise, proved by the test of this file.
constexpr Row kRows[] = {
#define MPSSHIM_PROC_ADDRESS(name, version, stream, symbol) {#name, version, DefaultStream::stream, &symbol},
#include "gen/proc_address.inc"
#undef MPSSHIM_PROC_ADDRESS
};

struct ByName {
  bool operator()(const Row& row, const char* name) const { return std::strcmp(row.name, name) < 0; }
  bool operator()(const char* name, const Row& row) const { return std::strcmp(name, row.name) < 0; }
};

}  // namespace

ProcAddress find_proc_address(const char* name, int cuda_version, bool per_thread) {
  const auto [begin, end] = std::equal_range(std::begin(kRows), std::end(kRows), name, ByName{});
  AnyFunction plain = nullptr;
  AnyFunction own_stream = nullptr;
  for (const Row* row = begin; row != end; ++row) {
    if (row->version > cuda_version) continue;
    (row->stream == DefaultStream::per_thread ? own_stream : plain) = row->function;
  }
  return {per_thread && own_stream != nullptr ? own_stream : plain, begin != end};
}

}  // namespace mpsshim::interposer
