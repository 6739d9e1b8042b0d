// SPDX-License-Identifier: Apache-2.0
// A control process in the test itself: answers Hello with made-up facts, ProvisionAsk with what it asks for, and Attach with
// an empty channel nobody reads, and knows nothing else.
// And children in which libmpsshim.so is loaded: it settles once in a process, so every scenario gets a process of its own.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <thread>

#include "proto/socket.hpp"
#include "proto/version.hpp"

namespace mpsshim::test {

class ScriptedBroker {
 public:
  // `version`: what it says that it speaks.
  explicit ScriptedBroker(std::uint32_t devices = 2, std::uint32_t hello_status = 0, proto::Version version = proto::kVersion);
  ~ScriptedBroker();
  ScriptedBroker(const ScriptedBroker&) = delete;
  ScriptedBroker& operator=(const ScriptedBroker&) = delete;

  [[nodiscard]] const std::string& directory() const { return directory_; }
  [[nodiscard]] int hellos() const { return hellos_; }
  void turn_order() { is_turned_ = true; }  // processes that ask see the devices the other way round
  [[nodiscard]] int attaches() const { return attaches_; }
  [[nodiscard]] bool pidfd_was_childs() const { return pidfds_ == hellos_; }

 private:
  void serve();
  void answer(const proto::Socket& client, std::uint32_t type, std::span<const std::byte> packet, proto::ReceivedFds& fds);

  std::uint32_t devices_;
  std::uint32_t hello_status_;
  proto::Version version_;
  std::string directory_;
  proto::Socket listener_;
  std::atomic<bool> is_turned_{false};
  std::atomic<bool> stop_{false};
  std::atomic<int> hellos_{0};
  std::atomic<int> pidfds_{0};
  std::atomic<int> attaches_{0};
  std::thread thread_;
};

// What a child found wrong, and how it ended.
class Report {
 public:
  explicit Report(int fd) : fd_(fd) {}
  void expect(bool holds, const std::string& statement) const;
  void equal(long long found, long long expected, const std::string& what) const;

 private:
  int fd_;
};

struct ChildEnd {
  std::string complaints;  // one line for each expectation that did not hold
  std::string errors;      // its standard error
  bool exited_well = false;
  [[nodiscard]] bool fine() const { return exited_well && complaints.empty(); }
};

// The library, loaded. Functions are looked up by name.
class Library {
 public:
  Library();
  [[nodiscard]] void* symbol(const char* name) const;
  template <typename Function>
  [[nodiscard]] Function* get(const char* name) const {
    return reinterpret_cast<Function*>(symbol(name));
  }

 private:
  void* handle_;
};

// Runs `body` in a forked child whose pipe directory is `directory`. `environment`: NAME=VALUE, separated by spaces.
[[nodiscard]] ChildEnd in_child(const std::string& directory, const std::string& environment,
                                const std::function<void(const Report&, const Library&)>& body);

}  // namespace mpsshim::test
