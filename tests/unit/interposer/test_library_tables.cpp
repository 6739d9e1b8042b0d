// SPDX-License-Identifier: Apache-2.0
// The undocumented tables, called as the CUDA runtime and NVIDIA's libraries call them.
#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>

#include <pthread.h>
#include <unistd.h>

#include "gen/api_declarations.hpp"
#include "tests/support/catch.hpp"
#include "tests/unit/interposer/fake_facts.hpp"
#include "tests/unit/interposer/scripted_broker.hpp"

using namespace mpsshim;
using namespace mpsshim::test;

#define API(name) library.get<decltype(interposer::api::name)>(#name)

namespace {

CUuuid uuid(const std::string& digits) {
  CUuuid id{};
  std::size_t position = 0;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (digits[i] == '-') continue;
    id.bytes[position++] = static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16));
    ++i;
  }
  return id;
}

using Word = std::uintptr_t;

const Word* table(const Report& report, const Library& library, const std::string& digits) {
  const CUuuid id = uuid(digits);
  const void* found = nullptr;
  report.equal(API(cuGetExportTable)(&found, &id), CUDA_SUCCESS, "cuGetExportTable " + digits);
  return static_cast<const Word*>(found);
}

template <typename Function>
Function* slot(const Word* words, std::size_t index) {
  return reinterpret_cast<Function*>(words[index]);
}

const std::string kRuntime = "6bd5fb6c-5bf4-e74a-8987-d93912fd9df9";
const std::string kHooks = "a094798c-2e74-2e74-93f2-0800200c0a66";
const std::string kToolsTls = "42d85a81-23f6-cb47-8298-f6e78a3aecdc";
const std::string kStorage = "c693336e-1121-df11-a8c3-68f355d89593";
const std::string kChecks = "263e8860-7cd2-6143-92f6-bbd5006dfa7e";
const std::string kIntegrity = "d4082055-bde6-704b-8d34-ba123c66e1f2";
const std::string kToolsContext = "21318c60-9714-3248-8ca6-41ff7324c8f2";
const std::string kHeuristics = "1734dc26-800d-4745-8726-c0f1e7dd8bca";
const std::string kToolsModule = "6e163fbe-b958-444d-835c-e182aff1991e";
const std::string kCompileCache = "da9151d3-3ae6-cc41-a5c0-4f26d533e328";

}  // namespace

TEST_CASE("answered tables have their full length and no null slot") {
  const ScriptedBroker broker;
  const ChildEnd end = in_child(broker.directory(), "", [&](const Report& report, const Library& library) {
    const std::array<std::pair<std::string, Word>, 9> sizes = {{{kRuntime, 13},
                                                                {kHooks, 7},
                                                                {kToolsTls, 4},
                                                                {kChecks, 17},
                                                                {kIntegrity, 3},
                                                                {kToolsContext, 96},
                                                                {kHeuristics, 64},
                                                                {kToolsModule, 105},
                                                                {kCompileCache, 7}}};
    for (const auto& [digits, words] : sizes) {
      const Word* found = table(report, library, digits);
      if (found == nullptr) continue;
      report.equal(static_cast<long long>(found[0]), static_cast<long long>(words * 8), digits + " bytes");
      for (Word i = 1; i < words; ++i) report.expect(found[i] != 0, digits + " has a null slot");
    }
    const Word* storage = table(report, library, kStorage);
    report.expect(storage[0] != 0 && storage[1] != 0 && storage[2] != 0 && storage[3] == 0, "the storage table's form");
    const Word* context = table(report, library, kToolsContext);
    report.equal(slot<CUresult(int, int)>(context, 95)(1, 2), CUDA_ERROR_NOT_SUPPORTED, "an unused slot");
    report.equal(slot<CUresult(int, int)>(table(report, library, kCompileCache), 5)(1, 2), CUDA_ERROR_NOT_SUPPORTED, "another unused slot");
  });
  INFO(end.complaints << end.errors);
  CHECK(end.fine());
}

TEST_CASE("other tables are refused with null") {
  const ScriptedBroker broker;
  const ChildEnd end = in_child(broker.directory(), "", [&](const Report& report, const Library& library) {
    for (const char* digits :
         {"f8cff951-2146-8b4e-b9e2-fb469e7c0dd9", "69a28e9f-2449-8b47-b030-c5da330ea4e9", "00000000-0000-0000-0000-000000000000"}) {
      const CUuuid id = uuid(digits);
      const void* found = &id;
      report.equal(API(cuGetExportTable)(&found, &id), CUDA_ERROR_INVALID_VALUE, digits);
      report.expect(found == nullptr, "null");
    }
    const CUuuid id = uuid(kHooks);
    const void* found = nullptr;
    report.equal(API(cuGetExportTable)(nullptr, &id), CUDA_ERROR_INVALID_VALUE, "no destination");
    report.equal(API(cuGetExportTable)(&found, nullptr), CUDA_ERROR_INVALID_VALUE, "no id");
  });
  INFO(end.complaints << end.errors);
  CHECK(end.fine());
}

