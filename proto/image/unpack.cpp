// SPDX-License-Identifier: Apache-2.0
// The only file here that needs lz4 and zstd: who reads layouts alone does not link them.
#include <climits>
#include <cstring>

#include "proto/image/fatbin.hpp"

#if MPSSHIM_HAVE_LZ4
#include <lz4.h>
#endif
#if MPSSHIM_HAVE_ZSTD
#include <zstd.h>
#endif

namespace mpsshim::image {
namespace {

UnpackError unpack_lz4([[maybe_unused]] std::span<const std::byte> from, [[maybe_unused]] std::span<std::byte> to) {
#if MPSSHIM_HAVE_LZ4
  if (from.size() > INT_MAX || to.size() > INT_MAX) return UnpackError::too_large;
  const int written = LZ4_decompress_safe(reinterpret_cast<const char*>(from.data()), reinterpret_cast<char*>(to.data()),
                                          static_cast<int>(from.size()), static_cast<int>(to.size()));
  return written >= 0 && static_cast<std::size_t>(written) == to.size() ? UnpackError::none : UnpackError::corrupt;
#else
  return UnpackError::not_built_in;
#endif
}

UnpackError unpack_zstd([[maybe_unused]] std::span<const std::byte> from, [[maybe_unused]] std::span<std::byte> to) {
#if MPSSHIM_HAVE_ZSTD
  const std::size_t written = ZSTD_decompress(to.data(), to.size(), from.data(), from.size());
  return !ZSTD_isError(written) && written == to.size() ? UnpackError::none : UnpackError::corrupt;
#else
  return UnpackError::not_built_in;
#endif
}

// Code is packed to a tenth or so. What claims much more is made to fill memory, and is believed as long as that is little.
constexpr std::size_t kAnyRatioBytes = std::size_t{32} << 20;
constexpr std::size_t kMostRatio = 64;

// What the compressed bytes can give at most, so that a few of them cannot ask for a huge buffer: LZ4 by its format,
// a zstd frame by its own header.
bool is_plausible(const FatbinEntry& entry) {
  constexpr std::size_t kLz4MaxRatio = 255;
  if (entry.compression != Compression::none && entry.unpacked_bytes > kAnyRatioBytes && entry.unpacked_bytes / kMostRatio > entry.payload.size()) {
    return false;
  }
  if (entry.compression == Compression::lz4) return entry.unpacked_bytes / kLz4MaxRatio <= entry.payload.size();
#if MPSSHIM_HAVE_ZSTD
  if (entry.compression == Compression::zstd) {
    const auto says = ZSTD_getFrameContentSize(entry.payload.data(), entry.payload.size());
    return says == ZSTD_CONTENTSIZE_UNKNOWN || says == entry.unpacked_bytes;
  }
#endif
  return true;
}

}  // namespace

const char* to_text(UnpackError error) {
  switch (error) {
    case UnpackError::none:
      return "no error";
    case UnpackError::too_large:
      return "it is larger than the limit";
    case UnpackError::corrupt:
      return "its compressed bytes are corrupt";
    case UnpackError::not_built_in:
      return "this build cannot decompress it: build with liblz4-dev and libzstd-dev installed";
  }
  return "unknown";
}

UnpackError unpack(const FatbinEntry& entry, std::size_t limit_bytes, std::vector<std::byte>& bytes) {
  if (entry.unpacked_bytes > limit_bytes) return UnpackError::too_large;
  if (!is_plausible(entry)) return UnpackError::corrupt;
  if (entry.compression == Compression::none) {
    bytes.assign(entry.payload.begin(), entry.payload.end());
    return UnpackError::none;
  }
  bytes.resize(entry.unpacked_bytes);
  return entry.compression == Compression::lz4 ? unpack_lz4(entry.payload, bytes) : unpack_zstd(entry.payload, bytes);
}

}  // namespace mpsshim::image
