// SPDX-License-Identifier: Apache-2.0
// A running broker as its operators' programs see it (mpsctl, mpsrun): which one answers, a command and its answer, and its end.
// A connection is made for each command. Nothing here prints.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "proto/segment.hpp"
#include "proto/socket.hpp"

namespace mpsshim::broker::ctl {

enum class Reach {
  obeys,      // its control socket is this user's to use
  serves,     // only programs can connect: it is another user's, and takes no command of this one
  forbidden,  // there may be one, and this user may not ask: see errno
  absent,
};
// Anybody may make a directory under /tmp that nobody has named: what listens there is this user's, or root's, or is not there.
enum class Trust { anybody, user_and_root };
[[nodiscard]] Reach reach_of(const std::string& directory, Trust trust);

struct Found {
  std::string directory;  // where one answers; else the first that was looked at
  Reach reach = Reach::absent;
  int error = 0;  // why not, where none answers
};
// The first of `directories` in which a broker answers.
[[nodiscard]] Found find_broker(const std::vector<std::string>& directories, Trust trust);

struct Answer {
  bool was_asked = false;  // false: no broker, or it did not answer; `text` says which
  bool ok = false;
  std::string text;
};

class BrokerClient {
 public:
  explicit BrokerClient(std::string directory) : directory_(std::move(directory)) {}

  // `limit`: nothing: however long it takes.
  [[nodiscard]] Answer ask(const std::string& command, std::optional<std::chrono::milliseconds> limit);
  // Waits until the process that answered last has ended, which then has its directory no more. False: it has not.
  [[nodiscard]] bool await_end(std::optional<std::chrono::milliseconds> limit) const;

 private:
  const std::string directory_;
  proto::FileDescriptor process_;  // pidfd of who answers; invalid where it is in a pid namespace that we do not see
};

// The group whose directory that is, in a broker's: programs come in there, and no commands. "": it is none's.
[[nodiscard]] std::string group_of(const std::string& directory);
// For a person: why nothing answers in `directory`, by the errno of connect().
[[nodiscard]] std::string absence(const std::string& directory, int error);

}  // namespace mpsshim::broker::ctl
