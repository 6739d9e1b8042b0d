// SPDX-License-Identifier: Apache-2.0
// Names under which sessions let others have memory of theirs. A name is a random number of 128 bits; it ends with the memory or its session.
// One thread: the control process's.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "proto/client_requests.hpp"

namespace mpsshim::broker::control {

class ShareTable {
 public:
  static constexpr std::size_t kMostOfSession = 65'536;

  struct Shared {
    std::uint64_t session = 0;
    std::uint64_t object = 0;
  };

  // The name of an object, made if it has none. Nothing: the session has as many as it may have, or there are no random numbers.
  [[nodiscard]] std::optional<proto::MemoryName> name(const Shared& shared);
  [[nodiscard]] std::optional<Shared> find(const proto::MemoryName& name) const;
  void forget(const Shared& shared);
  void forget_session(std::uint64_t session);

 private:
  using Key = std::pair<std::uint64_t, std::uint64_t>;

  std::map<Key, Shared> by_name_;
  std::map<Key, proto::MemoryName> by_object_;  // (session, object)
};

}  // namespace mpsshim::broker::control
