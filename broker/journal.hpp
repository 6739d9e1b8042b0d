// SPDX-License-Identifier: Apache-2.0
// Lines of the log to systemd's journal, by its native protocol: a datagram with fields for each, to a Unix socket. Nobody is waited for: what the
// journal does not take at once is lost, and how much that was is told with the next line that it takes. A journal that is started anew is found by
// its name. Any thread; fields hold one line each, which callers have made printable.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

#include "proto/mutex.hpp"
#include "proto/segment.hpp"

namespace mpsshim::broker {

inline constexpr const char* kJournalSocket = "/run/systemd/journal/socket";

class Journal {
 public:
  explicit Journal(std::string path);
  Journal(const Journal&) = delete;

  // `priority`: syslog's, 3 (error) to 7 (debug). `log`: "control" or "server", whose file the line would stand in; `from`: which process writes it.
  // False: it was not taken (errno).
  bool write(int priority, std::string_view log, std::string_view from, std::string_view line);

 private:
  [[nodiscard]] bool send(int priority, std::string_view log, std::string_view from, std::string_view line) const;

  const std::string path_;
  const proto::FileDescriptor socket_;
  Mutex mutex_;
  std::uint64_t lost_ GUARDED_BY(mutex_) = 0;  // since it was told
};

}  // namespace mpsshim::broker
