// SPDX-License-Identifier: Apache-2.0
// The directory in which broker and clients meet: mpsshim.sock, control.sock, mpsbroker.lock. One broker a directory: it holds the lock as long
// as it lives, so a lock file left behind by a crash means nothing.
// Which one (as the interposer and mpsrun have it): --pipe-dir, else $CUDA_MPS_PIPE_DIRECTORY, else $XDG_RUNTIME_DIR/mpsshim, else
// /tmp/mpsshim-<uid>.
#pragma once

#include <optional>
#include <string>

#include "proto/segment.hpp"

namespace mpsshim::broker::control {

[[nodiscard]] std::string choose_pipe_directory(const std::string& option);

class PipeDirectory {
 public:
  // Makes the directory (mode 0700) and takes the lock. On failure nullopt and, in `why`, a sentence for the user.
  [[nodiscard]] static std::optional<PipeDirectory> claim(const std::string& path, std::string& why);

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