TEST_CASE("the compile cache needs neither cuInit nor a broker") {
  const ChildEnd end = in_child("/nonexistent", "MPSSHIM_REQUIRE=1 CUDA_CACHE_DISABLE=0", [&](const Report& report, const Library& library) {
    char folder[] = "/tmp/mpsshim-tables-XXXXXX";
    report.expect(mkdtemp(folder) != nullptr, "a folder");
    setenv("CUDA_CACHE_PATH", folder, 1);
    const Word* cache = table(report, library, kCompileCache);
    const auto open = slot<CUresult(void**, std::uint32_t, const void*, std::size_t, const char*, const char*, const char*, std::uint32_t)>(cache, 1);
    const auto close = slot<CUresult(void*)>(cache, 2);
    const auto get = slot<CUresult(void*, std::uint32_t, void**, std::uint32_t*)>(cache, 3);
    for (const CUresult wanted : {CUDA_ERROR_NOT_FOUND, CUDA_SUCCESS}) {
      void* entry = nullptr;
      void* data = nullptr;
      std::uint32_t size_bytes = 0;
      report.equal(open(&entry, 2, "source", 6, " -arch=compute_90", "HOST64", "Aug 20 2025", 90), CUDA_SUCCESS, "[1]");
      report.equal(get(entry, 0, &data, &size_bytes), wanted, "[3]");
      if (wanted == CUDA_SUCCESS) {
        report.expect(size_bytes == 8 && std::memcmp(data, "compiled", 8) == 0, "what was put");
        slot<void(void*)>(cache, 6)(data);
      } else {
        report.equal(slot<CUresult(void*, std::uint32_t, const void*, std::size_t)>(cache, 4)(entry, 0, "compiled", 8), CUDA_SUCCESS, "[4]");
      }
      report.equal(close(entry), CUDA_SUCCESS, "[2]");
    }
    std::filesystem::remove_all(folder);
  });
  INFO(end.complaints << end.errors);
  CHECK(end.fine());
}

TEST_CASE("the runtime's first calls") {
  const ScriptedBroker broker;
  const ChildEnd end = in_child(broker.directory(), "", [&](const Report& report, const Library& library) {
    const Word* runtime = table(report, library, kRuntime);  // before cuInit, as the runtime does
    const Word* hooks = table(report, library, kHooks);
    const Word* storage = table(report, library, kStorage);
    const Word* checks = table(report, library, kChecks);
    const Word* tls = table(report, library, kToolsTls);
    report.equal(API(cuInit)(0), CUDA_SUCCESS, "cuInit");
    CUcontext primary = nullptr;
    report.equal(slot<CUresult(CUcontext*, CUdevice)>(runtime, 2)(&primary, 0), CUDA_SUCCESS, "CUDART[2]");
    report.expect(primary != nullptr, "a handle");
    unsigned flags = 0;
    int active = -1;
    report.equal(API(cuDevicePrimaryCtxGetState)(0, &flags, &active), CUDA_SUCCESS, "state");
    report.equal(active, 0, "active");
    std::uint32_t* words = nullptr;
    std::size_t count = 0;
    slot<void(std::uint32_t**, std::size_t*)>(hooks, 2)(&words, &count);
    report.expect(count >= 523 && words[522] == 0, "HOOKS[2]");
    slot<void(std::uint32_t**, std::size_t*)>(hooks, 6)(&words, &count);
    report.expect(count >= 14 && words[13] == 0, "HOOKS[6]");
    report.equal(slot<std::uint32_t()>(checks, 3)(), 0, "CHECKS[3]");
    const auto get = slot<CUresult(void**, CUcontext, void*)>(storage, 2);
    const auto put = slot<CUresult(CUcontext, void*, void*, void*)>(storage, 0);
    const auto remove = slot<CUresult(CUcontext, void*)>(storage, 1);
    void* value = nullptr;
    int key = 0;
    report.expect(get(&value, nullptr, &key) != CUDA_SUCCESS, "no current context");
    report.equal(API(cuCtxSetCurrent)(primary), CUDA_SUCCESS, "cuCtxSetCurrent before retaining");
    report.expect(get(&value, nullptr, &key) != CUDA_SUCCESS, "nothing stored");
    std::uint32_t kind = 7;
    void* wrapped = &key;
    report.equal(slot<CUresult(CUcontext, std::uint32_t*, void**)>(checks, 2)(primary, &kind, &wrapped), CUDA_SUCCESS, "CHECKS[2]");
    report.expect(kind == 0 && wrapped == &key, "an ordinary context, the third argument untouched");
    report.equal(put(nullptr, &key, &kind, nullptr), CUDA_SUCCESS, "put");
    report.equal(get(&value, nullptr, &key), CUDA_SUCCESS, "get");
    report.expect(value == &kind, "the value");
    report.equal(get(&value, primary, &key), CUDA_SUCCESS, "get by handle");
    report.equal(get(&value, reinterpret_cast<CUcontext>(~Word{0}), &key), CUDA_SUCCESS, "get by -1");
    report.equal(remove(primary, &key), CUDA_SUCCESS, "delete");
    report.expect(get(&value, nullptr, &key) != CUDA_SUCCESS, "deleted");
    void* current = nullptr;
    report.equal(slot<CUresult(void**)>(tls, 2)(&current), CUDA_SUCCESS, "TLS[2]");
    report.expect(current == primary, "the current context");
  });
  INFO(end.complaints << end.errors);
  CHECK(end.fine());
}

