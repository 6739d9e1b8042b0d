// SPDX-License-Identifier: Apache-2.0
// Which program a client runs, for Quarantine: the content of its executable, so that a copy or another name is no other program.
//
// The file is a stranger's: opening or reading it may take as long as whoever serves its file system likes (FUSE), and it may be large. So the
// control process takes only a name of it (O_PATH, which asks no file system), and a thread reads it: the whole up to 8 MiB, of a larger one its
// two ends and its size. Known contents are remembered by device, inode and times. What takes longer than two seconds is given up: the program is
// then one that cannot be read, as all such of its user are one to Quarantine; its thread is left alone and another takes over, four at most.
// Users have turns, and 256 files each that wait.
// Used by the control process's thread alone.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "broker/control/base/event_loop.hpp"
#include "broker/control/faults/quarantine.hpp"
#include "proto/segment.hpp"

namespace mpsshim::broker::control {

struct ClientProgram {
  ProgramIdentity program;
  bool is_known = false;  // else its digest is still to come
};

// What tells the file behind `name` (a descriptor of any kind, O_PATH will do) from others: its content; of one that may be executed and not read,
// which file it is. Zeros: neither can be had. May wait for as long as the file's system likes.
[[nodiscard]] proto::ContentDigest content_of(int name);

class ProgramReader {
 public:
  using Read = std::function<proto::ContentDigest(int name)>;
  // `known` is called from the loop whenever programs have come to be known. `read` is called by the threads, which may outlive this.
  ProgramReader(EventLoop& loop, std::function<void()> known, Read read = content_of);
  ProgramReader(const ProgramReader&) = delete;
  ProgramReader& operator=(const ProgramReader&) = delete;
  ~ProgramReader();  // waits a moment for the thread, not for a file

  // Of a process; `pidfd` is one of it, and if that is dead by now nothing is said of it. Not valid: whoever has that number.
  [[nodiscard]] std::shared_ptr<const ClientProgram> identify(pid_t pid, uid_t uid, const proto::FileDescriptor& pidfd);

  [[nodiscard]] std::size_t pending() const { return awaited_.size(); }  // not read yet

 private:
  struct Shared;
  struct Awaited {
    std::shared_ptr<ClientProgram> program;
    EventLoop::Timer limit;
  };
  static void run(const std::shared_ptr<Shared>& shared);
  void start_thread();
  void hear();
  void hurry(std::uint64_t job);
  void give_up(std::uint64_t job);

  EventLoop& loop_;
  const std::function<void()> known_;
  const std::shared_ptr<Shared> shared_;  // also the threads', which may outlive this
  std::uint64_t last_job_ = 0;
  std::map<std::uint64_t, Awaited> awaited_;
  EventLoop::Watch watch_;
};

}  // namespace mpsshim::broker::control
