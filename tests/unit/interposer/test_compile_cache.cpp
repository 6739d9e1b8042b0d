// SPDX-License-Identifier: Apache-2.0
// The compile cache's slots, called as nvrtc and nvJitLink of CUDA 13.0 were seen to call them.
#include <atomic>
#include <cstring>
#include <thread>

#include "interposer/local/compile_cache.hpp"
#include "tests/support/catch.hpp"
#include "tests/unit/interposer/cache_folder.hpp"

using namespace mpsshim;
using namespace mpsshim::test;
using namespace mpsshim::interposer;
using namespace std::string_literals;

namespace {

constexpr std::uint32_t kMachineCode = 1;
constexpr std::uint32_t kSource = 2;
const std::string kIr = "BC\xc0\xde source in a binary form\0\1\2"s;
const std::string kPtx = "//\n.version 9.0\n.target sm_90\n\0"s;  // with its terminating zero

// What went wrong in any thread: Catch2's own checks are for one thread at a time.
std::atomic<int> complaints{0};
void expect(bool holds) {
  if (!holds) ++complaints;
}
class Cache : public CacheFolder {
 public:
  Cache() { complaints = 0; }
  ~Cache() { CHECK(complaints == 0); }
};

struct Asked {
  std::uint32_t kind = kSource;
  std::string key = kIr;
  std::string options = " -arch=compute_90 -ftz=0";
  std::string host = "HOST64";
  std::string build = "Aug 20 2025 14:13:52";
  std::uint32_t architecture = 90;
};

class Entry {
 public:
  explicit Entry(const Asked& asked) {
    result_ = slots::cache_open(&handle_, asked.kind, asked.key.data(), asked.key.size(), asked.options.c_str(), asked.host.c_str(),
                                asked.build.c_str(), asked.architecture);
  }
  ~Entry() { expect(slots::cache_close(handle_) == CUDA_SUCCESS); }
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;
  [[nodiscard]] CUresult opened() const { return result_; }
  [[nodiscard]] CompileCacheEntry* handle() const { return handle_; }
  [[nodiscard]] CUresult put(const std::string& content) const { return slots::cache_put(handle_, 0, content.data(), content.size()); }
  // Empty: CUDA_ERROR_NOT_FOUND.
  [[nodiscard]] std::string get() const {
    void* data = &handle_for_nothing;
    std::uint32_t size_bytes = 77;
    const CUresult result = slots::cache_get(handle_, 0, &data, &size_bytes);
    if (result != CUDA_SUCCESS) {
      expect(result == CUDA_ERROR_NOT_FOUND && data == &handle_for_nothing && size_bytes == 77);
      return {};
    }
    std::string content(static_cast<const char*>(data), size_bytes);
    slots::cache_free(data);
    return content;
  }

 private:
  static inline char handle_for_nothing = 0;
  CompileCacheEntry* handle_ = nullptr;
  CUresult result_ = CUDA_ERROR_UNKNOWN;
};

// As nvrtc compiles: source to PTX, then, in the same thread and by the same key, to machine code. What it would give, compiled or found.
struct Compiled {
  std::string text;
  std::string code;
  int hits = 0;
};
Compiled compile(const std::string& text_options, const std::string& text, const std::string& code, const std::string& key = kIr) {
  Compiled compiled;
  const Entry source({.kind = kSource, .key = key, .options = text_options});
  compiled.text = source.get();
  compiled.hits += compiled.text.empty() ? 0 : 1;
  if (compiled.text.empty()) {
    expect(source.put(text) == CUDA_SUCCESS);
    compiled.text = text;
  }
  const Entry machine({.kind = kMachineCode, .key = key, .options = " -arch=sm_90"});
  compiled.code = machine.get();
  compiled.hits += compiled.code.empty() ? 0 : 1;
  if (compiled.code.empty()) {
    expect(machine.put(code) == CUDA_SUCCESS);
    compiled.code = code;
  }
  return compiled;
}

}  // namespace

