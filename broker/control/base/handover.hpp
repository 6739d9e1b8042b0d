// SPDX-License-Identifier: Apache-2.0
// How one control process hands all it has over to the next one in the same process, by execve of the installed mpsbroker: a sealed memory file
// of plain values, and the descriptors they name, inherited under their numbers. No executor is handed over: all are at rest and ended before.
//
// Layout: magic, version, number of bytes, values. Versions are ours from release to release: a reader knows those from kOldestHandover to
// kHandoverVersion, which `mpsbroker --handover-versions` prints, so that the running broker asks before it changes anything.
// The reader duplicates descriptors: if it fails half way, all is still there for the program that was before (`--former`).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "broker/control/base/event_loop.hpp"
#include "proto/segment.hpp"

namespace mpsshim::broker::control {

inline constexpr std::uint32_t kHandoverVersion = 16;  // written
inline constexpr std::uint32_t kOldestHandover = 1;   // still read

class StateWriter {
 public:
  void number(std::uint64_t value) { bytes({reinterpret_cast<const char*>(&value), sizeof value}); }
  void text(std::string_view value) {
    number(value.size());
    bytes(value);
  }
  // -1: none.
  void file(int fd);
  void file(const proto::FileDescriptor& fd) { file(fd.get()); }
  template <typename T>
  void plain(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    text({reinterpret_cast<const char*>(&value), sizeof value});
  }

  // Sealed. Invalid on failure (errno).
  [[nodiscard]] proto::FileDescriptor finish(std::uint32_t version = kHandoverVersion) const;
  [[nodiscard]] const std::vector<int>& files() const { return files_; }

 private:
  void bytes(std::string_view value) { content_.append(value); }
  std::string content_;
  std::vector<int> files_;
};

class StateReader {
 public:
  // `why`: what is wrong with the file, if anything is.
  StateReader(const proto::FileDescriptor& state, std::string& why);

  // 2: sessions have text of their kernels. 3: and the times of their events. 4: executors and images have users. 5: memory that is shared is
  // told by its number, and there is what is in quarantine. 6: sessions have what the variables of their modules held.
  // 7: who holds the broker; executors have numbers. 8: limits of memory, and what sessions have of them. 9: whose the socket of clients is, when
  // sessions began, and what is counted of them. 10: percentages and priorities. 11: namespaces. 12: what is kept for
  // them, and waits. 13: orders of devices that clients were told, and pinned memory of other sessions. 14: static partitions, and who has which;
  // groups with executors of their own. 15: multiprocessors that are kept for groups, and remainders of partitions.
  [[nodiscard]] std::uint32_t version() const { return version_; }
  // False once anything was missing; values read from then on are 0 or empty.
  [[nodiscard]] bool ok() const { return ok_; }
  void fail() { ok_ = false; }
  [[nodiscard]] std::uint64_t number();
  [[nodiscard]] std::string text();
  [[nodiscard]] proto::FileDescriptor file();  // a duplicate
  template <typename T>
  [[nodiscard]] T plain() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    const std::string content = text();
    if (content.size() != sizeof value) return fail(), value;
    __builtin_memcpy(&value, content.data(), sizeof value);
    return value;
  }
  // Another descriptor that came with the state.
  void inherit(int fd) { inherited_.push_back(fd); }
  // All went well: what was inherited is not needed under its number any more.
  void close_inherited();

 private:
  std::string content_;
  std::uint32_t version_ = 0;
  std::size_t at_ = 0;
  bool ok_ = true;
  std::vector<int> inherited_;
};

// Which versions `program` reads: asked of the program itself, in a child. `done` is called once, with "" where it reads kHandoverVersion.
class HandoverQuery {
 public:
  HandoverQuery(EventLoop& loop, const std::string& program, std::function<void(const std::string& why)> done);
  ~HandoverQuery();

 private:
  void read_answer();
  void end(const std::string& why);

  const std::string program_;
  std::function<void(const std::string& why)> done_;
  pid_t child_ = -1;
  proto::FileDescriptor output_;
  std::string answer_;
  EventLoop::Watch watch_;
  EventLoop::Timer limit_;
};

// Executes `program` with `arguments` in this process. Of the descriptors only `files` stay open; where there are none, all that are not
// close-on-exec. Returns only on failure (errno).
void execute(const std::string& program, const std::vector<std::string>& arguments, std::span<const int> files);

}  // namespace mpsshim::broker::control
