// SPDX-License-Identifier: Apache-2.0
#include "interposer/local/compile_cache.hpp"

#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "interposer/entry.hpp"
#include "interposer/local/cache_store.hpp"
#include "proto/content_hash.hpp"
#include "proto/trace.hpp"

namespace mpsshim::interposer {

using proto::ContentDigest;

// What a handle stands for.
class CompileCacheEntry {
 public:
  CompileCacheEntry(CachePlace place, std::optional<ContentDigest> source, std::optional<ContentDigest> identity)
      : store_(std::move(place)), source_(source), identity_(identity) {}

  [[nodiscard]] const CacheStore& store() const { return store_; }
  // The digest of the source that this entry compiles to PTX; none for machine code.
  [[nodiscard]] const std::optional<ContentDigest>& source() const { return source_; }
  // None: the caller has not told all that the content depends on. Nothing is kept then, and nothing found.
  [[nodiscard]] const std::optional<ContentDigest>& identity() const { return identity_; }

 private:
  CacheStore store_;
  std::optional<ContentDigest> source_;
  std::optional<ContentDigest> identity_;
};

namespace {

enum class EntryKind : std::uint32_t { machine_code = 1, source = 2 };

// What this thread has compiled a source to last. nvrtc asks for machine code by the source, and with ptxas's options only: those that it has
// compiled the source to PTX with are not among them (-ftz, -prec-div, -prec-sqrt, ...), so that kernels of different arithmetic would be one
// entry. The PTX, which it has had or put just before in the same thread, tells them apart.
struct CompiledSource {
  ContentDigest source;
  ContentDigest text;
  bool is_known;
};
constinit thread_local CompiledSource compiled_source{};

// From nvJitLink the key of machine code is the PTX itself: text, where a source is a binary form.
bool is_ptx(std::string_view key) {
  const std::size_t zero = key.find('\0');
  return (zero == std::string_view::npos || zero + 1 == key.size()) && key.find(".version") != std::string_view::npos;
}

// Each part after its length: no two lists of parts have the same bytes.
void add_part(proto::ContentHash& hash, std::string_view part) {
  const std::uint64_t size_bytes = part.size();
  hash.add(std::as_bytes(std::span(&size_bytes, 1)));
  hash.add(std::as_bytes(std::span(part)));
}

std::string_view text_or_nothing(const char* text) { return text == nullptr ? std::string_view{} : std::string_view(text); }

struct Compilation {
  EntryKind kind;
  std::string_view key;
  std::string_view options;
  std::string_view host;
  std::string_view build;
  std::uint32_t architecture;
};

// The architecture's variants (90a) are in the options.
ContentDigest identity_of(const Compilation& compilation, const ContentDigest& key, const ContentDigest* text) {
  proto::ContentHash hash;
  const std::uint32_t numbers[] = {static_cast<std::uint32_t>(compilation.kind), compilation.architecture};
  add_part(hash, "mpsshim compile cache 1");
  hash.add(std::as_bytes(std::span(numbers)));
  for (const std::string_view part : {compilation.options, compilation.host, compilation.build}) add_part(hash, part);
  hash.add(std::as_bytes(std::span(key)));
  if (text != nullptr) hash.add(std::as_bytes(std::span(*text)));
  return hash.finish();
}

CompileCacheEntry* open_entry(CachePlace place, const Compilation& compilation) {
  const ContentDigest key = proto::digest_of(std::as_bytes(std::span(compilation.key)));
  if (compilation.kind == EntryKind::source) {
    compiled_source.is_known = false;
    return new CompileCacheEntry(std::move(place), key, identity_of(compilation, key, nullptr));
  }
  const bool is_whole = is_ptx(compilation.key);
  const bool has_text = compiled_source.is_known && compiled_source.source == key;
  std::optional<ContentDigest> identity;
  if (is_whole || has_text) identity = identity_of(compilation, key, is_whole ? nullptr : &compiled_source.text);
  return new CompileCacheEntry(std::move(place), std::nullopt, identity);
}

void note_compiled(const CompileCacheEntry& entry, const ContentDigest& text) {
  if (entry.source()) compiled_source = {*entry.source(), text, true};
}

}  // namespace

namespace slots {

CUresult cache_open(CompileCacheEntry** entry, std::uint32_t kind, const void* key, std::size_t key_bytes, const char* options, const char* host,
                    const char* build, std::uint32_t architecture) {
  const proto::trace::Span span("cache", "open", {"bytes", key_bytes});
  if (entry == nullptr || (key == nullptr && key_bytes != 0)) return CUDA_ERROR_INVALID_VALUE;
  *entry = nullptr;
  const auto known = static_cast<EntryKind>(kind);
  if (known != EntryKind::machine_code && known != EntryKind::source) return CUDA_ERROR_NOT_SUPPORTED;
  const Compilation compilation{
      known, {static_cast<const char*>(key), key_bytes}, text_or_nothing(options), text_or_nothing(host), text_or_nothing(build), architecture};
  return guarded(
      +[](CompileCacheEntry** out, const Compilation* asked) {
        CachePlace place = cache_place();
        if (place.folder.empty()) return CUDA_ERROR_NOT_SUPPORTED;
        *out = open_entry(std::move(place), *asked);
        return CUDA_SUCCESS;
      },
      entry, &compilation);
}

CUresult cache_close(CompileCacheEntry* entry) {
  delete entry;
  return CUDA_SUCCESS;
}

CUresult cache_get(CompileCacheEntry* entry, std::uint32_t item, void** data, std::uint32_t* size_bytes) {
  if (entry == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (data == nullptr || size_bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (item != 0) return CUDA_ERROR_NOT_SUPPORTED;
  return guarded(
      +[](const CompileCacheEntry* asked, void** out, std::uint32_t* out_bytes) {
        if (!asked->identity()) return CUDA_ERROR_NOT_FOUND;
        const proto::trace::Span span("cache", "get");
        CachedContent content = asked->store().read(*asked->identity());
        if (content.bytes == nullptr) return CUDA_ERROR_NOT_FOUND;
        note_compiled(*asked, content.digest);
        *out_bytes = content.size_bytes;
        *out = content.bytes.release();
        return CUDA_SUCCESS;
      },
      entry, data, size_bytes);
}

CUresult cache_put(CompileCacheEntry* entry, std::uint32_t item, const void* data, std::size_t size_bytes) {
  if (entry == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (data == nullptr || size_bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (item != 0 || !entry->identity()) return CUDA_ERROR_NOT_SUPPORTED;
  return guarded(
      +[](const CompileCacheEntry* asked, const void* from, std::size_t bytes) {
        const std::span content(static_cast<const std::byte*>(from), bytes);
        const ContentDigest digest = proto::digest_of(content);
        note_compiled(*asked, digest);
        return asked->store().write(*asked->identity(), content, digest) ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
      },
      entry, data, size_bytes);
}

void cache_free(void* data) { std::free(data); }

}  // namespace slots
}  // namespace mpsshim::interposer
