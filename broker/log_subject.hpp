// SPDX-License-Identifier: Apache-2.0
// Whose doing lines of the log are (log_quota.hpp).
//
//   const LogSubject subject(client.uid);   // what this thread logs from here on is that user's clients' doing
#pragma once

#include <cstdint>
#include <optional>

#include <sys/types.h>

namespace mpsshim::broker {

// As long as it lives.
class LogSubject {
 public:
  explicit LogSubject(uid_t user);
  LogSubject(const LogSubject&) = delete;
  LogSubject& operator=(const LogSubject&) = delete;
  ~LogSubject();

 private:
  const std::optional<uid_t> before_;
};
[[nodiscard]] std::optional<uid_t> log_subject();  // of this thread; nullopt: nobody's doing
// So many bytes an hour for the lines of each user's doing, `whose` being that of threads without a subject. 0: as many as there are. From the
// first thread, before there are others.
void set_log_quota(std::uint64_t bytes, std::optional<uid_t> whose = std::nullopt);

}  // namespace mpsshim::broker