TEST_CASE("a miss, then what was put") {
  const Cache cache;
  {
    const Entry entry({});
    REQUIRE(entry.opened() == CUDA_SUCCESS);
    CHECK(entry.get().empty());
    CHECK(entry.put("compiled") == CUDA_SUCCESS);
  }
  const Entry entry({});
  CHECK(entry.get() == "compiled");
  CHECK(entry.get() == "compiled");
}

TEST_CASE("everything that a compiler says belongs to an entry's identity") {
  const Cache cache;
  REQUIRE(Entry({}).put("compiled") == CUDA_SUCCESS);
  CHECK(Entry({.key = kIr + "x"}).get().empty());
  CHECK(Entry({.key = kIr.substr(0, kIr.size() - 1)}).get().empty());
  CHECK(Entry({.options = " -arch=compute_90 -ftz=1"}).get().empty());
  CHECK(Entry({.options = ""}).get().empty());
  CHECK(Entry({.host = "HOST32"}).get().empty());
  CHECK(Entry({.build = "Aug 20 2025 14:13:53"}).get().empty());
  CHECK(Entry({.architecture = 100}).get().empty());
  CHECK(Entry({.options = " -arch=compute_90 -ftz=0H", .host = "OST64"}).get().empty());
  CHECK(Entry({.kind = kMachineCode}).get().empty());
  CHECK(Entry({}).get() == "compiled");
}

TEST_CASE("machine code is told apart by the PTX it was made of, which nvrtc does not say") {
  const Cache cache;
  const Compiled plain = compile(" -ftz=0", "PTX without", "code without");
  const Compiled flushed = compile(" -ftz=1", "PTX with", "code with");
  CHECK(flushed.code == "code with");
  CHECK(flushed.hits == 0);
  for (int again = 0; again < 2; ++again) {
    const Compiled without = compile(" -ftz=0", "never", "never");
    CHECK(without.text == "PTX without");
    CHECK(without.code == "code without");
    CHECK(without.hits == 2);
    const Compiled with = compile(" -ftz=1", "never", "never");
    CHECK(with.text == "PTX with");
    CHECK(with.code == "code with");
    CHECK(with.hits == 2);
  }
}

TEST_CASE("machine code whose PTX is not known is neither kept nor found") {
  const Cache cache;
  (void)compile(" -ftz=0", "PTX", "code");
  const std::size_t entries = cache.entries().size();
  const Asked machine{.kind = kMachineCode, .options = " -arch=sm_90"};
  SECTION("in another thread") {
    std::thread([&] {
      const Entry entry(machine);
      CHECK(entry.opened() == CUDA_SUCCESS);
      CHECK(entry.get().empty());
      CHECK(entry.put("code of who knows what") == CUDA_ERROR_NOT_SUPPORTED);
    }).join();
  }
  SECTION("of another source") {
    const Entry entry({.kind = kMachineCode, .key = kIr + "x"});
    CHECK(entry.get().empty());
    CHECK(entry.put("code of who knows what") == CUDA_ERROR_NOT_SUPPORTED);
  }
  SECTION("where the source could not be compiled") {
    { const Entry source({.options = " -ftz=1"}); }
    const Entry entry(machine);
    CHECK(entry.get().empty());
    CHECK(entry.put("code of who knows what") == CUDA_ERROR_NOT_SUPPORTED);
  }
  CHECK(cache.entries().size() == entries);
}

TEST_CASE("machine code by its PTX, as nvJitLink asks, inside an entry that is still open") {
  const Cache cache;
  {
    const Entry linked({.options = " -link-lto"});
    CHECK(linked.get().empty());
    {
      const Entry machine({.kind = kMachineCode, .key = kPtx});
      CHECK(machine.get().empty());
      CHECK(machine.put("code") == CUDA_SUCCESS);
    }
    CHECK(linked.put("code of all") == CUDA_SUCCESS);
  }
  CHECK(Entry({.options = " -link-lto"}).get() == "code of all");
  std::thread([] { CHECK(Entry({.kind = kMachineCode, .key = kPtx}).get() == "code"); }).join();
  // Without the terminating zero it is PTX too, of an entry of its own; with a zero inside it is none.
  CHECK(Entry({.kind = kMachineCode, .key = kPtx.substr(0, kPtx.size() - 1)}).put("code") == CUDA_SUCCESS);
  CHECK(Entry({.kind = kMachineCode, .key = kPtx + kPtx}).put("code") == CUDA_ERROR_NOT_SUPPORTED);
}

