// SPDX-License-Identifier: Apache-2.0
// Releases of the protocol, and who serves whom. Major: the layout of what client and executor both map (channel.hpp); another one cannot be
// served. Minor: what is said, records and messages; it only grows, so whoever speaks an older minor speaks a part of a newer one.
// A broker serves clients of its own release and of the one before. A newer client is refused: the broker is to be renewed first (`mpsctl restart`).
// What is spoken is the client's version; Welcome and the channel's header carry it.
#pragma once

#include <cstdint>

namespace mpsshim::proto {

struct Version {
  std::uint32_t major = 0;
  std::uint32_t minor = 0;
  friend constexpr bool operator==(const Version&, const Version&) = default;
};

inline constexpr std::uint32_t kLayoutMajor = 1;
inline constexpr std::uint32_t kLayoutMinor = 3;  // grows with every release that adds a record, a message or a field
inline constexpr Version kVersion{kLayoutMajor, kLayoutMinor};

enum class Agreement : std::uint8_t { served, too_old, too_new };

[[nodiscard]] constexpr Agreement agree(Version broker, Version client) {
  if (client.major != broker.major) return client.major < broker.major ? Agreement::too_old : Agreement::too_new;
  if (client.minor > broker.minor) return Agreement::too_new;
  return broker.minor - client.minor <= 1 ? Agreement::served : Agreement::too_old;
}
static_assert(agree({1, 5}, {1, 5}) == Agreement::served && agree({1, 5}, {1, 4}) == Agreement::served);
static_assert(agree({1, 5}, {1, 3}) == Agreement::too_old && agree({1, 5}, {1, 6}) == Agreement::too_new);
static_assert(agree({2, 0}, {1, 9}) == Agreement::too_old && agree({1, 5}, {2, 0}) == Agreement::too_new);

}  // namespace mpsshim::proto