TEST_CASE("ToolsContext and the empty array") {
  const ScriptedBroker broker;
  const ChildEnd end = in_child(broker.directory(), "", [&](const Report& report, const Library& library) {
    const Word* context_table = table(report, library, kToolsContext);
    const Word* heuristics = table(report, library, kHeuristics);
    report.equal(API(cuInit)(0), CUDA_SUCCESS, "cuInit");
    CUcontext primary = nullptr;
    (void)slot<CUresult(CUcontext*, CUdevice)>(table(report, library, kRuntime), 2)(&primary, 0);
    std::uint64_t id = 0;
    report.equal(slot<CUresult(CUcontext, std::uint64_t*)>(context_table, 4)(primary, &id), CUDA_SUCCESS, "ToolsContext[4]");
    report.expect(id != 0, "an id");
    report.expect(slot<CUresult(CUcontext, std::uint64_t*)>(context_table, 4)(nullptr, &id) != CUDA_SUCCESS, "no context");
    void* object = nullptr;
    report.equal(slot<CUresult(CUcontext, CUstream, void**)>(context_table, 51)(primary, CU_STREAM_LEGACY, &object), CUDA_SUCCESS, "[51]");
    report.equal(slot<CUresult(CUcontext, CUstream, void**)>(context_table, 51)(primary, reinterpret_cast<CUstream>(~Word{0}), &object),
                 CUDA_ERROR_INVALID_HANDLE, "[51] of -1");
    void* array = &object;
    std::size_t count = 9;
    report.equal(slot<CUresult(void**, std::size_t*)>(heuristics, 4)(&array, &count), CUDA_SUCCESS, "1734[4]");
    report.expect(array == nullptr && count == 0, "empty");
  });
  INFO(end.complaints << end.errors);
  CHECK(end.fine());
}

TEST_CASE("the self-test's answer depends on process, thread, time and devices") {
  const ScriptedBroker broker;
  const ChildEnd end = in_child(broker.directory(), "", [&](const Report& report, const Library& library) {
    const Word* integrity = table(report, library, kIntegrity);
    const auto check = slot<CUresult(std::uint32_t, std::uint64_t, std::uint64_t*)>(integrity, 1);
    std::array<std::uint64_t, 2> answer{};
    report.equal(check(13002, 1'700'000'000, answer.data()), CUDA_ERROR_NOT_INITIALIZED, "before cuInit");
    report.equal(API(cuInit)(0), CUDA_SUCCESS, "cuInit");
    report.equal(check(13000, 1'700'000'000, answer.data()), CUDA_SUCCESS, "version 13000");
    report.expect(answer[0] == 0x3341181C03CB675C && answer[1] == 0x8ED383AA1F4CD1E8, "the constant");
    std::array<std::uint64_t, 2> first{};
    std::array<std::uint64_t, 2> again{};
    std::array<std::uint64_t, 2> later{};
    std::array<std::uint64_t, 2> elsewhere{};
    report.equal(check(13002, 1'700'000'000, first.data()), CUDA_SUCCESS, "version 13002");
    (void)check(13002, 1'700'000'000, again.data());
    (void)check(13002, 1'700'000'001, later.data());
    std::thread([&] { (void)check(13002, 1'700'000'000, elsewhere.data()); }).join();
    report.expect(first == again, "the same question, the same answer");
    report.expect(first != later, "the time counts");
    report.expect(first != elsewhere, "the thread counts");
  });
  INFO(end.complaints << end.errors);
  CHECK(end.fine());
}
