// SPDX-License-Identifier: Apache-2.0
// The records that an executor had not read when it ended: found in its ring, copied into the next one's, in order, reply slots included.
// Used by recovery's one thread while nobody writes records. The ring is this process's own, but the position the executor left behind is
// checked: it must be a record's start.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "interposer/channel/link.hpp"
#include "interposer/channel/wait.hpp"

namespace mpsshim::interposer {

struct Unread {
  std::uint64_t consumed = 0;  // position up to which the executor has read
  std::uint64_t written = 0;
  std::vector<std::uint16_t> reply_slots;  // of calls among them
  // For each stream the first fence value one of them will write; 0: none. All values before it were handed over.
  std::array<std::uint32_t, proto::kFenceWords> first_fence{};
};

// The fence value that a record will write; 0: none.
[[nodiscard]] std::uint32_t fence_of(const proto::RecordHeader& header, const std::byte* body);

// Nothing, if the executor's position is impossible.
[[nodiscard]] std::optional<Unread> find_unread(Link& old_link);

// Takes the reply slots over, before anything is written to the new link.
void adopt_reply_slots(const Unread& unread, Link& next_link);

// Copies. WaitEnd::ready: done, `first` is the new position of the first record.
[[nodiscard]] WaitEnd carry_over(const Unread& unread, Link& old_link, Link& next_link, PeerWatch peer, std::uint64_t& first);

// Waits until a record of `size` fits.
[[nodiscard]] WaitEnd wait_for_room(Link& link, std::uint32_t size, PeerWatch peer);

}  // namespace mpsshim::interposer