TEST_CASE("what was given lives on when its handle is closed") {
  const Cache cache;
  REQUIRE(Entry({}).put("compiled") == CUDA_SUCCESS);
  void* data = nullptr;
  std::uint32_t size_bytes = 0;
  { REQUIRE(slots::cache_get(Entry({}).handle(), 0, &data, &size_bytes) == CUDA_SUCCESS); }
  CHECK(std::string_view(static_cast<const char*>(data), size_bytes) == "compiled");
  slots::cache_free(data);
  slots::cache_free(nullptr);
}

TEST_CASE("handles of which nothing is asked, and a put without a get") {
  const Cache cache;
  { const Entry entry({}); }
  { CHECK(Entry({}).put("compiled") == CUDA_SUCCESS); }
  { CHECK(Entry({}).put("compiled") == CUDA_SUCCESS); }
  CHECK(cache.entries().size() == 1);
  CHECK(slots::cache_close(nullptr) == CUDA_SUCCESS);
}

TEST_CASE("CUDA_CACHE_DISABLE: no handle, no file") {
  const Cache cache;
  setenv("CUDA_CACHE_DISABLE", "1", 1);
  const Entry entry({});
  CHECK(entry.opened() == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(entry.handle() == nullptr);
  CHECK(entry.put("compiled") == CUDA_ERROR_INVALID_HANDLE);
  CHECK(std::filesystem::is_empty(cache.parent()));
}

TEST_CASE("the compile cache's slots take wrong arguments") {
  const Cache cache;
  CompileCacheEntry* handle = nullptr;
  CHECK(slots::cache_open(nullptr, kSource, "x", 1, "", "", "", 90) == CUDA_ERROR_INVALID_VALUE);
  CHECK(slots::cache_open(&handle, kSource, nullptr, 1, "", "", "", 90) == CUDA_ERROR_INVALID_VALUE);
  for (const std::uint32_t kind : {0u, 3u, 0xffffffffu}) CHECK(slots::cache_open(&handle, kind, "x", 1, "", "", "", 90) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(slots::cache_open(&handle, kSource, nullptr, 0, nullptr, nullptr, nullptr, 0) == CUDA_SUCCESS);
  void* data = nullptr;
  std::uint32_t size_bytes = 0;
  CHECK(slots::cache_get(handle, 0, nullptr, &size_bytes) == CUDA_ERROR_INVALID_VALUE);
  CHECK(slots::cache_get(handle, 0, &data, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(slots::cache_get(handle, 1, &data, &size_bytes) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(slots::cache_get(nullptr, 0, &data, &size_bytes) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(slots::cache_put(handle, 0, nullptr, 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(slots::cache_put(handle, 0, "x", 0) == CUDA_ERROR_INVALID_VALUE);  // nobody must ever get nothing
  CHECK(slots::cache_put(handle, 1, "x", 1) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(slots::cache_put(nullptr, 0, "x", 1) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(slots::cache_put(handle, 0, "x", 1) == CUDA_SUCCESS);
  CHECK(slots::cache_close(handle) == CUDA_SUCCESS);
}

TEST_CASE("a cache that cannot be written is told to who puts") {
  const Cache cache;
  setenv("CUDA_CACHE_PATH", "/proc/nothing", 1);
  CHECK(Entry({}).put("compiled") == CUDA_ERROR_OPERATING_SYSTEM);
}

TEST_CASE("threads that compile at once") {
  const Cache cache;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 6; ++thread) {
    threads.emplace_back([&, thread] {
      for (int round = 0; round < 40; ++round) {
        const std::string number = std::to_string((thread + round) % 8);
        const Compiled compiled = compile(" -ftz=" + number, "PTX " + number, "code " + number);
        expect(compiled.text == "PTX " + number && compiled.code == "code " + number);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(cache.entries().size() == 16);
}
