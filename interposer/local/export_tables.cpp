// SPDX-License-Identifier: Apache-2.0
#include "interposer/local/export_tables.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "gen/api_declarations.hpp"
#include "interposer/local/compile_cache.hpp"
#include "interposer/local/export_slots.hpp"

namespace mpsshim::interposer {

namespace {

using Unused = CUresult (*)();
CUresult unused_slot() { return CUDA_ERROR_NOT_SUPPORTED; }

// `Count` slots in a row without a meaning here.
template <std::size_t Count>
struct UnusedSlots {
  std::array<Unused, Count> slots;
  constexpr UnusedSlots() : slots{} { slots.fill(&unused_slot); }
};

// Numbers in comments are word indexes, which is how the tables are known.
struct RuntimeTable {  // CUDART_INTERFACE, 13 words
  std::size_t size_bytes = 13 * 8;
  UnusedSlots<1> unused_1;
  decltype(&slots::get_primary_context) get_primary_context = &slots::get_primary_context;  // 2
  UnusedSlots<10> unused_3;
};
struct HooksTable {  // TOOLS_RUNTIME_CALLBACK_HOOKS, 7 words
  std::size_t size_bytes = 7 * 8;
  UnusedSlots<1> unused_1;
  decltype(&slots::runtime_call_flags) runtime_call_flags = &slots::runtime_call_flags;  // 2
  UnusedSlots<3> unused_3;
  decltype(&slots::domain_flags) domain_flags = &slots::domain_flags;  // 6
};
struct ToolsTlsTable {  // TOOLS_TLS, 4 words
  std::size_t size_bytes = 4 * 8;
  UnusedSlots<1> unused_1;
  decltype(&slots::get_tls_context) get_context = &slots::get_tls_context;  // 2
  UnusedSlots<1> unused_3;
};
struct StorageTable {  // CONTEXT_LOCAL_STORAGE: three functions and a null, no size
  decltype(&slots::storage_put) put = &slots::storage_put;
  decltype(&slots::storage_delete) remove = &slots::storage_delete;
  decltype(&slots::storage_get) get = &slots::storage_get;
  const void* end = nullptr;
};
struct ChecksTable {  // CONTEXT_CHECKS, 17 words
  std::size_t size_bytes = 17 * 8;
  UnusedSlots<1> unused_1;
  decltype(&slots::check_context) check_context = &slots::check_context;  // 2
  decltype(&slots::check_flags) check_flags = &slots::check_flags;        // 3
  UnusedSlots<13> unused_4;
};
struct IntegrityTable {  // INTEGRITY_CHECK, 3 words
  std::size_t size_bytes = 3 * 8;
  decltype(&slots::check_integrity) check = &slots::check_integrity;  // 1
  UnusedSlots<1> unused_2;
};
struct ToolsContextTable {  // ToolsContext, 96 words
  std::size_t size_bytes = 96 * 8;
  UnusedSlots<3> unused_1;
  decltype(&slots::tools_context_id) context_id = &slots::tools_context_id;  // 4
  UnusedSlots<34> unused_5;
  decltype(&slots::tools_stream_id) stream_id = &slots::tools_stream_id;  // 39
  UnusedSlots<11> unused_40;
  decltype(&slots::tools_stream_object) stream_object = &slots::tools_stream_object;  // 51
  UnusedSlots<44> unused_52;
};
struct HeuristicsTable {  // unnamed, 1734dc26; its length is not known, at least 5 words
  std::size_t size_bytes = 64 * 8;
  UnusedSlots<3> unused_1;
  decltype(&slots::empty_array) array = &slots::empty_array;  // 4
  UnusedSlots<59> unused_5;
};
struct ToolsModuleTable {  // ToolsModule, 105 words
  std::size_t size_bytes = 105 * 8;
  UnusedSlots<6> unused_1;
  decltype(&slots::visit_module_functions) visit_functions = &slots::visit_module_functions;  // 7
  UnusedSlots<97> unused_8;
};
struct CompileCacheTable {  // nvrtc's and nvJitLink's, 7 words
  std::size_t size_bytes = 7 * 8;
  decltype(&slots::cache_open) open = &slots::cache_open;     // 1
  decltype(&slots::cache_close) close = &slots::cache_close;  // 2
  decltype(&slots::cache_get) get = &slots::cache_get;        // 3
  decltype(&slots::cache_put) put = &slots::cache_put;        // 4
  UnusedSlots<1> unused_5;
  decltype(&slots::cache_free) free = &slots::cache_free;  // 6
};

static_assert(sizeof(RuntimeTable) == 13 * 8 && offsetof(RuntimeTable, get_primary_context) == 2 * 8);
static_assert(sizeof(HooksTable) == 7 * 8 && offsetof(HooksTable, runtime_call_flags) == 2 * 8 && offsetof(HooksTable, domain_flags) == 6 * 8);
static_assert(sizeof(ToolsTlsTable) == 4 * 8 && offsetof(ToolsTlsTable, get_context) == 2 * 8);
static_assert(sizeof(StorageTable) == 4 * 8);
static_assert(sizeof(ChecksTable) == 17 * 8 && offsetof(ChecksTable, check_context) == 2 * 8);
static_assert(sizeof(IntegrityTable) == 3 * 8);
static_assert(sizeof(ToolsContextTable) == 96 * 8 && offsetof(ToolsContextTable, context_id) == 4 * 8 &&
              offsetof(ToolsContextTable, stream_id) == 39 * 8 && offsetof(ToolsContextTable, stream_object) == 51 * 8);
static_assert(sizeof(HeuristicsTable) == 64 * 8 && offsetof(HeuristicsTable, array) == 4 * 8);
static_assert(sizeof(ToolsModuleTable) == 105 * 8 && offsetof(ToolsModuleTable, visit_functions) == 7 * 8);
static_assert(sizeof(CompileCacheTable) == 7 * 8 && offsetof(CompileCacheTable, put) == 4 * 8 && offsetof(CompileCacheTable, free) == 6 * 8);

constexpr RuntimeTable kRuntime;
constexpr HooksTable kHooks;
constexpr ToolsTlsTable kToolsTls;
constexpr StorageTable kStorage;
constexpr ChecksTable kChecks;
constexpr IntegrityTable kIntegrity;
constexpr ToolsContextTable kToolsContext;
constexpr HeuristicsTable kHeuristics;
constexpr ToolsModuleTable kToolsModule;
constexpr CompileCacheTable kCompileCache;

struct Row {
  std::array<unsigned char, 16> id;
  const void* table;
};

constexpr std::array kAnswered = {
    Row{{0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a, 0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9}, &kRuntime},
    Row{{0xa0, 0x94, 0x79, 0x8c, 0x2e, 0x74, 0x2e, 0x74, 0x93, 0xf2, 0x08, 0x00, 0x20, 0x0c, 0x0a, 0x66}, &kHooks},
    Row{{0x42, 0xd8, 0x5a, 0x81, 0x23, 0xf6, 0xcb, 0x47, 0x82, 0x98, 0xf6, 0xe7, 0x8a, 0x3a, 0xec, 0xdc}, &kToolsTls},
    Row{{0xc6, 0x93, 0x33, 0x6e, 0x11, 0x21, 0xdf, 0x11, 0xa8, 0xc3, 0x68, 0xf3, 0x55, 0xd8, 0x95, 0x93}, &kStorage},
    Row{{0x26, 0x3e, 0x88, 0x60, 0x7c, 0xd2, 0x61, 0x43, 0x92, 0xf6, 0xbb, 0xd5, 0x00, 0x6d, 0xfa, 0x7e}, &kChecks},
    Row{{0xd4, 0x08, 0x20, 0x55, 0xbd, 0xe6, 0x70, 0x4b, 0x8d, 0x34, 0xba, 0x12, 0x3c, 0x66, 0xe1, 0xf2}, &kIntegrity},
    Row{{0x21, 0x31, 0x8c, 0x60, 0x97, 0x14, 0x32, 0x48, 0x8c, 0xa6, 0x41, 0xff, 0x73, 0x24, 0xc8, 0xf2}, &kToolsContext},
    Row{{0x17, 0x34, 0xdc, 0x26, 0x80, 0x0d, 0x47, 0x45, 0x87, 0x26, 0xc0, 0xf1, 0xe7, 0xdd, 0x8b, 0xca}, &kHeuristics},
    Row{{0x6e, 0x16, 0x3f, 0xbe, 0xb9, 0x58, 0x44, 0x4d, 0x83, 0x5c, 0xe1, 0x82, 0xaf, 0xf1, 0x99, 0x1e}, &kToolsModule},
    Row{{0xda, 0x91, 0x51, 0xd3, 0x3a, 0xe6, 0xcc, 0x41, 0xa5, 0xc0, 0x4f, 0x26, 0xd5, 0x33, 0xe3, 0x28}, &kCompileCache},
};

}  // namespace

const void* find_export_table(const CUuuid& id) {
  for (const Row& row : kAnswered) {
    if (std::memcmp(row.id.data(), id.bytes, row.id.size()) == 0) return row.table;
  }
  return nullptr;
}

std::uint64_t slots::runtime_table_address() { return reinterpret_cast<std::uintptr_t>(&kRuntime); }
std::uint64_t slots::integrity_table_address() { return reinterpret_cast<std::uintptr_t>(&kIntegrity); }

// Any other table is refused as NVIDIA's driver refuses one that it does not know.
CUresult api::cuGetExportTable(const void** ppExportTable, const CUuuid* pExportTableId) {
  if (ppExportTable == nullptr || pExportTableId == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *ppExportTable = find_export_table(*pExportTableId);
  return *ppExportTable != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace mpsshim::interposer
