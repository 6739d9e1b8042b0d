// SPDX-License-Identifier: Apache-2.0
// The directory in which broker and clients meet: mpsshim.sock, control.sock, mpsbroker.lock. One broker a directory: it holds the lock as long
// as it lives, so a lock file left behind by a crash means nothing.
// Which one is decided in proto/pipe_directory.hpp.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "proto/segment.hpp"

namespace mpsshim::broker::control {

// The directory that a broker is to make, by an option (empty: none) and the environment.
[[nodiscard]] std::string choose_pipe_directory(const std::string& option);
// Those in which one may be found.
[[nodiscard]] std::vector<std::string> pipe_directories_to_search(const std::string& option);

class PipeDirectory {
 public:
  // Makes the directory (mode 0700, or 0755 where all users are to come in) and takes the lock. A broker that has it, and lets nobody in any more, is
  // waited for. On failure nullopt and, in `why`, a sentence for the user.
  enum class Guests { own_user, all_users };
  [[nodiscard]] static std::optional<PipeDirectory> claim(const std::string& path, std::string& why, Guests guests = Guests::own_user);

  // The one that another control process had, with its lock.
  [[nodiscard]] static PipeDirectory adopt(const std::string& path, proto::FileDescriptor lock);
  [[nodiscard]] const proto::FileDescriptor& lock() const { return lock_; }

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::string client_socket() const;
  [[nodiscard]] std::string control_socket() const;

 private:
  std::string path_;
  proto::FileDescriptor lock_;
};

}  // namespace mpsshim::broker::control
